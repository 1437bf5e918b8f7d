"""Approximate Gaussian process regression that says how near to the exact Gaussian process it is."""

from nearexact import gp, kernels
from nearexact.certificate import Certificate
from nearexact.estimators import GPRegressor, SGPRegressor
from nearexact.persistence import load

__all__ = ["Certificate", "GPRegressor", "SGPRegressor", "gp", "kernels", "load"]
