"""Sparse GP regression (Titsias 2009): ELBO, full gradient, upper bound and posterior from one factorisation.

The data are read in chunks of rows, twice for a gradient: the first sweep reduces them to matrices of size M, the
second hands the adjoint of K_XZ to the kernel chunk by chunk. No autodiff graph and no [N, N] array is ever made; the
only [N, M] array is V = L⁻¹K_ZX, and it is computed again instead of kept where memory does not allow it, or not needed
at all where K_ZZ is conditioned so well that sums over K_XZ do.

Everything over the data is kept by rows of X, so that a chunk is contiguous: `V` in the code is Vᵀ, [rows, M].
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

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
from nearexact.kernels.base import Cross, FloatArray, Kernel, Tensors, add_to, as_matrix, with_diagonal
from nearexact.limits import memory_budget

GRAM_BLOCK = 128  # G is symmetric: only blocks of this many columns up to its diagonal are computed
KEPT_ELEMENTS = 2**22  # K_XZ is computed again rather than read again where it is larger than this, 32 MB
SQUARE_ARRAYS = 8  # [M, M] arrays that are alive at once, at most, besides the kernel's own
VECTORS = 5  # [N] arrays that are alive at once, at most


@dataclass(frozen=True, eq=False)
class Factorisation:
    """A sparse GP at one θ, in matrices of size M: whatever is asked of it follows from these."""

    kernel: Kernel
    noise_variance: float  # s
    Z: Tensor  # inducing points [M, D]
    of_Z: Tensor  # features of Z [M, F]
    cross: Cross  # k(·, Z) at these parameters
    L: Tensor  # chol(K_ZZ + jitter·I)  [M, M]
    jitter: float
    direct: bool  # whether G and b were computed without V
    merges: bool  # whether the second sweep may solve once instead of for each chunk
    n: int
    yy: float  # yᵀy
    G: Tensor  # V Vᵀ, V = L⁻¹ K_ZX  [M, M]
    b: Tensor  # V y  [M]
    trace: float  # tr(K_XX − Q_XX), NaN where it is negative beyond repair
    trace_repaired: bool
    repairs: Repairs
    numerics: Numerics

    @cached_property
    def L_B(self) -> Tensor:
        """Cholesky factor of B = I + G/s: [M, M]."""
        B = self.G / self.noise_variance  # VVᵀ/s  [M, M]
        B.diagonal().add_(1.0)
        return jittered_cholesky(B, self.repairs, what="I + VVᵀ/s", first_jitter=0.0, numerics=self.numerics)[0]

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
        L_C, _ = jittered_cholesky(C, self.repairs, what="cI + VVᵀ", first_jitter=0.0, numerics=self.numerics)
        explained = float(self.b @ torch.cholesky_solve(self.b[:, None], L_C)[:, 0])
        log_det = self.n * math.log(2.0 * math.pi * s) + float(log_determinant(self.L_B))
        return -0.5 * (log_det + (self.yy - explained) / c)

    def posterior(self) -> SparsePosterior:
        """The predictive distribution, independent of the data."""
        s = self.noise_variance
        return SparsePosterior(self.kernel, s, self.Z, self.L, self.L_B, self.w / s, self.repairs)


@dataclass(frozen=True, eq=False)
class SparsePosterior:
    """Predictions of a sparse GP from quantities of size M; the data are no longer needed."""

    kernel: Kernel
    noise_variance: float
    Z: Tensor  # [M, D]
    L: Tensor  # chol(K_ZZ + jitter·I)  [M, M]
    L_B: Tensor  # chol(I + VVᵀ/s)  [M, M]
    weights: Tensor  # B⁻¹b/s  [M]
    repairs: Repairs

    @property
    def inducing_points(self) -> Tensor:
        """Z [M, D]."""
        return self.Z

    def predict(self, X: Any) -> tuple[Tensor, Tensor]:
        """Mean and variance [N] of the latent function at each row of X; in chunks, so N may be millions."""
        inputs = as_matrix(X, "X", self.Z.device, columns=self.Z.shape[1])
        mean, variance = inputs.new_empty(len(inputs)), inputs.new_empty(len(inputs))
        centre = self.Z.mean(0)
        cross = self.kernel.against(self.kernel.features(self.Z, centre))
        for rows in row_chunks(len(inputs), chunk_rows(len(self.Z))):
            features = self.kernel.features(inputs[rows], centre)
            V = solve_rows(self.L, cross.values(features))
            mean[rows] = V @ self.weights
            U = solve_rows(self.L_B, V.clone())
            # k(x, x) − v*ᵀv* + v*ᵀB⁻¹v*
            variance[rows] = self.kernel.diagonal(features) - V.square_().sum(1) + U.square_().sum(1)
        return mean, clamp_variances(variance, self.repairs)

    def mean(self, X: Any) -> Tensor:
        """The mean [N] alone, with half the work."""
        inputs = as_matrix(X, "X", self.Z.device, columns=self.Z.shape[1])
        mean, centre = inputs.new_empty(len(inputs)), self.Z.mean(0)
        cross = self.kernel.against(self.kernel.features(self.Z, centre))
        for rows in row_chunks(len(inputs), chunk_rows(len(self.Z))):
            mean[rows] = solve_rows(self.L, cross.values(self.kernel.features(inputs[rows], centre))) @ self.weights
        return mean

    def joint(self, X: Any) -> tuple[Tensor, Tensor]:
        """Mean [N] and full covariance [N, N] of the latent function at the rows of X."""
        centre = self.Z.mean(0)
        features = self.kernel.features(as_matrix(X, "X", self.Z.device, columns=self.Z.shape[1]), centre)
        V = solve_rows(self.L, self.kernel.cross(features, self.kernel.features(self.Z, centre)))
        U = solve_rows(self.L_B, V.clone())
        covariance = self.kernel.gram(features).addmm_(V, V.T, alpha=-1.0).addmm_(U, U.T)
        clamp_variances(covariance.diagonal(), self.repairs)
        return V @ self.weights, covariance

    def sample(self, X: Any, n_samples: int, seed: int) -> Tensor:
        """Draws of the latent function at the rows of X: [n_samples, N]."""
        return sample_gaussian(*self.joint(X), n_samples, seed, self.repairs)


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
        self.Z = as_matrix(Z, "Z", self.X.device, columns=self.X.shape[1]).clone()
        if len(self.Z) == 0:
            raise ValueError("Z must have at least one row, got none")
        self.numerics = numerics
        self.layout = ParameterLayout(kernel, self.X.shape[1], numerics)
        kernel = self.layout.kernel
        self.theta0 = self.layout.pack(kernel, noise_variance)
        self.repairs = Repairs()
        self._centre = self.Z.mean(0)
        self._features_of_Z = kernel.features(self.Z, self._centre)
        n_features = self._features_of_Z.shape[1]
        budget = memory_budget(memory_limit, self.X.device)
        self.plan = MemoryPlan.within(budget, kernel, len(self.X), len(self.Z), n_features)
        self._yy = float(self.y @ self.y)
        self._features = kernel.features(self.X, self._centre) if self.plan.keeps_features else None
        self._V: Tensor | None = None  # of all rows, if there is room  [N, M]
        self._buffers: list[Tensor] = []  # of one chunk, two of them  [rows, M]

    def __call__(self, theta: FloatArray) -> tuple[float, FloatArray]:
        """−ELBO and its gradient at θ; NaN where the trace is beyond repair or θ is not finite."""
        return self.layout.negated(self.value_and_gradient, theta)

    def factorise(self, kernel: Kernel, noise_variance: float) -> Factorisation:
        """First sweep: everything about the model at these hyperparameters but its gradient."""
        kernel = self.layout.check(kernel)
        of_Z = self._features_of_Z
        cross = kernel.against(of_Z)
        K_ZZ = with_diagonal(cross.values(of_Z), kernel.diagonal(of_Z))
        L, jitter = jittered_cholesky(K_ZZ, self.repairs, what="K_ZZ", numerics=self.numerics)
        k = torch.cat([kernel.diagonal(of_X) for of_X in self._features_in_pieces(kernel)])  # k(x, x)  [N]
        condition = mean_condition(L, self.numerics.merge_condition)
        # Without q(x, x) the trace is a difference of sums, which is too coarse where the signal dwarfs the noise.
        visible = float(k.mean()) <= self.numerics.direct_signal_to_noise * noise_variance
        direct = visible and condition <= self.numerics.direct_condition
        if direct:
            G, b = self._sums_over_K(kernel, cross, L)
            trace, repaired = float(k.sum() - G.diagonal().sum()), False
            direct = trace > 0.0  # else only q(x, x) can tell rounding noise from failure
        if not direct:
            G, b, q = self._sums_over_V(kernel, cross, L)
            trace, repaired = repair_trace(float((k - q).sum()), float((q / k).max()), self.repairs, self.numerics)
        return Factorisation(
            kernel=kernel,
            noise_variance=noise_variance,
            Z=self.Z,
            of_Z=of_Z,
            cross=cross,
            L=L,
            jitter=jitter,
            direct=direct,
            merges=condition <= self.numerics.merge_condition,
            n=len(self.X),
            yy=self._yy,
            G=G,
            b=b,
            trace=trace,
            trace_repaired=repaired,
            repairs=self.repairs,
            numerics=self.numerics,
        )

    def _sums_over_V(self, kernel: Kernel, cross: Cross, L: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """G = VVᵀ, b = Vy and q(x, x) = |v|², with one triangular solve for each chunk. V is kept if there is room."""
        n, m = len(self.X), len(self.Z)
        G, b, q = self.X.new_zeros(m, m), self.X.new_zeros(m), self.X.new_empty(n)
        for rows in self._chunks():
            V = solve_rows(L, cross.values(self._of_rows(kernel, rows), out=self._V_buffer(rows)))
            add_gram(G, V)
            b.addmv_(V.T, self.y[rows])
            torch.linalg.vector_norm(V, dim=1, out=q[rows])
        return mirror_lower(G), b, q.square_()

    def _sums_over_K(self, kernel: Kernel, cross: Cross, L: Tensor) -> tuple[Tensor, Tensor]:
        """G = L⁻¹(K_ZX K_XZ)L⁻ᵀ and b = L⁻¹(K_ZX y): no solve but with the sums."""
        m = len(self.Z)
        G, b = self.X.new_zeros(m, m), self.X.new_zeros(m)
        for rows in self._chunks():
            K = cross.values(self._of_rows(kernel, rows), out=self._K_buffer(rows))
            add_gram(G, K)
            b.addmv_(K.T, self.y[rows])
        solve_rows(L, b[None, :])
        return congruence(L, mirror_lower(G)), b

    def value_and_gradient(self, kernel: Kernel, noise_variance: float) -> tuple[float, Tensors, float]:
        """ELBO, and its derivatives by the kernel's parameters and by the noise variance."""
        f = self.factorise(kernel, noise_variance)
        if not math.isfinite(f.elbo):
            return f.elbo, {n: torch.full(v.shape, math.nan) for n, v in kernel.parameters.items()}, math.nan
        s, G, L, u = f.noise_variance, f.G, f.L, f.w / f.noise_variance  # u = B⁻¹b/s  [M]
        trace_counts = 0.0 if f.trace_repaired else 1.0  # a repaired trace is the constant 0: its terms drop out
        B_inv_G = torch.cholesky_solve(G, f.L_B)  # [M, M]

        # Second sweep. Twice the adjoint of G is Ḡ2 = (I − B⁻¹ − uuᵀ)/s, that of b is b̄ = u/s, hence
        # K̄_ZX = L⁻ᵀ(Ḡ2 V + b̄ yᵀ).
        G_bar2 = torch.cholesky_inverse(f.L_B).neg_().addr_(u, u, alpha=-1.0)
        G_bar2.diagonal().add_(trace_counts)
        G_bar2.div_(s)
        b_bar = u / s
        self._second_sweep(f, G_bar2, b_bar)

        # K̄_ZZ = −½ L⁻ᵀ W L⁻¹. Written as Ḡ2 G + b̄bᵀ, W would cancel badly where K_ZZ is ill-conditioned.
        W = (trace_counts * G - B_inv_G).div_(s).addr_(u, u)  # (G − B⁻¹G)/s + uuᵀ  [M, M]
        K_ZZ_bar = congruence(L, 0.5 * (W + W.T), transposed=True).mul_(-0.5)
        f.cross.add_adjoint(f.of_Z, K_ZZ_bar)
        gradients = f.cross.gradients()
        for of_X in self._features_in_pieces(kernel):  # ∂ELBO/∂k(x, x) = −1/(2s)
            add_to(gradients, kernel.diagonal_vjp(of_X, of_X.new_full((len(of_X),), -0.5 * trace_counts / s)))

        explained = float(B_inv_G.diagonal().sum()) + f.yy + f.trace + float(u @ (G @ u)) - 2.0 * float(f.b @ u)
        by_noise = 0.5 * (explained / s - f.n) / s
        return f.elbo, gradients, by_noise

    def _second_sweep(self, f: Factorisation, G_bar2: Tensor, b_bar: Tensor) -> None:
        """Hand K̄_ZX to the kernel, chunk by chunk."""
        cross = f.cross
        if f.direct:  # K̄_ZX = (L⁻ᵀ Ḡ2 L⁻¹) K_ZX + (L⁻ᵀ b̄) yᵀ
            G_bar2 = congruence(f.L, G_bar2, transposed=True)
        elif f.merges:  # K̄_ZX = (L⁻ᵀ Ḡ2) V + (L⁻ᵀ b̄) yᵀ
            G_bar2 = solve_rows(f.L, G_bar2, transposed=True)
        if f.direct or f.merges:
            b_bar = solve_rows(f.L, b_bar[None, :], transposed=True)[0]
        for rows in self._chunks():
            of_X, K_bar = self._of_rows(f.kernel, rows), self._chunk_buffer(1, rows)
            if f.direct:
                K = self._K_buffer(rows)
                if not self._keeps_K:
                    cross.values(of_X, out=K)
                torch.mm(K, G_bar2, out=K_bar).addr_(self.y[rows], b_bar)
                cross.add_adjoint(of_X, K_bar, scratch=K, holds_values=True)
            else:
                V = self._V_buffer(rows)
                if not self.plan.keeps_v:
                    solve_rows(f.L, cross.values(of_X, out=V))
                torch.mm(V, G_bar2, out=K_bar).addr_(self.y[rows], b_bar)
                if not f.merges:
                    solve_rows(f.L, K_bar, transposed=True)
                cross.add_adjoint(of_X, K_bar, scratch=V)  # V is not needed any more

    def _chunks(self) -> Iterator[slice]:
        return row_chunks(len(self.X), self.plan.rows)

    def _of_rows(self, kernel: Kernel, rows: slice) -> Tensor:
        """Features of rows of X; they do not depend on the kernel's parameters."""
        return kernel.features(self.X[rows], self._centre) if self._features is None else self._features[rows]

    def _features_in_pieces(self, kernel: Kernel) -> Iterator[Tensor]:
        """Features of all rows of X: at once where they are kept, else by chunks."""
        return (self._of_rows(kernel, rows) for rows in ([slice(None)] if self.plan.keeps_features else self._chunks()))

    @property
    def _keeps_K(self) -> bool:
        return self.plan.keeps_v and len(self.X) * len(self.Z) <= KEPT_ELEMENTS

    def _K_buffer(self, rows: slice) -> Tensor:
        return self._V_buffer(rows) if self._keeps_K else self._chunk_buffer(0, rows)

    def _V_buffer(self, rows: slice) -> Tensor:
        if not self.plan.keeps_v:
            return self._chunk_buffer(0, rows)
        if self._V is None:
            self._V = self.X.new_empty(len(self.X), len(self.Z))
        return self._V[rows]

    def _chunk_buffer(self, which: int, rows: slice) -> Tensor:
        if not self._buffers:
            self._buffers = [self.X.new_empty(self.plan.rows, len(self.Z)) for _ in range(2)]
        return self._buffers[which][: rows.stop - rows.start]


