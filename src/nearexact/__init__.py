"""Approximate Gaussian process regression that says how near to the exact Gaussian process it is."""
