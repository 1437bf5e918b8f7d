"""Sparse GP regression (Titsias 2009): ELBO, full gradient, upper bound and posterior from one factorisation.

The data are read in chunks of rows, twice for a gradient: the first sweep reduces them to matrices of size M, the
second hands the adjoint of K_XZ to the kernel chunk by chunk. No autodiff graph and no [N, N] array is ever made; the
only [N, M] array is V, and it is recomputed instead of stored where memory does not allow it.

Here Vᵀ = K_XZ L⁻ᵀ is kept by rows of X, so that a chunk is contiguous: `V` below is always [rows, M].
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nearexact.gp.chunks import FEWEST_ROWS, chunk_rows, row_chunks, solve_rows
from nearexact.gp.data import as_training_data
from nearexact.gp.linalg import (
    DEFAULT_NUMERICS,
    Numerics,
    Repairs,
    clamp_variances,
    jittered_cholesky,
    log_determinant,
    repair_trace,
    sample_gaussian,
)
from nearexact.gp.parameters import ParameterLayout
from nearexact.kernels.base import FloatArray, Kernel, Tensors, add_to, as_matrix
from nearexact.limits import memory_budget

GRAM_BLOCK = 128  # G is symmetric: only blocks of this many columns up to its diagonal are computed
SQUARE_ARRAYS = 8  # M x M arrays that are alive at once, at most


@dataclass(frozen=True)
class Factorisation:
    """A sparse GP at one θ, in matrices of size M: whatever is asked of it follows from these."""

    kernel: Kernel
    noise_variance: float  # s
    Z: Tensor  # inducing points [M, D]
    of_Z: Tensor  # features of Z [M, F]
    L: Tensor  # chol(K_ZZ + jitter·I)  [M, M]
    jitter: float
    n: int
    yy: float  # yᵀy
    G: Tensor  # V Vᵀ, V = L⁻¹ K_ZX  [M, M]
    b: Tensor  # V y  [M]
    trace: float  # tr(K_XX − Q_XX), NaN where it is negative beyond repair
    trace_repaired: bool
    repairs: Repairs

    @cached_property
    def L_B(self) -> Tensor:
        """Cholesky factor of B = I + G/s: [M, M]."""
        B = self.G / self.noise_variance  # VVᵀ/s  [M, M]
        B.diagonal().add_(1.0)
        return jittered_cholesky(B, self.repairs, what="I + VVᵀ/s", first_jitter=0.0)[0]

    @cached_property
    def w(self) -> Tensor:
        """B⁻¹b: [M]."""
        return torch.cholesky_solve(self.b[:, None], self.L_B)[:, 0]

    @cached_property
    def elbo(self) -> float:
        """Lower bound on the log marginal likelihood (Titsias 2009)."""
        s = self.noise_variance
        log_det = self.n * math.log(2.0 * math.pi * s) + float(log_determinant(self.L_B))  # log|2π(Q + sI)|
        quadratic = (self.yy - float(self.b @ self.w) / s) / s  # yᵀ(Q + sI)⁻¹y
        return -0.5 * (log_det + quadratic + self.trace / s)

    @cached_property
    def upper_bound(self) -> float:
        """Upper bound on the log marginal likelihood (Titsias 2014): yᵀ(Q + cI)⁻¹y with c = s + tr(K − Q)."""
        s, c = self.noise_variance, self.noise_variance + self.trace
        if not math.isfinite(c):
            return math.nan
        C = self.G.clone()
        C.diagonal().add_(c)  # cI + G  [M, M]
        L_C, _ = jittered_cholesky(C, self.repairs, what="cI + VVᵀ", first_jitter=0.0)
        explained = float(self.b @ torch.cholesky_solve(self.b[:, None], L_C)[:, 0])
        log_det = self.n * math.log(2.0 * math.pi * s) + float(log_determinant(self.L_B))
        return -0.5 * (log_det + (self.yy - explained) / c)

    def posterior(self) -> SparsePosterior:
        """The predictive distribution, independent of the data."""
        s = self.noise_variance
        return SparsePosterior(self.kernel, s, self.Z, self.L, self.L_B, self.w / s, self.repairs)


@dataclass(frozen=True)
class SparsePosterior:
    """Predictions of a sparse GP from quantities of size M; the data are no longer needed."""

    kernel: Kernel
    noise_variance: float
    Z: Tensor  # [M, D]
    L: Tensor  # chol(K_ZZ + jitter·I)  [M, M]
    L_B: Tensor  # chol(I + VVᵀ/s)  [M, M]
    weights: Tensor  # B⁻¹b/s  [M]
    repairs: Repairs

    def predict(self, X: Any) -> tuple[Tensor, Tensor]:
        """Mean and variance [N] of the latent function at each row of X; in chunks, so N may be millions."""
        inputs = as_matrix(X, "X", self.Z.device)
        mean, variance = inputs.new_empty(len(inputs)), inputs.new_empty(len(inputs))
        for rows in row_chunks(len(inputs), chunk_rows(len(self.Z))):
            features, V, U = self._projections(inputs[rows])
            mean[rows] = V @ self.weights
            # k(x, x) − v*ᵀv* + v*ᵀB⁻¹v*
            variance[rows] = self.kernel.diagonal(features) - V.square_().sum(1) + U.square_().sum(1)
        return mean, clamp_variances(variance, self.repairs)

    def joint(self, X: Any) -> tuple[Tensor, Tensor]:
        """Mean [N] and full covariance [N, N] of the latent function at the rows of X."""
        inputs = as_matrix(X, "X", self.Z.device)
        features, V, U = self._projections(inputs)
        covariance = self.kernel.gram(features).addmm_(V, V.T, alpha=-1.0).addmm_(U, U.T)
        clamp_variances(covariance.diagonal(), self.repairs)
        return V @ self.weights, covariance

    def sample(self, X: Any, n_samples: int, seed: int) -> Tensor:
        """Draws of the latent function at the rows of X: [n_samples, N]."""
        return sample_gaussian(*self.joint(X), n_samples, seed, self.repairs)

    def _projections(self, X: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Features of each row x, and L⁻¹k_Zx and L_B⁻¹L⁻¹k_Zx, [N, M] both."""
        centre = self.Z.mean(0)
        features = self.kernel.features(X, centre)
        V = solve_rows(self.L, self.kernel.cross(features, self.kernel.features(self.Z, centre)))
        return features, V, solve_rows(self.L_B, V.clone())


