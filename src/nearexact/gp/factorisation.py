"""A sparse GP at one θ in matrices of size M: its bounds on the log marginal likelihood, and its predictions."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from torch import Tensor

from nearexact.gp.bounds import Interval, LikelihoodBounds, likelihood
from nearexact.gp.linalg import cholesky_log_det, dot, solve_columns
from nearexact.gp.posterior import RowSums, SparsePosterior
from nearexact.gp.safety import Numerics, Repairs, jittered_cholesky
from nearexact.kernels.base import Cross, Kernel


@dataclass(frozen=True, eq=False)
class Factorisation:
    """A sparse GP at one θ, in matrices of size M: whatever is asked of it follows from these."""

    kernel: Kernel
    noise_variance: float  # s
    Z: Tensor  # inducing points [M, D]
    features_Z: Tensor  # features of Z [M, F]
    cross: Cross  # k(·, Z) at these parameters
    L: Tensor  # chol(K_ZZ + jitter·I)  [M, M]
    jitter: float
    direct: bool  # whether G and b were computed without V
    merges: bool  # whether the second sweep may solve once instead of for each chunk
    n: int
    y: Tensor  # targets, scaled where rows are  [N], or [N, T]; empty where rows are elsewhere
    yy: float  # yᵀy, summed over the targets, as everything else that is one number
    G: Tensor  # V Vᵀ, V = L⁻¹ K_ZX  [M, M]
    b: Tensor  # V y  [M], or [M, T]
    trace: float  # tr(K_XX − Q_XX), NaN where it is negative beyond repair
    trace_repaired: bool
    residuals: Tensor | None  # d_n = k(x_n, x_n) − q(x_n, x_n) of rows that are here, NaN where beyond repair  [N]
    log_residuals: float | None  # Σ log(1 + d_n/s), where asked for
    repairs: Repairs
    numerics: Numerics
    # Where noise differs from row to row: V, y, trace and residuals are then those of scaled rows (row_noise.py).
    scales: Tensor | None = None  # ω  [N]
    diagonal: Tensor | None = None  # k(x, x)  [N]
    # By how much each d_n may be off, judged by how far below zero rounding has brought any of them.
    residual_error: float = 0.0
    earlier: RowSums | None = None  # of rows that are no longer at hand: n, yy, G, b and the trace have them already

    @property
    def targets(self) -> int:
        """How many columns y has."""
        return self.b[0].numel()

    @cached_property
    def L_B(self) -> Tensor:
        """Cholesky factor of B = I + G/s: [M, M]."""
        B = self.G / self.noise_variance  # VVᵀ/s  [M, M]
        B.diagonal().add_(1.0)
        return jittered_cholesky(B, self.repairs, what="I + VVᵀ/s", first_jitter=0.0, numerics=self.numerics)[0]

    @cached_property
    def w(self) -> Tensor:
        """B⁻¹b: [M], or [M, T]."""
        return solve_columns(self.L_B, self.b)

    @cached_property
    def log_det(self) -> float:
        """log|Q + sI|."""
        scaled = self.n * math.log(self.noise_variance) + float(cholesky_log_det(self.L_B))
        return scaled if self.scales is None and self.earlier is None else scaled - self._log_scales

    @cached_property
    def _quadratic(self) -> float:
        """yᵀ(Q + sI)⁻¹y."""
        return (self.yy - dot(self.b, self.w) / self.noise_variance) / self.noise_variance

    @cached_property
    def elbo(self) -> float:
        """Lower bound on the log marginal likelihood (Titsias 2009)."""
        return self._likelihood(self._quadratic + self.targets * self.trace / self.noise_variance)

    @cached_property
    def tight_bound(self) -> float:
        """Lower bound that is never below the ELBO (Titsias 2025): Σ log(1 + d_n/s) in the place of tr(K − Q)/s."""
        return self._likelihood(self._quadratic + self.targets * self._log_residuals)

    @cached_property
    def upper_bound(self) -> float:
        """Upper bound on the log marginal likelihood (Titsias 2014)."""
        return self._likelihood(self._least_quadratic)

    @cached_property
    def bounds(self) -> LikelihoodBounds:
        """What all of these say together."""
        log_residuals = math.nan if self.log_residuals is None else self._log_residuals
        excesses = [self.trace / self.noise_variance, log_residuals]
        excess = min((excess for excess in excesses if math.isfinite(excess)), default=math.inf)
        excess += self._trace_error / self.noise_variance
        least = self._least_quadratic if math.isfinite(self.trace) else -math.inf
        # K̂ ⪰ Q + sI, up to the same error.
        share = self.residual_error / self.noise_variance
        most = self._quadratic / (1.0 - share) if share < 1.0 else math.inf
        log_det = Interval(self.log_det - self._trace_error / self.noise_variance, self.log_det + excess)
        return LikelihoodBounds(self.n, self.elbo, log_det, Interval(least, most), self.targets)

    @property
    def _trace_error(self) -> float:
        """How much larger tr(K − Q) may be than what rounding has left of it."""
        return self.n * self.residual_error

    @cached_property
    def _log_residuals(self) -> float:
        """Σ log(1 + d_n/s)."""
        assert self.log_residuals is not None
        return self.log_residuals if self.earlier is None else self.log_residuals + self.earlier.log_residuals

    @cached_property
    def _log_scales(self) -> float:
        """Σ log ω_n²."""
        logs = 0.0 if self.scales is None else 2.0 * float(self.scales.log().sum())
        return logs if self.earlier is None else logs + self.earlier.log_scales

    @cached_property
    def _least_quadratic(self) -> float:
        """yᵀ(Q + cI)⁻¹y with c = s + tr(K − Q): not more than yᵀ(K + sI)⁻¹y."""
        c = self.noise_variance + self.trace + self._trace_error
        if not math.isfinite(c):
            return math.nan
        C = self.G.clone()
        C.diagonal().add_(c)  # cI + G  [M, M]
        L_C, _ = jittered_cholesky(C, self.repairs, what="cI + VVᵀ", first_jitter=0.0, numerics=self.numerics)
        return (self.yy - dot(self.b, solve_columns(L_C, self.b))) / c

    def _likelihood(self, rest: float) -> float:
        return likelihood(self.n, self.log_det, rest, self.targets)

    def posterior(self) -> SparsePosterior:
        """The predictive distribution, independent of the data."""
        s, sums = self.noise_variance, None
        if self.log_residuals is not None:
            sums = RowSums(self.n, self.yy, self.trace, self._log_residuals, self._log_scales, self.residual_error)
        return SparsePosterior(self.kernel, s, self.Z, self.L, self.L_B, self.w / s, self.repairs, sums)
