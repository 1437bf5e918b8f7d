"""Covariance functions: immutable values with named positive parameters, combined by `+` and `*`."""

from nearexact.kernels.base import Kernel
from nearexact.kernels.composite import Composite
from nearexact.kernels.dot_product import ArcCosine, Linear
from nearexact.kernels.names import named_kernel
from nearexact.kernels.stationary import Matern12, Matern32, Matern52, Periodic, SquaredExponential

__all__ = [
    "ArcCosine",
    "Composite",
    "Kernel",
    "Linear",
    "Matern12",
    "Matern32",
    "Matern52",
    "Periodic",
    "SquaredExponential",
    "named_kernel",
]