class SparseObjective:
    """−ELBO and its gradient as a function of θ, for fixed data and inducing points.

    Buffers are allocated at the first use and kept, since fresh [N, M] arrays would cost more than the arithmetic. Not
    for use by two threads at once.
    """

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
        self.X, self.y = as_training_data(X, y)
        self.Z = as_matrix(Z, "Z", self.X.device).contiguous()
        if self.Z.shape[1] != self.X.shape[1] or len(self.Z) == 0:
            raise ValueError(
                f"Z must have the {self.X.shape[1]} columns of X and at least one row, got shape {tuple(self.Z.shape)}"
            )
        self.numerics = numerics
        kernel = kernel.for_inputs(self.X.shape[1])
        self.layout = ParameterLayout(kernel, numerics)
        self.theta0 = self.layout.pack(kernel, noise_variance)
        self.repairs = Repairs()
        self._centre = self.Z.mean(0)
        n_features = kernel.features(self.Z[:1], self._centre).shape[1]
        budget = memory_budget(memory_limit, self.X.device)
        self.plan = MemoryPlan.within(budget, len(self.X), len(self.Z), n_features)
        self._yy = float(self.y @ self.y)
        self._features = kernel.features(self.X, self._centre) if self.plan.keeps_features else None
        self._stored: Tensor | None = None  # V of all rows, or of one chunk where it is recomputed
        self._adjoint: Tensor | None = None  # adjoint of K_XZ of one chunk

    def __call__(self, theta: FloatArray) -> tuple[float, FloatArray]:
        """−ELBO and its gradient at θ; NaN where the trace is beyond repair or θ is not finite."""
        theta = np.asarray(theta, dtype=np.float64)
        if not np.isfinite(theta).all():
            return math.nan, np.full_like(theta, math.nan)
        elbo, by_parameter, by_noise = self.value_and_gradient(*self.layout.unpack(theta))
        return -elbo, -self.layout.gradient(theta, by_parameter, by_noise)

    def factorise(self, kernel: Kernel, noise_variance: float) -> Factorisation:
        """First sweep: everything about the model at these hyperparameters but its gradient."""
        of_Z = kernel.features(self.Z, self._centre)
        L, jitter = jittered_cholesky(kernel.gram(of_Z), self.repairs, what="K_ZZ", numerics=self.numerics)
        n, m = len(self.X), len(self.Z)
        G, b, q = self.X.new_zeros(m, m), self.X.new_zeros(m), self.X.new_empty(n)
        cross = kernel.against(of_Z)
        for rows in self._chunks():
            V = solve_rows(L, cross.values(self._of_rows(kernel, rows), out=self._rows_of_V(rows)))
            add_gram(G, V)
            b.addmv_(V.T, self.y[rows])
            torch.linalg.vector_norm(V, dim=1, out=q[rows])
        mirror_lower(G)
        q.square_()  # q(x, x) = |v|²  [N]
        k = torch.cat([kernel.diagonal(of_X) for of_X in self._features_in_pieces(kernel)])  # k(x, x)  [N]
        trace, largest_ratio = float((k - q).sum()), float((q / k).max())
        checked, repaired = repair_trace(trace, largest_ratio, self.repairs, self.numerics)
        return Factorisation(
            kernel,
            noise_variance,
            self.Z,
            of_Z,
            L,
            jitter,
            len(self.X),
            self._yy,
            G,
            b,
            checked,
            repaired,
            self.repairs,
        )

    def value_and_gradient(self, kernel: Kernel, noise_variance: float) -> tuple[float, Tensors, float]:
        """ELBO, and its derivatives by the kernel's parameters and by the noise variance."""
        f = self.factorise(kernel, noise_variance)
        if not math.isfinite(f.elbo):
            return f.elbo, {n: torch.full(v.shape, math.nan) for n, v in kernel.parameters.items()}, math.nan
        s, G, b, w, L = f.noise_variance, f.G, f.b, f.w, f.L
        trace_counts = 0.0 if f.trace_repaired else 1.0  # a repaired trace is the constant 0: its terms drop out
        B_inv = torch.cholesky_inverse(f.L_B)  # [M, M]
        B_inv_G = torch.cholesky_solve(G, f.L_B)  # [M, M]

        # Second sweep. Twice the adjoint of G is Ḡ2 = (I − B⁻¹ − wwᵀ/s²)/s, that of b is w/s², hence
        # K̄_ZX = L⁻ᵀ(Ḡ2 V + (w/s²) yᵀ).
        G_bar2 = B_inv.neg().addr_(w, w, alpha=-1.0 / s**2)
        G_bar2.diagonal().add_(trace_counts)
        G_bar2.div_(s)
        b_bar = w / s**2
        gradients = self._second_sweep(f, G_bar2, b_bar, -0.5 * trace_counts / s)

        # K̄_ZZ = −½ L⁻ᵀ W L⁻¹. Written as Ḡ2 G + b̄bᵀ, W would cancel badly where K_ZZ is ill-conditioned.
        W = (trace_counts * G - B_inv_G).div_(s).addr_(w, w, alpha=1.0 / s**2)  # [M, M]
        K_ZZ_bar = solve_rows(L, solve_rows(L, 0.5 * (W + W.T), transposed=True).T, transposed=True).mul_(-0.5)
        add_to(gradients, kernel.cross_vjp(f.of_Z, f.of_Z, K_ZZ_bar.contiguous()))

        Gw = G @ w
        by_noise = (
            -0.5 * f.n / s
            + 0.5 * float(B_inv_G.diagonal().sum()) / s**2
            + 0.5 * f.yy / s**2
            - float(b @ w) / s**3
            + 0.5 * float(w @ Gw) / s**4
            + 0.5 * f.trace / s**2
        )
        return f.elbo, gradients, by_noise

    def _second_sweep(self, f: Factorisation, G_bar2: Tensor, b_bar: Tensor, k_bar: float) -> Tensors:
        """Σ over the data of K̄_ZX · ∂K_ZX and k̄ · ∂k(x, x), by parameter."""
        cross = f.kernel.against(f.of_Z)
        merged = self._may_merge(f.L)
        if merged:  # (Ḡ2 L⁻¹) once instead of a solve for each chunk
            G_bar2, b_bar = solve_rows(f.L, G_bar2.clone(), transposed=True), b_bar.clone()
            solve_rows(f.L, b_bar[None, :], transposed=True)
        for rows in self._chunks():
            V, of_X = self._rows_of_V(rows), self._of_rows(f.kernel, rows)
            if not self.plan.keeps_v:
                solve_rows(f.L, cross.values(of_X, out=V))
            K_bar = torch.mm(V, G_bar2, out=self._adjoint_buffer(rows)).addr_(self.y[rows], b_bar)
            if not merged:
                solve_rows(f.L, K_bar, transposed=True)
            cross.add_adjoint(of_X, K_bar, scratch=V)  # V is not needed any more
        gradients = cross.gradients()
        for of_X in self._features_in_pieces(f.kernel):
            add_to(gradients, f.kernel.diagonal_vjp(of_X, of_X.new_full((len(of_X),), k_bar)))
        return gradients

    def _may_merge(self, L: Tensor) -> bool:
        """Whether K_ZZ is conditioned well enough to solve with the small matrix instead of with every chunk.

        That saves a fifth of the arithmetic, but its rounding errors grow with the condition of K_ZZ = LLᵀ: at the
        limit gradients have lost about half of their digits in the worst case, and none in most.
        """
        limit = self.numerics.merge_condition
        if float(L.diagonal().max() / L.diagonal().min()) ** 2 > limit:  # below cond(K_ZZ), and for free
            return False
        inverse = torch.linalg.solve_triangular(L, torch.eye(len(L), dtype=L.dtype, device=L.device), upper=False)
        norms = torch.linalg.matrix_norm(L) * torch.linalg.matrix_norm(inverse)  # at least M, at most M·cond(L)
        return float(norms / len(L)) ** 2 <= limit

    def _chunks(self) -> Iterator[slice]:
        return row_chunks(len(self.X), self.plan.rows)

    def _of_rows(self, kernel: Kernel, rows: slice) -> Tensor:
        """Features of rows of X; they do not depend on the kernel's parameters."""
        return kernel.features(self.X[rows], self._centre) if self._features is None else self._features[rows]

    def _features_in_pieces(self, kernel: Kernel) -> Iterator[Tensor]:
        """Features of all rows of X: at once where they are kept, else by chunks."""
        return (self._of_rows(kernel, rows) for rows in ([slice(None)] if self.plan.keeps_features else self._chunks()))

    def _rows_of_V(self, rows: slice) -> Tensor:
        if self._stored is None:
            self._stored = self.X.new_empty(len(self.X) if self.plan.keeps_v else self.plan.rows, len(self.Z))
        return self._stored[rows] if self.plan.keeps_v else self._stored[: rows.stop - rows.start]

    def _adjoint_buffer(self, rows: slice) -> Tensor:
        if self._adjoint is None:
            self._adjoint = self.X.new_empty(self.plan.rows, len(self.Z))
        return self._adjoint[: rows.stop - rows.start]


