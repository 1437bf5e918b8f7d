"""The two sweeps of a sparse GP over rows of data that are here: what is summed over them, chunk by chunk.

sparse.py has the derivation, and all that follows from the sums in matrices of size M. A sweep returns sums and needs
nothing but rows, θ and matrices of size M: so rows that are elsewhere are swept by the same functions there, block by
block, and their sums are added up.

Everything over the data is kept by rows of X, so that a chunk is contiguous: `V` in the code is Vᵀ, [rows, M].
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from nearexact.gp.linalg import add_gram, add_product, congruence, dot, mirror_lower, solve_rows
from nearexact.gp.memory import MemoryPlan, row_chunks
from nearexact.gp.row_noise import RowNoise, scaled_rows
from nearexact.gp.safety import Numerics, Repairs, clamp_residuals
from nearexact.kernels.base import Cross, Kernel, Tensors, add_to

KEPT_ELEMENTS = 2**22  # K_XZ is computed again rather than read again where it is larger than this, 32 MB


@dataclass(frozen=True, eq=False)
class FirstSums:
    """What leaves the first sweep over some rows: sums over them, and what is kept of each row if they are here."""

    n: int
    G: Tensor  # the lower triangle of VVᵀ, or of K_ZX K_XZ where the sweep was direct  [M, M]
    b: Tensor  # Vy, or K_ZX y  [M], or [M, T]
    yy: float  # yᵀy
    diagonal_sum: float  # Σ k(x_n, x_n)
    trace: float  # Σ k(x_n, x_n) − q(x_n, x_n), where q is known; else NaN, and so is the next
    largest_ratio: float  # of q(x_n, x_n)/k(x_n, x_n)
    log_residuals: float | None  # Σ log(1 + d_n/s), where residuals were asked for
    repairs: Repairs  # of the residuals
    # Of rows that are here. Where these have noise of their own, this and all others are of scaled rows (row_noise.py).
    y: Tensor  # [N], or [N, T]; empty where rows are elsewhere
    residuals: Tensor | None = None  # d_n = k(x_n, x_n) − q(x_n, x_n)  [N]
    scales: Tensor | None = None  # ω  [N]
    diagonal: Tensor | None = None  # k(x, x) of rows with scales  [N]


class RowsAt(Protocol):
    """Rows at one θ."""

    @property
    def mean_diagonal(self) -> float:
        """The mean of k(x, x)."""

    def first_sweep(self, cross: Cross, L: Tensor, *, direct: bool, residuals: bool) -> FirstSums:
        """The sums, by V or directly by K; with `residuals`, the sum over them too."""


class Point(Protocol):
    """One θ and what sweeps have to know about it: a factorisation is one."""

    @property
    def kernel(self) -> Kernel: ...
    @property
    def cross(self) -> Cross: ...
    @property
    def L(self) -> Tensor: ...
    @property
    def direct(self) -> bool: ...
    @property
    def merges(self) -> bool: ...
    @property
    def scales(self) -> Tensor | None: ...


class Sweeps(Protocol):
    """Sweeps over rows, wherever they are, for fixed inducing points."""

    plan: MemoryPlan

    def at(self, kernel: Kernel, noise_variance: float) -> RowsAt:
        """The rows at one θ, for the first sweep."""

    def swept(self, f: Point) -> None:
        """The sums of the last first sweep have become this point: what it has left in memory is of that."""

    def second_sweep(
        self, f: Point, G_bar2: Tensor, bars: Tensor, targets: Tensor, weights: Tensor | None
    ) -> Tensor | None:
        """Hand K̄_ZX to the kernel; see LocalSweeps. Rows that are elsewhere have their targets there."""

    def add_gradients(self, gradients: Tensors, f: Point, uniform: float, weights: Tensor | None) -> None:
        """Add what rows contribute by k(x, x), and what of the second sweep is not in the point's own cross."""


@dataclass(frozen=True, eq=False)
class LocalRowsAt:
    """Rows that are here, at one θ."""

    sweeps: LocalSweeps
    kernel: Kernel
    noise_variance: float
    k: Tensor  # k(x, x)  [N]; this and all others of scaled rows, where rows have scales
    y: Tensor
    yy: float
    scales: Tensor | None

    @property
    def mean_diagonal(self) -> float:
        return float(self.k.mean())

    def first_sweep(self, cross: Cross, L: Tensor, *, direct: bool, residuals: bool) -> FirstSums:
        sweeps, k = self.sweeps, self.k
        q = torch.empty_like(k) if residuals or not direct else None  # q(x, x) = |v|²  [N]
        if direct:
            G, b = sweeps.sums_over_K(self.kernel, cross, L, q)
        else:
            assert q is not None
            G, b = sweeps.sums_over_V(self.kernel, cross, L, q, self.y, self.scales)
        trace = math.nan if direct or q is None else float((k - q).sum())
        ratio = math.nan if q is None else float((q / k).max())
        d, logs, repairs = None, None, Repairs()
        if residuals:
            assert q is not None
            d = clamp_residuals(torch.sub(k, q, out=q), ratio, repairs, sweeps.numerics)
            logs = float((d / self.noise_variance).log1p_().sum())
        return FirstSums(
            n=len(k),
            G=G,
            b=b,
            yy=self.yy,
            diagonal_sum=float(k.sum()),
            trace=trace,
            largest_ratio=ratio,
            log_residuals=logs,
            repairs=repairs,
            y=self.y,
            residuals=d,
            scales=self.scales,
            diagonal=None if self.scales is None else k,
        )


