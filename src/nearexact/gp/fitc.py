"""FITC (Snelson and Ghahramani 2006): the approximation that changes the model. y ~ N(0, Q + diag(K − Q) + sI).

It is here to be compared with: its likelihood is not a bound, and where the noise differs from place to place it
predicts better than the GP that it is meant to approximate. The data are read in chunks of rows, twice for a gradient;
`V` in the code is Vᵀ = (L⁻¹K_ZX)ᵀ of a chunk, [rows, M].
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from nearexact.gp.bounds import Interval, LikelihoodBounds
from nearexact.gp.linalg import add_gram, cholesky_log_det, congruence, mirror_lower, solve_rows
from nearexact.gp.memory import MemoryPlan, row_chunks
from nearexact.gp.parameters import ParameterLayout
from nearexact.gp.posterior import SparsePosterior
from nearexact.gp.rows import as_rows, local
from nearexact.gp.safety import DEFAULT_NUMERICS, Numerics, Repairs, jittered_cholesky
from nearexact.kernels.base import Cross, Kernel, Tensors, add_to, with_diagonal
from nearexact.limits import memory_budget
from nearexact.typing import FloatArray
from nearexact.validation import as_matrix


@dataclass(frozen=True, eq=False)
class FitcFactorisation:
    """The model at one θ."""

    kernel: Kernel
    noise_variance: float  # s
    Z: Tensor  # [M, D]
    cross: Cross  # k(·, Z)
    L: Tensor  # chol(K_ZZ + jitter·I)  [M, M]
    jitter: float
    L_B: Tensor  # chol(I + V Λ⁻¹ Vᵀ)  [M, M]
    w: Tensor  # B⁻¹ V Λ⁻¹ y  [M]
    noise: Tensor  # Λ = s + k(x, x) − q(x, x)  [N]
    clamped: Tensor  # where rounding has q(x, x) above k(x, x)  [N]
    log_likelihood: float  # of the approximate model: an estimate, no bound
    repairs: Repairs

    upper_bound: float = math.nan  # there is none

    @property
    def bounds(self) -> LikelihoodBounds:
        """None either: the likelihood of another model bounds nothing."""
        unknown = Interval(math.nan, math.nan)
        return LikelihoodBounds(len(self.noise), math.nan, unknown, unknown)

    def posterior(self) -> SparsePosterior:
        """Its predictions have the form of SGPR's, with V Λ⁻¹ Vᵀ in the place of V Vᵀ/s."""
        return SparsePosterior(self.kernel, self.noise_variance, self.Z, self.L, self.L_B, self.w, self.repairs)