@dataclass(frozen=True)
class MemoryPlan:
    """How the sweeps stay within a number of bytes: what is stored of [N, ·] arrays, and what computed again."""

    rows: int  # of a chunk
    keeps_v: bool
    keeps_features: bool

    @staticmethod
    def within(budget: int, n: int, m: int, n_features: int) -> MemoryPlan:
        rows = min(n, chunk_rows(m))

        def needed(rows: int) -> int:  # chunks: V, its adjoint and a temporary; features and what they are made from
            return 8 * (SQUARE_ARRAYS * m * m + rows * (3 * m + 2 * n_features))

        while needed(rows) > budget and rows > FEWEST_ROWS:
            rows = max(rows // 2, FEWEST_ROWS)
        if needed(rows) > budget:
            raise ValueError(
                f"{m} inducing points need at least {needed(rows) / 1e6:.0f} MB,"
                f" but the memory limit is {budget / 1e6:.0f} MB: take fewer points or allow more memory"
            )
        keeps_v = needed(rows) + 8 * n * m <= budget  # first: it saves more
        used = needed(rows) + (8 * n * m if keeps_v else 0)
        return MemoryPlan(rows, keeps_v, keeps_features=used + 8 * n * n_features <= budget)


def add_gram(G: Tensor, V: Tensor) -> None:
    """Add VᵀV to the lower triangle of G, block row by block row: half the work of the full product."""
    m = len(G)
    for start in range(0, m, GRAM_BLOCK):
        stop = min(start + GRAM_BLOCK, m)
        G[start:stop, :stop].addmm_(V[:, start:stop].T, V[:, :stop])


def mirror_lower(G: Tensor) -> None:
    """Copy the lower triangle of G to the upper one, in place."""
    G.copy_(torch.tril(G) + torch.tril(G, -1).T)
