"""The exact GP in extended precision, from formulas: the oracle of bounds that have to hold in float64.

NumPy's long double has 64 bits of mantissa on x86, eleven more than float64: what it is off by does not count.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from nearexact.kernels import ArcCosine, Kernel, Linear, Matern12, Matern32, Matern52, Periodic, SquaredExponential
from nearexact.kernels.composite import Composite

Extended = npt.NDArray[np.longdouble]
PI = np.longdouble("3.14159265358979323846264338327950288")


def kernel_matrix(kernel: Kernel, X: np.ndarray, Z: np.ndarray) -> Extended:
    """k(x, z) between the rows of X and of Z."""
    if isinstance(kernel, Composite):
        parts = [kernel_matrix(part, X, Z) for part in kernel.parts]
        return np.sum(parts, axis=0) if kernel.operation == "+" else np.prod(parts, axis=0)
    p = {name: value.astype(np.longdouble) for name, value in kernel.parameters.items()}
    differences = X.astype(np.longdouble)[:, None, :] - Z.astype(np.longdouble)[None, :, :]
    if isinstance(kernel, Linear):
        products = X.astype(np.longdouble)[:, None, :] * Z.astype(np.longdouble)[None, :, :]
        return (products * p["variances"]).sum(2) + p["bias_variance"]
    if isinstance(kernel, Periodic):
        sines = np.sin(PI * differences / p["period"]) / p["lengthscales"]
        return p["variance"] * np.exp(-2.0 * (sines**2).sum(2))
    if isinstance(kernel, ArcCosine):
        return _arc_cosine(kernel, p, X.astype(np.longdouble), Z.astype(np.longdouble))
    squared = ((differences / p["lengthscales"]) ** 2).sum(2)
    if isinstance(kernel, SquaredExponential):
        return p["variance"] * np.exp(-squared / 2)
    order = {Matern12: 1, Matern32: 3, Matern52: 5}[type(kernel)]
    r = np.sqrt(order * squared)
    shape = {1: 1.0, 3: 1.0 + r, 5: 1.0 + r + r**2 / 3}[order]
    return p["variance"] * shape * np.exp(-r)


def _arc_cosine(kernel: ArcCosine, p: dict[str, Extended], X: Extended, Z: Extended) -> Extended:
    weights = np.sqrt(np.append(p["weight_variances"], p["bias_variance"]))
    rows, columns = (np.column_stack([A, np.ones(len(A))]) * weights for A in (X, Z))
    a, b = (np.sqrt((A**2).sum(1)) for A in (rows, columns))
    u, v = (rows / a[:, None])[:, None, :], (columns / b[:, None])[None, :, :]
    angle = 2 * np.arctan2(np.sqrt(((u - v) ** 2).sum(2)), np.sqrt(((u + v) ** 2).sum(2)))
    sine, cosine = np.sin(angle), np.cos(angle)
    J = [PI - angle, sine + (PI - angle) * cosine, 3 * sine * cosine + (PI - angle) * (1 + 2 * cosine**2)][kernel.order]
    return p["variance"] / PI * (a[:, None] * b) ** kernel.order * J


def log_likelihood(kernel: Kernel, s: float, X: np.ndarray, y: np.ndarray) -> float:
    """The log marginal likelihood."""
    K = kernel_matrix(kernel.for_inputs(X.shape[1]), X, X)
    K[np.diag_indices_from(K)] += np.longdouble(s)
    L = _cholesky(K)
    half = _forward(L, y.astype(np.longdouble)[:, None])
    return float(-0.5 * (len(y) * np.log(2 * PI) + 2 * np.log(np.diag(L)).sum() + (half**2).sum()))


def predict(
    kernel: Kernel, s: float, X: np.ndarray, y: np.ndarray, X_new: np.ndarray
) -> tuple[Extended, Extended, Extended]:
    """Mean and variance of the latent function at the rows of X_new, and by how much the variance may be off."""
    kernel = kernel.for_inputs(X.shape[1])
    K = kernel_matrix(kernel, X, X)
    K[np.diag_indices_from(K)] += np.longdouble(s)
    L = _cholesky(K)
    right = np.column_stack([y.astype(np.longdouble), kernel_matrix(kernel, X, X_new)])
    half = _forward(L, right)
    k_new = np.array([kernel_matrix(kernel, x[None], x[None])[0, 0] for x in X_new])
    room = len(X) * np.finfo(np.longdouble).eps * k_new
    return half[:, 1:].T @ half[:, 0], k_new - (half[:, 1:] ** 2).sum(0), room


def _cholesky(K: Extended) -> Extended:
    L = np.zeros_like(K)
    for j in range(len(K)):
        column = K[j:, j] - L[j:, :j] @ L[j, :j]
        L[j:, j] = column / np.sqrt(column[0])
    return L


def _forward(L: Extended, B: Extended) -> Extended:
    """L⁻¹B."""
    solved = np.zeros_like(B)
    for i in range(len(L)):
        solved[i] = (B[i] - L[i, :i] @ solved[:i]) / L[i, i]
    return solved
