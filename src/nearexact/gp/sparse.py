"""Sparse GP regression (Titsias 2009, 2025): a bound on the likelihood, and its full gradient.

The data are read in chunks of rows, twice for a gradient: the first sweep reduces them to matrices of size M, the
second hands the adjoint of K_XZ to the kernel chunk by chunk. No autodiff graph and no [N, N] array is ever made; the
only [N, M] array is V = L⁻¹K_ZX, and it is computed again instead of kept where memory does not allow it, or not needed
at all where K_ZZ is conditioned so well that sums over K_XZ do. The tight bound (Titsias 2025) weighs each row by its
own residual variance, so it takes V for every row, and one more product of size M²N.

Everything over the data is kept by rows of X, so that a chunk is contiguous: `V` in the code is Vᵀ, [rows, M].
"""

# The derivation, one line for each quantity. N rows, M inducing points Z, noise variance s; a bar is an adjoint, that
# is the derivative of the bound by the quantity.
#
#   L     = chol(K_ZZ + jitter·I)                                    [M, M]
#   V     = L⁻¹ K_ZX                                                 [M, N]
#   Q     = VᵀV, the part of K that Z explains                       [N, N], never formed
#   G     = V Vᵀ,  b = V y                                           [M, M], [M]: all that leaves the first sweep
#   t     = Σ_n k(x_n, x_n) − tr G,  the trace of K − Q              and d_n its terms
#   B     = I + G/s,  w = B⁻¹b,  u = w/s                             [M, M], [M], [M]
#   ELBO  = −½ [N log 2πs + log|B| + yᵀy/s − bᵀw/s² + t/s]           log|Q + sI| = N log s + log|B|, by Sylvester;
#                                                                    yᵀ(Q + sI)⁻¹y = yᵀy/s − bᵀw/s², by Woodbury
#   tight = the same with Σ_n log(1 + d_n/s) in the place of t/s
#
#   2Ḡ    = (I − B⁻¹ − uuᵀ)/s                                        [M, M]  `G_bar2`
#   b̄     = u/s                                                      [M]
#   K̄_ZX  = L⁻ᵀ(2Ḡ V + b̄ yᵀ)                                         [M, N], a chunk at a time, in the second sweep
#   W     = (G − B⁻¹G)/s + uuᵀ                                       [M, M]; equal to 2Ḡ G + b̄ bᵀ, but cancels less
#   K̄_ZZ  = −½ L⁻ᵀ W L⁻¹                                             [M, M]
#   ∂/∂s  = ½ [(tr B⁻¹G + yᵀy + t + uᵀGu − 2bᵀu)/s − N]/s
#   ∂/∂k(x_n, x_n) = −½/s
#
# In the tight bound 1/s becomes δ_n = 1/(s + d_n) for each row n: I/s in 2Ḡ V becomes V diag(δ), G/s in W becomes
# V diag(δ) Vᵀ, and ∂/∂k(x_n, x_n) = −½δ_n. A trace or residual that was repaired is the constant 0: its terms drop out.
#
# Several targets y [N, T] share V and all that follows from it: b, w and u have a column for each, terms in them are
# sums over the columns, and all others count T times. Noise that differs from row to row scales the rows by ω_n
# (row_noise.py): V, y and k(x_n, x_n) are then those of scaled rows. K̄_ZX and ∂/∂k(x_n, x_n) get back the factors ω_n
# and ω_n²; ∂/∂s has the same form with sums over rows that are weighted by the share e_n of s in a row's noise:
#
#   ∂/∂s  = ½ [(tr B⁻¹G_e + y_eᵀy + t_e + uᵀG_e u − 2b_eᵀu)/s − Σe_n]/s,   G_e = V diag(e) Vᵀ, and so on

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from nearexact.gp.factorisation import Factorisation
from nearexact.gp.linalg import (
    add_gram,
    add_product,
    add_self_outer,
    as_columns,
    congruence,
    dot,
    mean_condition,
    mirror_lower,
    solve_rows,
)
from nearexact.gp.memory import MemoryPlan, row_chunks
from nearexact.gp.noise_derivative import noise_derivative
from nearexact.gp.parameters import ParameterLayout
from nearexact.gp.row_noise import RowNoise, check_noise, scaled_rows
from nearexact.gp.safety import DEFAULT_NUMERICS, Numerics, Repairs, clamp_residuals, jittered_cholesky, repair_trace
from nearexact.kernels.base import Cross, Kernel, Tensors, add_to, with_diagonal
from nearexact.limits import memory_budget
from nearexact.typing import FloatArray
from nearexact.validation import as_matrix, as_training_data