@dataclass(frozen=True)
class MemoryPlan:
    """How the sweeps stay within a number of bytes: what is stored of [N, ·] arrays, and what computed again."""

    rows: int  # of a chunk
    keeps_v: bool
    keeps_features: bool

    @staticmethod
    def within(budget: int, kernel: Kernel, n: int, m: int, n_features: int) -> MemoryPlan:
        rows = min(n, chunk_rows(m))

        def needed(rows: int) -> int:
            return sweep_memory(kernel, n, m, n_features, rows)

        while needed(rows) > budget and rows > FEWEST_ROWS:
            rows = max(rows // 2, FEWEST_ROWS)
        if needed(rows) > budget:
            raise ValueError(
                f"{m} inducing points need at least {needed(rows) / 1e6:.3g} MB,"
                f" but the memory limit is {budget / 1e6:.3g} MB: take fewer points or allow more memory"
            )
        keeps_v = needed(rows) + 8 * n * m <= budget  # first: it saves more
        used = needed(rows) + (8 * n * m if keeps_v else 0)
        return MemoryPlan(rows, keeps_v, keeps_features=used + 2 * 8 * n * n_features <= budget)


def sweep_memory(kernel: Kernel, n: int, m: int, n_features: int, rows: int = FEWEST_ROWS) -> int:
    """Bytes that an evaluation allocates besides the data, with chunks of so many rows and nothing kept."""
    squares = (SQUARE_ARRAYS + kernel.temporaries) * m * m
    chunks = min(n, rows) * ((2 + kernel.temporaries) * m + 8 * n_features)
    return 8 * (squares + chunks + VECTORS * n + 4 * m * n_features)


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
