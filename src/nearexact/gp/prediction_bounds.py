"""Bounds on what the exact GP would predict at a row x, from any approximate solutions of its linear systems.

With K̂ = K + sI and k = k(X, x), the exact GP has the mean kᵀK̂⁻¹y and the variance k(x, x) − kᵀK̂⁻¹k. Take any vectors v
(nearly K̂⁻¹y) and w (nearly K̂⁻¹k), with residuals r = y − K̂v and ρ = k − K̂w, and any function f = Σ_j c_j k(·, z_j):

    rᵀK̂⁻¹r   ≤  |r − f(X)|²/s + |f|²                                        |f|² = cᵀK_ZZ c
    mean     =  kᵀv + wᵀr + ρᵀK̂⁻¹r,  the last term at most √(ρᵀK̂⁻¹ρ)·√(rᵀK̂⁻¹r)
    variance ≤  k(x, x) − kᵀw − ρᵀw                                          the mean squared error of wᵀy as a guess
    variance ≥  g(x)² / (|g|² + |g(X)|²/s)                                   g = k(·, x) − Σ_i w_i k(·, x_i) − f

They hold for whatever v, w and c come from, so that neither an inaccurate factorisation nor jitter can make them wrong.
docs/certificate.md has the proofs. Only what is evaluated here is rounded, and each bound has an allowance for that:
with τ the error of a kernel value relative to √(k(x, x) k(z, z)), plus that of a sum relative to the sum of absolute
values, the i-th entry of a product Kw is off by at most τ·√k(x_i, x_i)·Σ_j √k(x_j, x_j)|w_j|. The `slack` below adds
these up; factors 4 cover the few further roundings.

Where noise differs from row to row all of this is of scaled rows (row_noise.py): K, k and y stand for ΩKΩ, Ωk and Ωy,
f(X) and g(X) for Ωf(X) and Ωg(X). Mean and variance are the same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from nearexact.gp.kernel_product import KernelProduct
from nearexact.gp.rounding import EPS, KernelRounding, sum_rounding
from nearexact.gp.row_noise import RowNoise, scaled_rows
from nearexact.kernels.base import Kernel

Check = Callable[[], None]
SCALE_ROUNDING = 8.0 * EPS  # of scaled entries: each scale is off by less than 3 eps, and there are two of them


@dataclass(frozen=True, eq=False)
class PredictionBounds:
    """Where the exact GP's mean and variance of the latent function lie, for each of C rows: tensors [C]."""

    mean_lower: Tensor
    mean_upper: Tensor
    variance_lower: Tensor
    variance_upper: Tensor

    def meet(self, other: PredictionBounds) -> PredictionBounds:
        """What both prove; where one of them could not be computed, what the other one does."""
        return PredictionBounds(
            torch.fmax(self.mean_lower, other.mean_lower),
            torch.fmin(self.mean_upper, other.mean_upper),
            torch.fmax(self.variance_lower, other.variance_lower),
            torch.fmin(self.variance_upper, other.variance_upper),
        )

    def of(self, rows: Tensor) -> PredictionBounds:
        """Those of some rows."""
        return PredictionBounds(*(part[rows] for part in self._parts()))

    def update(self, rows: Tensor, other: PredictionBounds) -> None:
        """Meet the bounds of some rows with others, in place."""
        for part, better in zip(self._parts(), self.of(rows).meet(other)._parts(), strict=True):
            part[rows] = better

    def _parts(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return self.mean_lower, self.mean_upper, self.variance_lower, self.variance_upper


@dataclass(frozen=True, eq=False)
class Explanation:
    """Functions f = Σ_j c_j k(·, z_j), one for each of C columns, that come near to given values at X."""

    at_new: Tensor  # f(x) at the row x that belongs to the column, 0 where none does  [C]
    at_X: Tensor  # f(X)  [N, C]
    squared_norms: Tensor  # not less than cᵀK_ZZ c  [C]
    sizes: Tensor  # Σ_j |c_j| √k(z_j, z_j)  [C]


@dataclass(frozen=True, eq=False)
class Solution:
    """v, nearly K̂⁻¹y, and what is known about its error."""

    v: Tensor  # [N]
    r: Tensor  # y − K̂v  [N]
    squared_error: float  # not less than rᵀK̂⁻¹r


@dataclass(frozen=True, eq=False)
class Columns:
    """The kernel between all data and C rows."""

    X_new: Tensor  # these rows  [C, D]
    K: Tensor  # k(X, X_new)  [N, C]
    k_new: Tensor  # k(x, x)  [C]
    rounding: Tensor  # τ of each column  [C]

    def of(self, which: Tensor) -> Columns:
        """Some of them."""
        return Columns(self.X_new[which], self.K[:, which], self.k_new[which], self.rounding[which])


class ExactSystem:
    """K̂ = K + sI of all data: its columns, products with it, and what rounding does to them."""

    def __init__(
        self, kernel: Kernel, noise_variance: float, X: Tensor, y: Tensor, row_noise: RowNoise | None = None
    ) -> None:
        self.kernel, self.noise_variance, self.X = kernel, noise_variance, X
        self.scales = None if row_noise is None else row_noise.scales(noise_variance)
        self.y = scaled_rows(y, self.scales)
        self.product = KernelProduct(kernel, noise_variance, X, scales=self.scales)
        self._unscaled_k = torch.cat([kernel.diagonal(block) for block in self.product.features])
        self.k_X = self._unscaled_k if self.scales is None else self._unscaled_k * self.scales.square()  # k(x, x)  [N]
        self.sizes = self.k_X.sqrt()
        self.kernel_rounding = KernelRounding(kernel, X)
        self.centre = self.kernel_rounding.centre
        self._scale_rounding = 0.0 if self.scales is None else SCALE_ROUNDING
        self.rounding = self.kernel_rounding.among_data + sum_rounding(len(X)) + self._scale_rounding  # τ

    def columns(self, X_new: Tensor) -> Columns:
        """The kernel between the data and some rows."""
        features = self.kernel.features(X_new, self.centre)
        cross, k_new = self.kernel.against(features), self.kernel.diagonal(features)
        K = torch.cat([cross.values(block) for block in self.product.features])
        rounding = self.kernel_rounding.of(self.X, X_new, K, self._unscaled_k, k_new) + sum_rounding(len(K))
        rounding += self._scale_rounding
        return Columns(X_new, scaled_rows(K, self.scales), k_new, rounding.clamp_(min=self.rounding))

    def residuals(self, B: Tensor, W: Tensor, check: Check = lambda: None) -> Tensor:
        """B − K̂W, from this definition."""
        return B - self.product(W, check)

    def solution(self, v: Tensor, r: Tensor, explanation: Explanation | None) -> Solution:
        """What is known about v, with residual r."""
        nothing = torch.zeros_like(v[:1])  # y is given: there is no kernel value in it to be rounded
        R, tau = r[:, None], torch.full_like(nothing, self.rounding)
        slack = self._residual_slack(R, v[:, None], nothing, tau)
        slack += (4.0 * EPS + self._scale_rounding) * torch.linalg.vector_norm(
            self.y
        )  # y was rounded when standardised
        bound = (torch.linalg.vector_norm(R, dim=0) + slack).square() / self.noise_variance  # f = 0
        if explanation is not None:
            bound = torch.fmin(bound, self._explained(R, slack, explanation, tau))
        return Solution(v, r, float(bound))

    def bounds(
        self, columns: Columns, solution: Solution, W: Tensor, R: Tensor, explanation: Explanation | None
    ) -> PredictionBounds:
        """What W [N, C] proves, with residuals R = K − K̂W for the columns K."""
        K, k_new, tau = columns.K, columns.k_new, columns.rounding
        s, size, norm = self.noise_variance, columns.k_new.sqrt(), torch.linalg.vector_norm
        reach = size + self.sizes @ W.abs()  # √k(x, x) + Σ_i |w_i| √k(x_i, x_i)
        slack = 4.0 * tau * (reach.square() + s * W.square().sum(0))
        kw, rw = (K * W).sum(0), (R * W).sum(0)
        upper = k_new - kw - rw + slack
        residual_slack = self._residual_slack(R, W, size, tau)
        squared_errors = (norm(R, dim=0) + residual_slack).square() / s  # f = 0
        lower = _ratio(k_new - kw - slack, k_new - kw + rw + slack + squared_errors)
        if explanation is not None:
            explained, f = self._explained(R, residual_slack, explanation, tau), explanation.at_new
            slack = slack + 4.0 * tau * size * explanation.sizes
            lower = torch.fmax(lower, _ratio(k_new - kw - f - slack, k_new - kw + rw - 2.0 * f + slack + explained))
            squared_errors = torch.fmin(squared_errors, explained)
        squared_errors = torch.fmin(squared_errors, upper - lower)  # the mean squared error is the variance + ρᵀK̂⁻¹ρ
        v, r = solution.v, solution.r
        mean = v @ K + r @ W
        error = squared_errors.clamp(min=0.0).sqrt() * solution.squared_error**0.5
        error += 4.0 * tau * (reach * float(self.sizes @ v.abs()) + norm(W, dim=0) * float(s * norm(v) + norm(r)))
        return PredictionBounds(mean - error, mean + error, lower, upper)

    def trivial_bounds(self, k_new: Tensor) -> PredictionBounds:
        """What is known without a column: v = w = 0."""
        reach = (k_new * float(self.y.square().sum()) / self.noise_variance).sqrt() * (1.0 + self.rounding)
        return PredictionBounds(-reach, reach, torch.zeros_like(k_new), k_new * (1.0 + self.rounding))

    def _residual_slack(self, R: Tensor, W: Tensor, sizes: Tensor, tau: Tensor) -> Tensor:
        """How much longer B − K̂W may be than what was computed of it, for entries of B of the size √k(x, x)·sizes."""
        norm = torch.linalg.vector_norm
        noise = self.noise_variance * norm(W, dim=0)
        reach = sizes + self.sizes @ W.abs()
        slack: Tensor = tau * reach * float(norm(self.sizes)) + 4.0 * EPS * (noise + norm(R, dim=0))
        return slack

    def _explained(self, R: Tensor, residual_slack: Tensor, explanation: Explanation, tau: Tensor) -> Tensor:
        """|r − f(X)|²/s + |f|², rounded up: [C]."""
        norm = torch.linalg.vector_norm
        slack = residual_slack + tau * explanation.sizes * float(norm(self.sizes))
        rest: Tensor = norm(R - explanation.at_X, dim=0) + slack
        return (rest.square() / self.noise_variance + explanation.squared_norms) * (1.0 + tau)


def _ratio(g: Tensor, squared: Tensor) -> Tensor:
    """g(x)²/(|g|² + |g(X)|²/s), and 0 where rounding leaves nothing of it."""
    return torch.where((g > 0.0) & (squared > 0.0), g * (g / squared), 0.0)  # g² may be too large a number
