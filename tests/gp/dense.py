"""The models as the paper writes them, in dense NumPy algebra: slow, obvious, and the oracle of the fast ones."""

from __future__ import annotations

import numpy as np

from nearexact.kernels import Kernel


def gaussian_log_density(y: np.ndarray, covariance: np.ndarray) -> float:
    _, log_det = np.linalg.slogdet(covariance)
    return -0.5 * float(len(y) * np.log(2 * np.pi) + log_det + y @ np.linalg.solve(covariance, y))


def lml(kernel: Kernel, s: float, X: np.ndarray, y: np.ndarray) -> float:
    return gaussian_log_density(y, kernel(X) + s * np.eye(len(X)))


def q_matrix(kernel: Kernel, X: np.ndarray, Z: np.ndarray, jitter: float) -> np.ndarray:
    return kernel(X, Z) @ np.linalg.solve(kernel(Z) + jitter * np.eye(len(Z)), kernel(Z, X))


def elbo(kernel: Kernel, s: float, X: np.ndarray, y: np.ndarray, Z: np.ndarray, jitter: float = 1e-10) -> float:
    Q = q_matrix(kernel, X, Z, jitter)
    trace = kernel.diag(X).sum() - np.trace(Q)
    return gaussian_log_density(y, Q + s * np.eye(len(X))) - 0.5 * trace / s


def tight_bound(kernel: Kernel, s: float, X: np.ndarray, y: np.ndarray, Z: np.ndarray, jitter: float = 1e-10) -> float:
    Q = q_matrix(kernel, X, Z, jitter)
    excess = np.log1p(np.maximum(kernel.diag(X) - np.diag(Q), 0.0) / s).sum()
    return gaussian_log_density(y, Q + s * np.eye(len(X))) - 0.5 * excess


def upper_bound(kernel: Kernel, s: float, X: np.ndarray, y: np.ndarray, Z: np.ndarray, jitter: float = 1e-10) -> float:
    Q, eye = q_matrix(kernel, X, Z, jitter), np.eye(len(X))
    trace = kernel.diag(X).sum() - np.trace(Q)
    _, log_det = np.linalg.slogdet(Q + s * eye)
    return -0.5 * float(len(X) * np.log(2 * np.pi) + log_det + y @ np.linalg.solve(Q + (s + trace) * eye, y))


def predict(
    kernel: Kernel, s: float, X: np.ndarray, y: np.ndarray, Z: np.ndarray, X_new: np.ndarray, jitter: float = 1e-10
) -> tuple[np.ndarray, np.ndarray]:
    """Mean and covariance of the paper's appendix A.3, with K_XZ where its printed variance has K_ZX."""
    K_ZZ = kernel(Z) + jitter * np.eye(len(Z))
    P = q_matrix(kernel, X, Z, jitter) + s * np.eye(len(X))
    A = kernel(X_new, Z) @ np.linalg.solve(K_ZZ, kernel(Z, X))
    return A @ np.linalg.solve(P, y), kernel(X_new) - A @ np.linalg.solve(P, A.T)