class LocalSweeps:
    """Sweeps over rows X [N, D] and targets y, [N] or [N, T], for M inducing points.

    Buffers are allocated at the first use and kept, since fresh [N, M] arrays would cost more than the arithmetic. Not
    for use by two threads at once.
    """

    def __init__(
        self,
        X: Tensor,
        y: Tensor,
        row_noise: RowNoise | None,
        *,
        m: int,
        kernel: Kernel,
        centre: Tensor,
        plan: MemoryPlan,
        numerics: Numerics,
    ) -> None:
        self.X, self.y, self.row_noise = X, y, row_noise
        self.m, self.centre, self.plan, self.numerics = m, centre, plan, numerics
        self._yy = dot(y, y)
        self._features = kernel.features(X, centre) if plan.keeps_features else None
        self._V: Tensor | None = None  # of all rows, if there is room  [N, M]
        self._V_of: Point | None = None  # whose V that is, where it is whole ...
        self._K_of: Point | None = None  # ... or whose K_XZ it is
        self._holds_K = False  # whether the last first sweep has left K_XZ there
        self._buffers: list[Tensor] = []  # of one chunk, two of them  [rows, M]

    def at(self, kernel: Kernel, noise_variance: float) -> LocalRowsAt:
        """The rows at one θ."""
        k = torch.cat(
            [kernel.diagonal(features_X) for _, features_X in self._rows_and_features(kernel)]
        )  # k(x, x)  [N]
        y, yy, scales = self.y, self._yy, None
        if self.row_noise is not None:
            scales = self.row_noise.scales(noise_variance)
            y = scaled_rows(self.y, scales)
            yy = dot(y, y)
            k.mul_(scales.square())
        return LocalRowsAt(self, kernel, noise_variance, k, y, yy, scales)

    def sums_over_V(
        self, kernel: Kernel, cross: Cross, L: Tensor, q: Tensor, y: Tensor, scales: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """G = VVᵀ, b = Vy and q(x, x) = |v|², with one triangular solve for each chunk. V is kept if there is room."""
        self._V_of = self._K_of = None
        G, b = self._zeros(y)
        for rows in self._chunks():
            V = self._compute_V(cross, L, kernel, rows, scales)
            add_gram(G, V)
            add_product(b, V, y[rows])
            torch.linalg.vector_norm(V, dim=1, out=q[rows])
        q.square_()
        return G, b

    def sums_over_K(self, kernel: Kernel, cross: Cross, L: Tensor, q: Tensor | None) -> tuple[Tensor, Tensor]:
        """K_ZX K_XZ and K_ZX y: no solve with rows, unless q(x, x) is wanted."""
        self._V_of = self._K_of = None
        G, b = self._zeros(self.y)
        for rows in self._chunks():
            K = cross.values(self._features_of_rows(kernel, rows), out=self._K_buffer(rows))
            add_gram(G, K)
            add_product(b, K, self.y[rows])
            if q is not None:
                torch.linalg.vector_norm(solve_rows(L, K), dim=1, out=q[rows])
        if q is not None:
            q.square_()
        self._holds_K = self._keeps_K and q is None
        return G, b

    def swept(self, f: Point) -> None:
        """The sums of the last first sweep have become this point, and what the buffers hold is of that."""
        self._V_of = f if self.plan.keeps_v and not f.direct else None
        self._K_of = f if self._holds_K and f.direct else None

    def rows_of_V(self, f: Point) -> Iterator[tuple[slice, Tensor]]:
        """V, chunk by chunk [rows, M]: from memory if it is there, else computed again.

        Where rows have scales, it is V of scaled rows, here as everywhere.
        """
        at_hand = self._V_of is f
        self._V_of = self._K_of = None  # until it is whole
        for rows in self._chunks():
            V = self._V_buffer(rows)
            if not at_hand:
                self._compute_V(f.cross, f.L, f.kernel, rows, f.scales)
            yield rows, V
        self._V_of = f if self.plan.keeps_v else None

    def whole_V(self, f: Point) -> Tensor:
        """V [N, M], where there is room for it. Not to be changed."""
        if not self.plan.keeps_v:
            raise ValueError("V does not fit into the memory limit")
        for _ in self.rows_of_V(f):
            pass
        assert self._V is not None
        return self._V

    def second_sweep(
        self, f: Point, G_bar2: Tensor, bars: Tensor, targets: Tensor, weights: Tensor | None
    ) -> Tensor | None:
        """Hand K̄_ZX = L⁻ᵀ(Ḡ2 V + bars targetsᵀ) to the kernel, chunk by chunk; V is lost with that.

        Targets are [N, C] and their bars [C, M]; `adjoint_factors` has brought Ḡ2 and bars into the form that is needed
        here. Where rows have weights, VΔVᵀ comes back.
        """
        cross, V_at_hand, K_at_hand = f.cross, self._V_of is f, self._K_of is f
        VV = None if weights is None else self.X.new_zeros(self.m, self.m)
        self._V_of = self._K_of = None
        for rows in self._chunks():
            features_X, K_bar = self._features_of_rows(f.kernel, rows), self._chunk_buffer(1, rows)
            if f.direct:
                K = self._K_buffer(rows)
                if not K_at_hand:
                    cross.values(features_X, out=K)
                add_outer(torch.mm(K, G_bar2, out=K_bar), targets[rows], bars)
                cross.add_adjoint(features_X, K_bar, scratch=K, holds_values=True)
            else:
                V = self._V_buffer(rows)
                if not V_at_hand:
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

    def add_gradients(self, gradients: Tensors, f: Point, uniform: float, weights: Tensor | None) -> None:
        """Add what rows contribute by k(x, x): ∂/∂k(x, x) = −½ weight."""
        for rows, features_X in self._rows_and_features(f.kernel):
            bars = features_X.new_full((len(features_X),), -0.5 * uniform) if weights is None else -0.5 * weights[rows]
            if f.scales is not None:
                bars.mul_(f.scales[rows].square())
            add_to(gradients, f.kernel.diagonal_vjp(features_X, bars))

    def _zeros(self, y: Tensor) -> tuple[Tensor, Tensor]:
        return self.X.new_zeros(self.m, self.m), self.X.new_zeros(self.m, *y.shape[1:])

    def _compute_V(self, cross: Cross, L: Tensor, kernel: Kernel, rows: slice, scales: Tensor | None) -> Tensor:
        """V of a chunk [rows, M], in its buffer."""
        V = solve_rows(L, cross.values(self._features_of_rows(kernel, rows), out=self._V_buffer(rows)))
        return V if scales is None else V.mul_(scales[rows, None])

    def _chunks(self) -> Iterator[slice]:
        return row_chunks(len(self.X), self.plan.rows)

    def _features_of_rows(self, kernel: Kernel, rows: slice) -> Tensor:
        """Features of rows of X; they do not depend on the kernel's parameters."""
        return kernel.features(self.X[rows], self.centre) if self._features is None else self._features[rows]

    def _rows_and_features(self, kernel: Kernel) -> Iterator[tuple[slice, Tensor]]:
        """Features of all rows of X: at once where they are kept, else by chunks."""
        pieces = [slice(None)] if self.plan.keeps_features else self._chunks()
        return ((rows, self._features_of_rows(kernel, rows)) for rows in pieces)

    @property
    def _keeps_K(self) -> bool:
        return self.plan.keeps_v and len(self.X) * self.m <= KEPT_ELEMENTS

    def _K_buffer(self, rows: slice) -> Tensor:
        return self._V_buffer(rows) if self._keeps_K else self._chunk_buffer(0, rows)

    def _V_buffer(self, rows: slice) -> Tensor:
        if not self.plan.keeps_v:
            return self._chunk_buffer(0, rows)
        if self._V is None:
            self._V = self.X.new_empty(len(self.X), self.m)
        return self._V[rows]

    def _chunk_buffer(self, which: int, rows: slice) -> Tensor:
        if not self._buffers:
            self._buffers = [self.X.new_empty(self.plan.rows, self.m) for _ in range(2)]
        return self._buffers[which][: rows.stop - rows.start]


def local_sweeps(sweeps: Sweeps) -> LocalSweeps:
    """Those of rows that are here; a ValueError where they are elsewhere."""
    if not isinstance(sweeps, LocalSweeps):
        raise ValueError("V is needed row by row, but the rows are elsewhere")
    return sweeps


def adjoint_factors(f: Point, G_bar2: Tensor, bars: Tensor) -> tuple[Tensor, Tensor]:
    """Ḡ2 and bars as the second sweep takes them: with one solve here instead of one for each chunk, where that may be.

    Ḡ2 may be overwritten.
    """
    if f.direct:  # K̄_ZX = (L⁻ᵀ Ḡ2 L⁻¹) K_ZX + (L⁻ᵀ b̄) yᵀ
        G_bar2 = congruence(f.L, G_bar2, transposed=True)
    elif f.merges:  # K̄_ZX = (L⁻ᵀ Ḡ2) V + (L⁻ᵀ b̄) yᵀ
        G_bar2 = solve_rows(f.L, G_bar2, transposed=True)
    if f.direct or f.merges:
        bars = solve_rows(f.L, bars.clone(), transposed=True)
    return G_bar2, bars


def add_outer(A: Tensor, left: Tensor, right: Tensor) -> None:
    """Add left @ right to A; of one column and one row, faster than as a product of matrices."""
    if len(right) == 1:
        A.addr_(left[:, 0], right[0])
    else:
        A.addmm_(left, right)
