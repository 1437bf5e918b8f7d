"""Approximate Gaussian process regression that says how near to the exact Gaussian process it is."""

import logging

from nearexact import gp, kernels
from nearexact.certificate import Certificate
from nearexact.estimators import GPRegressor, SGPRegressor
from nearexact.persistence import load

logging.getLogger(__name__).addHandler(logging.NullHandler())  # silent unless the user wants to see it

__all__ = ["Certificate", "GPRegressor", "SGPRegressor", "gp", "kernels", "load"]
