"""Floating point operations by formula: a cost of training that does not depend on the machine.

An addition, a multiplication and any function of one number count one each. What is counted are operations of third
order, that is products, solves, factors and inverses of matrices, and the evaluation of kernels; N rows, M inducing
points, and F features of a row, from which the kernel is computed by inner products. What a cheaper way saves, where
the numbers allow one (sparse.py), is not taken off: a count depends on the steps that were taken, not on their values.
"""

from __future__ import annotations

import torch

from nearexact.kernels.base import Kernel


def feature_count(kernel: Kernel, X: torch.Tensor) -> int:
    """F, of a kernel whose parameters are one per input."""
    return kernel.features(X[:1], X[0]).shape[1]


def kernel_flops(rows: int, columns: int, features: int) -> float:
    """Values of a kernel between rows and columns: an inner product of features and a function of it for each pair."""
    return rows * columns * (2.0 * features + 1.0)


def kernel_gradient_flops(rows: int, columns: int, features: int) -> float:
    """Its derivatives by all parameters: the values again, and a product of the weights with the features."""
    return 2.0 * kernel_flops(rows, columns, features)


def cholesky_flops(n: int) -> float:
    """A Cholesky factor."""
    return n**3 / 3.0


def selection_flops(n: int, m: int, features: int) -> float:
    """Greedy selection of m points: a partial Cholesky factor of K, column by column."""
    return 1.0 * m**2 * n + kernel_flops(n, m, features)


def sparse_flops(n: int, m: int, features: int) -> float:
    """A sparse model without its gradient: L⁻¹K_ZX, VVᵀ, and the factors of K_ZZ and B."""
    return 2.0 * m**2 * n + 2.0 * cholesky_flops(m) + kernel_flops(n + m, m, features)


def sparse_gradient_flops(n: int, m: int, features: int, *, tight: bool = False) -> float:
    """What the gradient takes besides: 2ḠV and L⁻ᵀ(…) over the rows, and B⁻¹G, B⁻¹ and L⁻ᵀWL⁻¹ of size M.

    The tight bound takes one more Gram matrix over the rows.
    """
    squares = 14.0 / 3.0 * m**3
    return (4.0 if tight else 3.0) * m**2 * n + squares + kernel_gradient_flops(n + m, m, features)


def exact_flops(n: int, features: int) -> float:
    """An exact likelihood with its gradient: Cholesky factor and inverse."""
    return 3.0 * cholesky_flops(n) + kernel_flops(n, n, features) + kernel_gradient_flops(n, n, features)


def solving_flops(n: int, m: int, features: int, *, columns: int, iterations: int, stored: bool) -> float:
    """Conjugate gradients for several columns, preconditioned by a sparse GP with m points, which is not counted here.

    Each iteration takes a product with K, which is computed again where it is not stored, and a solve with Q + sI.
    """
    by_iteration = columns * (2.0 * n**2 + 4.0 * n * m)
    return iterations * by_iteration + (1 if stored else iterations) * kernel_flops(n, n, features)
