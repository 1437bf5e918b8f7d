"""Noise that differs from row to row: D = diag(s·factors + known) in the place of sI, with s learnt.

A GP with such noise is one with noise sI whose rows are scaled. With Ω = diag(ω), ω_n = √(s/D_n):

    K + D   =  Ω⁻¹ (ΩKΩ + sI) Ω⁻¹
    log|K + D|         =  log|ΩKΩ + sI| − Σ log ω_n²
    yᵀ(K + D)⁻¹y       =  (Ωy)ᵀ (ΩKΩ + sI)⁻¹ (Ωy)
    k(x, X)(K + D)⁻¹y  =  (Ωk(X, x))ᵀ (ΩKΩ + sI)⁻¹ (Ωy)

So every inequality, and every algorithm that knows one noise variance only, serves unchanged: it sees ΩKΩ and Ωy.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from scipy.optimize import minimize_scalar
from torch import Tensor

from nearexact.noise_only import LEAST_VARIANCE, noise_only_likelihood

TRIED_VARIANCES = 40


@dataclass(frozen=True, eq=False)
class RowNoise:
    """Row n has the noise variance s·factors[n] + known[n]: tensors [N], factors positive, known not negative."""

    factors: Tensor
    known: Tensor

    def __post_init__(self) -> None:
        if self.factors.ndim != 1 or self.factors.shape != self.known.shape:
            raise ValueError(
                "factors and known noise must be vectors of one length, got shapes"
                f" {tuple(self.factors.shape)} and {tuple(self.known.shape)}"
            )
        if not bool(torch.isfinite(self.factors + self.known).all()):
            raise ValueError("factors and known noise must be finite")
        if not bool((self.factors > 0.0).all()) or bool((self.known < 0.0).any()):
            raise ValueError("factors must be positive, and known noise must not be negative")

    def __len__(self) -> int:
        return len(self.factors)

    def variances(self, s: float) -> Tensor:
        """D  [N]."""
        return s * self.factors + self.known

    def scales(self, s: float) -> Tensor:
        """ω = √(s/D)  [N]."""
        return (s / self.variances(s)).sqrt_()

    def shares(self, s: float) -> Tensor | None:
        """∂ log D/∂ log s, the share of the learnt noise in that of each row [N]; None where that is all of it."""
        return s * self.factors / self.variances(s) if bool(self.known.any()) else None

    def of(self, rows: Tensor | slice) -> RowNoise:
        """That of some rows."""
        return RowNoise(self.factors[rows], self.known[rows])

    def to(self, device: torch.device) -> RowNoise:
        """The same on a device."""
        return RowNoise(self.factors.to(device), self.known.to(device))

    def followed_by(self, other: RowNoise) -> RowNoise:
        """That of these rows and then others."""
        return RowNoise(torch.cat([self.factors, other.factors]), torch.cat([self.known, other.known]))


def noise_of(row_noise: RowNoise | None, rows: Tensor | slice) -> RowNoise | None:
    """That of some rows, where it differs at all."""
    return None if row_noise is None else row_noise.of(rows)


def check_noise(row_noise: RowNoise | None, X: Tensor) -> RowNoise | None:
    """The noise of the rows of X, on their device; a ValueError if it is that of another number of rows."""
    if row_noise is None:
        return None
    if len(row_noise) != len(X):
        raise ValueError(f"noise of {len(X)} rows is needed, got that of {len(row_noise)}")
    return row_noise.to(X.device)


def noise_variances(row_noise: RowNoise | None, s: float) -> Tensor | float:
    """D where noise differs from row to row [N], else s."""
    return s if row_noise is None else row_noise.variances(s)


def scaled_rows(A: Tensor, scales: Tensor | None) -> Tensor:
    """ΩA for a vector [N] or several columns [N, C]; A itself where rows have no scales."""
    if scales is None:
        return A
    return A * (scales if A.ndim == 1 else scales[:, None])


def noise_only(y: Tensor, row_noise: RowNoise | None, least_variance: float = LEAST_VARIANCE) -> float:
    """The log likelihood of the constant predictor: what a model must beat to be one."""
    if row_noise is None:
        return noise_only_likelihood(y, least_variance)
    squares, targets = (y.square() if y.ndim == 1 else y.square().sum(1)), y[0].numel()

    def likelihood(s: float) -> float:
        variances = row_noise.variances(s)
        return -0.5 * float((targets * (2.0 * math.pi * variances).log() + squares / variances).sum())

    # It need not have one maximum only, so it is looked at everywhere before the best place is refined.
    most = max(float((squares / row_noise.factors).max()), 10.0 * least_variance)
    grid = np.geomspace(least_variance, most, TRIED_VARIANCES)
    values = [likelihood(float(s)) for s in grid]
    best = int(np.argmax(values))
    around = math.log(grid[max(best - 1, 0)]), math.log(grid[min(best + 1, len(grid) - 1)])
    refined = minimize_scalar(lambda log: -likelihood(math.exp(log)), bounds=around, method="bounded")
    return max(values[best], -float(refined.fun))
