"""Linear algebra that the models share: solves by rows, Gram matrices, congruences, Gaussian draws."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from nearexact.gp.safety import NumericalError, Repairs, clamp_variances, jittered_cholesky

GRAM_BLOCK = 128  # G is symmetric: only blocks of this many columns up to its diagonal are computed


def solve_rows(L: Tensor, A: Tensor, *, transposed: bool = False) -> Tensor:
    """Each row a of A replaced by L⁻¹a, or by L⁻ᵀa if transposed, in place; L is lower triangular."""
    factor = L if transposed else L.T
    torch.linalg.solve_triangular(factor, A, upper=not transposed, left=False, out=A)
    return A


def add_gram(G: Tensor, V: Tensor) -> None:
    """Add VᵀV to the lower triangle of G, block row by block row: half the work of the full product."""
    m = len(G)
    for start in range(0, m, GRAM_BLOCK):
        stop = min(start + GRAM_BLOCK, m)
        G[start:stop, :stop].addmm_(V[:, start:stop].T, V[:, :stop])


def mirror_lower(G: Tensor) -> Tensor:
    """The symmetric matrix with the lower triangle of G."""
    return torch.tril(G) + torch.tril(G, -1).T


def congruence(L: Tensor, S: Tensor, *, transposed: bool = False) -> Tensor:
    """L⁻¹ S L⁻ᵀ, or L⁻ᵀ S L⁻¹ if transposed, for symmetric S."""
    half = solve_rows(L, S.clone(), transposed=transposed)  # S L⁻ᵀ
    return solve_rows(L, half.T.contiguous(), transposed=transposed)


def mean_condition(L: Tensor, limit: float) -> float:
    """The condition of K_ZZ = LLᵀ in the mean over its spectrum, 1 at best; infinity where clearly above the limit.

    Triangular solves with every chunk are two fifths of the arithmetic. Solving with the sums over the chunks instead
    saves one or both, but lets rounding errors grow with this figure.
    """
    if float(L.diagonal().max() / L.diagonal().min()) ** 2 > limit * len(L) ** 2:  # a lower bound, and for free
        return math.inf
    inverse = torch.linalg.solve_triangular(L, torch.eye(len(L), dtype=L.dtype, device=L.device), upper=False)
    return float(torch.linalg.matrix_norm(L) * torch.linalg.matrix_norm(inverse) / len(L)) ** 2


def as_columns(y: Tensor) -> Tensor:
    """A vector [N] as one column [N, 1]; several columns [N, T] as they are."""
    return y[:, None] if y.ndim == 1 else y


def with_fours(rows: Tensor) -> Tensor:
    """The same rows [C, N] and rows of zeros up to a multiple of four: products with 12 take less time than with 9."""
    return torch.nn.functional.pad(rows, (0, 0, 0, -len(rows) % 4)) if len(rows) > 1 else rows


def dot(a: Tensor, b: Tensor) -> float:
    """aᵀb of two vectors, or the sum of that over their columns."""
    return float(a @ b) if a.ndim == 1 else float((a * b).sum())


def add_self_outer(A: Tensor, u: Tensor, alpha: float = 1.0) -> Tensor:
    """Add alpha·uuᵀ to A in place, for a vector u or summed over several columns."""
    return A.addr_(u, u, alpha=alpha) if u.ndim == 1 else A.addmm_(u, u.T, alpha=alpha)


def add_product(b: Tensor, V: Tensor, y: Tensor) -> None:
    """Add Vᵀy to b, for a vector y or several columns."""
    if b.ndim == 1:
        b.addmv_(V.T, y)
    else:
        b.addmm_(V.T, y)


def solve_columns(L: Tensor, b: Tensor) -> Tensor:
    """(LLᵀ)⁻¹b for a vector, or for several columns: LAPACK's own solve would copy L first."""
    half: Tensor = torch.linalg.solve_triangular(L, as_columns(b), upper=False)
    whole: Tensor = torch.linalg.solve_triangular(L.T, half, upper=True)
    return whole.view_as(b)


def cholesky_log_det(L: Tensor) -> Tensor:
    """log|L Lᵀ| from a Cholesky factor."""
    return 2.0 * L.diagonal().log().sum()


def sample_gaussian(mean: Tensor, covariance: Tensor, n_samples: int, seed: int, repairs: Repairs) -> Tensor:
    """Draws from N(mean, covariance): [n_samples, N], or [n_samples, N, T] for means [N, T] of several targets.

    Where rounding has left it eigenvalues so far below zero that no jitter mends it, these count as zero.
    """
    try:
        L, _ = jittered_cholesky(covariance.clone(), repairs, what="the predictive covariance", first_jitter=0.0)
    except NumericalError:
        if not bool(torch.isfinite(covariance).all()):
            raise
        values, vectors = torch.linalg.eigh(covariance)
        L = vectors * clamp_variances(values, repairs).sqrt()
    generator = torch.Generator(device=mean.device).manual_seed(seed)
    normal = torch.randn(n_samples, *mean.shape, generator=generator, dtype=mean.dtype, device=mean.device)
    return mean + (normal @ L.T if mean.ndim == 1 else L @ normal)