class FitcObjective:
    """Negative log likelihood and its gradient as a function of θ, for fixed data and inducing points."""

    def __init__(
        self,
        kernel: Kernel,
        noise_variance: float,
        X: Any,
        y: Any,
        Z: Any,
        *,
        memory_limit: int | float | str | None = None,
        numerics: Numerics = DEFAULT_NUMERICS,
    ) -> None:
        data = local(as_rows(X, y))
        self.X, self.y = data.X, data.y
        if self.y.ndim != 1:
            raise ValueError(f"FITC is for one target, got y of shape {tuple(self.y.shape)}")
        self.Z = as_matrix(Z, "Z", self.X.device, columns=self.X.shape[1]).clone()
        self.numerics = numerics
        self.layout = ParameterLayout(kernel, self.X.shape[1], numerics)
        self.theta0 = self.layout.pack(self.layout.kernel, noise_variance)
        self.repairs = Repairs()
        self._centre = self.Z.mean(0)
        self._features_Z = self.layout.kernel.features(self.Z, self._centre)
        budget = memory_budget(memory_limit, self.X.device)
        n_features = self._features_Z.shape[1]
        self._rows = MemoryPlan.within(budget, self.layout.kernel, len(self.X), len(self.Z), n_features).rows

    def __call__(self, theta: FloatArray) -> tuple[float, FloatArray]:
        """−log likelihood and its gradient at θ; NaN where θ is not finite."""
        return self.layout.negated(self.value_and_gradient, theta)

    def factorise(self, kernel: Kernel, noise_variance: float, *, residuals: bool = False) -> FitcFactorisation:
        """First sweep: everything about the model at these hyperparameters but its gradient.

        `residuals` is there for the same interface as SGPR's: they are a part of this model in any case.
        """
        kernel = self.layout.check(kernel)
        n, m = len(self.X), len(self.Z)
        cross = kernel.against(self._features_Z)
        K_ZZ = with_diagonal(cross.values(self._features_Z), kernel.diagonal(self._features_Z))
        L, jitter = jittered_cholesky(K_ZZ, self.repairs, what="K_ZZ", numerics=self.numerics)
        noise, clamped = self.X.new_empty(n), torch.zeros(n, dtype=torch.bool, device=self.X.device)
        B, c = self.X.new_zeros(m, m), self.X.new_zeros(m)
        for rows, features_X in self._chunks(kernel):
            V = solve_rows(L, cross.values(features_X))
            d = kernel.diagonal(features_X) - V.square().sum(1)  # k(x, x) − q(x, x)
            clamped[rows] = d < 0.0
            noise[rows] = noise_variance + d.clamp_(min=0.0)
            c.addmv_(V.T, self.y[rows] / noise[rows])  # V Λ⁻¹ y
            add_gram(B, V.div_(noise[rows].sqrt()[:, None]))  # V Λ⁻¹ Vᵀ
        B = mirror_lower(B)
        B.diagonal().add_(1.0)
        L_B, _ = jittered_cholesky(B, self.repairs, what="I + VΛ⁻¹Vᵀ", first_jitter=0.0, numerics=self.numerics)
        w = torch.cholesky_solve(c[:, None], L_B)[:, 0]
        log_det = n * math.log(2.0 * math.pi) + float(noise.log().sum() + cholesky_log_det(L_B))  # log|2π(Q + Λ)|
        quadratic = float((self.y.square() / noise).sum() - c @ w)  # yᵀ(Q + Λ)⁻¹y
        return FitcFactorisation(
            kernel=kernel,
            noise_variance=noise_variance,
            Z=self.Z,
            cross=cross,
            L=L,
            jitter=jitter,
            L_B=L_B,
            w=w,
            noise=noise,
            clamped=clamped,
            log_likelihood=-0.5 * (log_det + quadratic),
            repairs=self.repairs,
        )

    def value_and_gradient(self, kernel: Kernel, noise_variance: float) -> tuple[float, Tensors, float]:
        """Log likelihood, and its derivatives by the kernel's parameters and by the noise variance.

        With R = (Q + Λ)⁻¹ and α = Ry, the derivative by Q + Λ is ½(ααᵀ − R). Its diagonal g goes to k(x, x) and s
        alone, since q(x, x) cancels there: V̄ = wαᵀ − B⁻¹VΛ⁻¹ − 2V diag(g).
        """
        f = self.factorise(kernel, noise_variance)
        W = torch.zeros_like(f.L)  # V̄Vᵀ  [M, M]
        gradients: Tensors = {}
        by_noise = 0.0
        for rows, features_X in self._chunks(kernel):
            V = solve_rows(f.L, f.cross.values(features_X))
            noise, free = f.noise[rows], ~f.clamped[rows]
            U = solve_rows(f.L_B, V.clone())  # L_B⁻¹v
            alpha = (self.y[rows] - V @ f.w) / noise
            g = 0.5 * (alpha.square() - 1.0 / noise + U.square().sum(1) / noise.square())  # ½(α² − R_nn)
            by_noise += float(g.sum())
            g.mul_(free)  # a clamped k(x, x) − q(x, x) is the constant 0
            V_bar = solve_rows(f.L_B, U, transposed=True).div_(-noise[:, None]).addr_(alpha, f.w)
            V_bar.addcmul_(V, g[:, None], value=-2.0)
            W.addmm_(V_bar.T, V)
            f.cross.add_adjoint(features_X, solve_rows(f.L, V_bar, transposed=True), scratch=V)
            add_to(gradients, kernel.diagonal_vjp(features_X, g))
        K_ZZ_bar = congruence(f.L, 0.5 * (W + W.T), transposed=True).mul_(-0.5)  # −½ L⁻ᵀ V̄Vᵀ L⁻¹
        f.cross.add_adjoint(self._features_Z, K_ZZ_bar)
        add_to(gradients, f.cross.gradients())
        return f.log_likelihood, gradients, by_noise

    def _chunks(self, kernel: Kernel) -> Iterator[tuple[slice, Tensor]]:
        """Rows and their features."""
        for rows in row_chunks(len(self.X), self._rows):
            yield rows, kernel.features(self.X[rows], self._centre)
