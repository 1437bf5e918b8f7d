"""Approximate Gaussian process regression that says how near to the exact Gaussian process it is."""

from nearexact import gp, kernels

__all__ = ["gp", "kernels"]
