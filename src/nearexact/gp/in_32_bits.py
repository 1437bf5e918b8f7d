"""The exact likelihood from a Cholesky factor in 32 bits, in about half the time of one in 64.

What the factor solves is solved once more for what is left, with K in 64 bits. So the quadratic form is right to far
more digits than the factor has; log determinant and inverse are the factor's own. That is enough for an optimiser on
its way where the noise is far above what 32 bits round.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from nearexact.gp.lapack import cholesky, inverse
from nearexact.gp.linalg import as_columns, dot, solve_columns
from nearexact.gp.posterior import rounding_error

FEWEST_ROWS = 1000  # of a matrix: with fewer, a factor takes hardly more time than all else
# Of the least eigenvalue that there can be, by rounding errors summed over the diagonal, and of the likelihood, in nats
# per row: far less than what is left to gain where a climb has settled.
MOST_LOST, MOST_LOST_PER_ROW = 0.5, 2e-4
MOST_LEFT = 1e-3  # of y, after the second solution
# Times the mean of the diagonal: added to every entry. Where rows have next to nothing to do with each other, products
# of entries would be below what 32 bits can hold, and processors take many times as long for such numbers.
LEAST_ENTRY = 1e-12


def suffice(n: int, relative: float) -> bool:
    """Whether 32 bits are faster for n rows and lose hardly anything, given errors relative to the noise."""
    loses_little = relative <= MOST_LOST and rounding_error(relative) <= MOST_LOST_PER_ROW * n
    return n >= FEWEST_ROWS and loses_little


class Solution(NamedTuple):
    """What an evaluation of the likelihood needs of K."""

    log_det: float  # log|K|
    quadratic: float  # yᵀK⁻¹y, summed over targets
    weights: Tensor  # K⁻¹y
    inverse: Tensor  # K⁻¹ in 32 bits, of which only the lower triangle is right  [N, N]


def solve(K: Tensor, y: Tensor, room: Tensor) -> Solution | None:
    """The log determinant of K, its inverse in `room`, and K⁻¹y; None where 32 bits are not enough after all."""
    K32 = room.copy_(K).add_(LEAST_ENTRY * float(K.diagonal().mean()))
    L, succeeded = cholesky(K32, out=room)
    if not succeeded or not bool(torch.isfinite(L.diagonal()).all()):
        return None
    weights = solve_columns(L, y.to(L.dtype)).to(y.dtype)
    weights += solve_columns(L, (y - K @ weights).to(L.dtype)).to(y.dtype)
    left = y - K @ weights
    if not float(as_columns(left).abs().max()) <= MOST_LEFT * float(as_columns(y).abs().max()):
        return None
    quadratic = dot(y, weights) + dot(weights, left)  # 2yᵀα − αᵀKα: errors of α count twice, by their square
    log_det = 2.0 * float(L.diagonal().to(K.dtype).log().sum())
    return Solution(log_det, quadratic, weights, inverse(L))