BOUNDS = ("elbo", "tight")  # that can be maximised
KEPT_ELEMENTS = 2**22  # K_XZ is computed again rather than read again where it is larger than this, 32 MB


class SparseObjective:
    """−ELBO, or the negative tight bound, and its gradient as a function of θ, for fixed data and inducing points.

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
        bound: str = "elbo",
        row_noise: RowNoise | None = None,
        memory_limit: int | float | str | None = None,
        numerics: Numerics = DEFAULT_NUMERICS,
    ) -> None:
        self.tight = is_tight(bound)
        self.X, self.y = as_training_data(X, y)
        self.row_noise = check_noise(row_noise, self.X)
        self.Z = as_matrix(Z, "Z", self.X.device, columns=self.X.shape[1]).clone()
        if len(self.Z) == 0:
            raise ValueError("Z must have at least one row, got none")
        self.numerics = numerics
        self.layout = ParameterLayout(kernel, self.X.shape[1], numerics)
        kernel = self.layout.kernel
        self.theta0 = self.layout.pack(kernel, noise_variance)
        self.repairs = Repairs()
        self._centre = self.Z.mean(0)
        self._features_Z = kernel.features(self.Z, self._centre)
        n_features = self._features_Z.shape[1]
        budget = memory_budget(memory_limit, self.X.device)
        self.plan = MemoryPlan.within(budget, kernel, len(self.X), len(self.Z), n_features)
        self.spare_memory = budget - self.plan.memory  # bytes
        self._yy = dot(self.y, self.y)
        self._features = kernel.features(self.X, self._centre) if self.plan.keeps_features else None
        self._V: Tensor | None = None  # of all rows, if there is room  [N, M]
        self._V_of: Factorisation | None = None  # whose V that is, where it is whole
        self._buffers: list[Tensor] = []  # of one chunk, two of them  [rows, M]

    def __call__(self, theta: FloatArray) -> tuple[float, FloatArray]:
        """The negative bound and its gradient at θ; NaN where the trace is beyond repair or θ is not finite."""
        return self.layout.negated(self.value_and_gradient, theta)

    def value(self, f: Factorisation) -> float:
        """The bound that is maximised."""
        return f.tight_bound if self.tight else f.elbo

    def factorise(
        self, kernel: Kernel, noise_variance: float, *, residuals: bool = False, L: Tensor | None = None
    ) -> Factorisation:
        """First sweep: everything about the model at these hyperparameters but its gradient.

        The tight bound is in it if it is what is maximised, or if the `residuals` that it needs are asked for; that
        may take one triangular solve more for each chunk. `L` is the factor of K_ZZ, where it is at hand.
        """
        kernel = self.layout.check(kernel)
        features_Z = self._features_Z
        cross = kernel.against(features_Z)
        jitter = 0.0
        if L is None:
            K_ZZ = with_diagonal(cross.values(features_Z), kernel.diagonal(features_Z))
            L, jitter = jittered_cholesky(K_ZZ, self.repairs, what="K_ZZ", numerics=self.numerics)
            del K_ZZ
        self._V_of = None
        k = torch.cat(
            [kernel.diagonal(features_X) for _, features_X in self._rows_and_features(kernel)]
        )  # k(x, x)  [N]
        y, yy, scales = self.y, self._yy, None
        if self.row_noise is not None:
            scales = self.row_noise.scales(noise_variance)
            y = scaled_rows(self.y, scales)
            yy = dot(y, y)
            k.mul_(scales.square())
        condition = mean_condition(L, self.numerics.merge_condition)
        # Without q(x, x) the trace is a difference of sums, which is too coarse where the signal dwarfs the noise.
        visible = float(k.mean()) <= self.numerics.direct_signal_to_noise * noise_variance
        direct = visible and condition <= self.numerics.direct_condition and not self.tight and scales is None
        wants_residuals = residuals or self.tight
        q = torch.empty_like(k) if wants_residuals or not direct else None  # q(x, x) = |v|²  [N]
        if direct:
            G, b = self._sums_over_K(kernel, cross, L, q)
            trace, repaired = float(k.sum() - G.diagonal().sum()), False
            direct = trace > 0.0  # else only q(x, x) can tell rounding noise from failure
        if not direct:
            q = torch.empty_like(k) if q is None else q
            G, b = self._sums_over_V(kernel, cross, L, q, y, scales)
            trace, repaired = repair_trace(float((k - q).sum()), float((q / k).max()), self.repairs, self.numerics)
        d: Tensor | None = None  # k(x, x) − q(x, x)  [N]
        if wants_residuals:
            assert q is not None
            largest_ratio = float((q / k).max())
            d = clamp_residuals(torch.sub(k, q, out=q), largest_ratio, self.repairs, self.numerics)
        f = Factorisation(
            kernel=kernel,
            noise_variance=noise_variance,
            Z=self.Z,
            features_Z=features_Z,
            cross=cross,
            L=L,
            jitter=jitter,
            direct=direct,
            merges=condition <= self.numerics.merge_condition and not self.tight,
            n=len(self.X),
            y=y,
            yy=yy,
            G=G,
            b=b,
            trace=trace,
            trace_repaired=repaired,
            residuals=d,
            repairs=self.repairs,
            numerics=self.numerics,
            scales=scales,
            diagonal=None if scales is None else k,
        )
        self._V_of = f if self.plan.keeps_v and not direct else None
        return f

    def rows_of_V(self, f: Factorisation) -> Iterator[tuple[slice, Tensor]]:
        """V of the last factorisation, chunk by chunk [rows, M]: from memory if it is there, else computed again.

        Where rows have scales, it is V of scaled rows, here as everywhere.
        """
        at_hand = self._V_of is f
        self._V_of = None  # until it is whole
        for rows in self._chunks():
            V = self._V_buffer(rows)
            if not at_hand:
                self._compute_V(f.cross, f.L, f.kernel, rows, f.scales)
            yield rows, V
        self._V_of = f if self.plan.keeps_v else None

    def whole_V(self, f: Factorisation) -> Tensor:
        """V of the last factorisation [N, M], where there is room for it. Not to be changed."""
        if not self.plan.keeps_v:
            raise ValueError("V does not fit into the memory limit")
        for _ in self.rows_of_V(f):
            pass
        assert self._V is not None
        return self._V

    def _compute_V(self, cross: Cross, L: Tensor, kernel: Kernel, rows: slice, scales: Tensor | None) -> Tensor:
        """V of a chunk [rows, M], in its buffer."""
        V = solve_rows(L, cross.values(self._features_of_rows(kernel, rows), out=self._V_buffer(rows)))
        return V if scales is None else V.mul_(scales[rows, None])

    def _sums_over_V(
        self, kernel: Kernel, cross: Cross, L: Tensor, q: Tensor, y: Tensor, scales: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """G = VVᵀ, b = Vy and q(x, x) = |v|², with one triangular solve for each chunk. V is kept if there is room."""
        m = len(self.Z)
        G, b = self.X.new_zeros(m, m), self.X.new_zeros(m, *y.shape[1:])
        for rows in self._chunks():
            V = self._compute_V(cross, L, kernel, rows, scales)
            add_gram(G, V)
            add_product(b, V, y[rows])
            torch.linalg.vector_norm(V, dim=1, out=q[rows])
        q.square_()
        return mirror_lower(G), b

    def _sums_over_K(self, kernel: Kernel, cross: Cross, L: Tensor, q: Tensor | None) -> tuple[Tensor, Tensor]:
        """G = L⁻¹(K_ZX K_XZ)L⁻ᵀ and b = L⁻¹(K_ZX y): no solve but with the sums, unless q(x, x) is wanted."""
        m = len(self.Z)
        G, b = self.X.new_zeros(m, m), self.X.new_zeros(m, *self.y.shape[1:])
        for rows in self._chunks():
            K = cross.values(self._features_of_rows(kernel, rows), out=self._K_buffer(rows))
            add_gram(G, K)
            add_product(b, K, self.y[rows])
            if q is not None:
                torch.linalg.vector_norm(solve_rows(L, K), dim=1, out=q[rows])
        if q is not None:
            q.square_()
        if b.ndim == 1:
            solve_rows(L, b[None, :])
        else:
            b = torch.linalg.solve_triangular(L, b, upper=False)
        return congruence(L, mirror_lower(G)), b

    def value_and_gradient(self, kernel: Kernel, noise_variance: float) -> tuple[float, Tensors, float]:
        """The bound, and its derivatives by the kernel's parameters and by the noise variance."""
        f = self.factorise(kernel, noise_variance)
        value = self.value(f)
        if not math.isfinite(value):
            return value, {n: torch.full(v.shape, math.nan) for n, v in kernel.parameters.items()}, math.nan
        s, targets, u = f.noise_variance, f.targets, f.w / f.noise_variance  # u = B⁻¹b/s  [M], or [M, T]
        # Minus twice the derivative of the bound by k(x_n, x_n), which is also the part in V of that by q(x_n, x_n). A
        # repaired trace, or residual, is the constant 0: its terms drop out.
        weights: Tensor | None = None  # [N]; None where all are `uniform`
        uniform = 0.0 if f.trace_repaired else targets / s
        if self.tight:
            assert f.residuals is not None
            weights, uniform = torch.where(f.residuals > 0.0, targets / (s + f.residuals), 0.0), 0.0
        B_inv_G = torch.cholesky_solve(f.G, f.L_B)  # [M, M]
        by_noise = noise_derivative(self, f, u, B_inv_G, weights)

        # Second sweep. Twice the adjoint of G is Ḡ2 = (I − B⁻¹ − uuᵀ)/s, that of b is b̄ = u/s, hence
        # K̄_ZX = L⁻ᵀ(Ḡ2 V + b̄ yᵀ). In the tight bound the I/s in Ḡ2 becomes Δ = diag(weights) on the other side of V.
        G_bar2 = add_self_outer(torch.cholesky_inverse(f.L_B).mul_(-targets), u, alpha=-1.0).div_(s)
        G_bar2.diagonal().add_(uniform)
        VDV = self.second_sweep(f, G_bar2, as_columns(f.y), as_columns(u).T.contiguous() / s, weights)  # VΔVᵀ  [M, M]
        del G_bar2

        # K̄_ZZ = −½ L⁻ᵀ W L⁻¹. Written as Ḡ2 G + b̄bᵀ, W would cancel badly where K_ZZ is ill-conditioned.
        W = (uniform * f.G if VDV is None else VDV).sub_(B_inv_G, alpha=targets / s)
        add_self_outer(W, u)  # (G − B⁻¹G)/s + uuᵀ
        del B_inv_G
        K_ZZ_bar = congruence(f.L, 0.5 * (W + W.T), transposed=True).mul_(-0.5)
        f.cross.add_adjoint(f.features_Z, K_ZZ_bar)
        gradients = f.cross.gradients()
        for rows, features_X in self._rows_and_features(kernel):  # ∂/∂k(x, x) = −½ weight
            bars = features_X.new_full((len(features_X),), -0.5 * uniform) if weights is None else -0.5 * weights[rows]
            if f.scales is not None:
                bars.mul_(f.scales[rows].square())
            add_to(gradients, kernel.diagonal_vjp(features_X, bars))
        return value, gradients, by_noise

    def second_sweep(
        self, f: Factorisation, G_bar2: Tensor, targets: Tensor, bars: Tensor, weights: Tensor | None = None
    ) -> Tensor | None:
        """Hand K̄_ZX = L⁻ᵀ(Ḡ2 V + bars targetsᵀ) to the kernel, chunk by chunk; V is lost with that.

        Targets are [N, C] and their bars [C, M]: here y and b̄. Where rows have weights, VΔVᵀ comes back.
        """
        cross = f.cross
        VV = None if weights is None else torch.zeros_like(f.G)
        self._V_of = None
        if f.direct:  # K̄_ZX = (L⁻ᵀ Ḡ2 L⁻¹) K_ZX + (L⁻ᵀ b̄) yᵀ
            G_bar2 = congruence(f.L, G_bar2, transposed=True)
        elif f.merges:  # K̄_ZX = (L⁻ᵀ Ḡ2) V + (L⁻ᵀ b̄) yᵀ
            G_bar2 = solve_rows(f.L, G_bar2, transposed=True)
        if f.direct or f.merges:
            bars = solve_rows(f.L, bars.clone(), transposed=True)
        for rows in self._chunks():
            features_X, K_bar = self._features_of_rows(f.kernel, rows), self._chunk_buffer(1, rows)
            if f.direct:
                K = self._K_buffer(rows)
                if not self._keeps_K:
                    cross.values(features_X, out=K)
                add_outer(torch.mm(K, G_bar2, out=K_bar), targets[rows], bars)
                cross.add_adjoint(features_X, K_bar, scratch=K, holds_values=True)
            else:
                V = self._V_buffer(rows)
                if not self.plan.keeps_v:
                    self._compute_V(cross, f.L, f.kernel, rows, f.scales)
                if VV is not None and weights is not None:
                    add_gram(VV, torch.mul(V, weights[rows, None].sqrt(), out=K_bar))
                add_outer(torch.mm(V, G_bar2, out=K_bar), targets[rows], bars)
                if weights is not None:
                    K_bar.addcmul_(V, weights[rows, None])
                if not f.merges:
                    solve_rows(f.L, K_bar, transposed=True)
                if f.scales is not None:
                    K_bar.mul_(f.scales[rows, None])
                cross.add_adjoint(features_X, K_bar, scratch=V)  # V is not needed any more
        return None if VV is None else mirror_lower(VV)

    def _chunks(self) -> Iterator[slice]:
        return row_chunks(len(self.X), self.plan.rows)

    def _features_of_rows(self, kernel: Kernel, rows: slice) -> Tensor:
        """Features of rows of X; they do not depend on the kernel's parameters."""
        return kernel.features(self.X[rows], self._centre) if self._features is None else self._features[rows]

    def _rows_and_features(self, kernel: Kernel) -> Iterator[tuple[slice, Tensor]]:
        """Features of all rows of X: at once where they are kept, else by chunks."""
        pieces = [slice(None)] if self.plan.keeps_features else self._chunks()
        return ((rows, self._features_of_rows(kernel, rows)) for rows in pieces)

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


def add_outer(A: Tensor, left: Tensor, right: Tensor) -> None:
    """Add left @ right to A; of one column and one row, faster than as a product of matrices."""
    if len(right) == 1:
        A.addr_(left[:, 0], right[0])
    else:
        A.addmm_(left, right)


def is_tight(bound: str) -> bool:
    """Whether the tight bound is meant, or the ELBO; a ValueError if neither is."""
    if bound not in BOUNDS:
        raise ValueError(f'bound must be "elbo" or "tight", got {bound!r}')
    return bound == "tight"
