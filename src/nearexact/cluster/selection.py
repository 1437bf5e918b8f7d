"""Greedy variance selection over rows on a cluster: candidates come here, residual variances stay there.

The steps are those of `nearexact.gp.inducing`, with the same candidates. The factor F with K ≈ F Fᵀ has a row for each
row of data; no worker keeps it, since F = K_XZ L⁻ᵀ for the pivots Z so far and the factor L of K_ZZ.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from nearexact.cluster.reduction import Call
from nearexact.cluster.workers import Block, inputs, tensor
from nearexact.gp.inducing import BLOCK, CANDIDATES, Limits, Selection, checked_start, greedy_steps
from nearexact.gp.linalg import solve_rows
from nearexact.gp.memory import chunk_rows, row_chunks
from nearexact.gp.safety import Numerics
from nearexact.gp.threads import numpy_on_one_thread
from nearexact.gp.ties import Positions, Ties
from nearexact.kernels.base import Kernel
from nearexact.typing import FloatArray, IndexArray

if TYPE_CHECKING:
    from nearexact.cluster.rows import ClusterRows


class Pivots(NamedTuple):
    """Pivots so far, and those that are new: the last of them."""

    kernel: Kernel
    centre: FloatArray  # [D]
    Z: FloatArray  # those that add a column to the factor  [j + b, D]
    L: FloatArray  # of K_ZZ  [j + b, j + b]
    new: int  # b
    rows: IndexArray  # numbers of all new ones


class Candidates(NamedTuple):
    """Rows of largest residual variance, the largest first; of equal ones, in the order of their positions."""

    residuals: FloatArray
    positions: Positions
    rows: IndexArray  # their numbers
    X: FloatArray

    def of(self, chosen: IndexArray) -> Candidates:
        """Some of them."""
        return Candidates(self.residuals[chosen], self.positions[chosen], self.rows[chosen], self.X[chosen])


# ---- on the workers --------------------------------------------------------------------------------------------------


def beside(_: Block, ties: Ties) -> Ties:
    """What breaks ties among the rows of a block, to be kept where these are."""
    return ties


def first_residuals(block: Block, kernel: Kernel, centre: FloatArray) -> FloatArray:
    """Residual variances of the rows of a block, without any pivots."""
    return kernel.diagonal(kernel.features(inputs(block), tensor(centre))).numpy()


def next_residuals(block: Block, before: FloatArray, first: int, pivots: Pivots) -> FloatArray:
    """Those with more pivots, which themselves get −1; `first` is the block's first row."""
    X, values = inputs(block), torch.tensor(before)
    centre, L = tensor(pivots.centre), tensor(pivots.L)
    if pivots.new:
        cross = pivots.kernel.against(pivots.kernel.features(tensor(pivots.Z), centre))
        for rows in row_chunks(len(X), chunk_rows(len(L))):
            F = solve_rows(L, cross.values(pivots.kernel.features(X[rows], centre)))[:, -pivots.new :]
            # One column after the other, as the literal algorithm does: it rounds where their sum would not.
            for square in F.square().T.contiguous():
                values[rows] -= square
    own = pivots.rows - first
    values[torch.from_numpy(own[(own >= 0) & (own < len(X))])] = -1.0
    return values.numpy()


def candidates(block: Block, values: FloatArray, first: int, ties: Ties) -> Candidates:
    """The rows of a block that may be among the largest of all, and one more; `ties` are those of the block's rows."""
    most = CANDIDATES + 1
    if len(values) > most:
        threshold = np.partition(values, -most)[-most]
        rows = np.flatnonzero(values >= threshold)
    else:
        rows = np.arange(len(values))
    positions = ties.positions(rows)
    best = np.lexsort((positions, -values[rows]))[:most]
    rows = rows[best]
    return Candidates(values[rows], positions[best], rows + first, block[0][rows])


def merged(one: Candidates, other: Candidates) -> Candidates:
    """The largest of both."""
    parts: list[Any] = [np.concatenate(pair) for pair in zip(one, other, strict=True)]
    both = Candidates(*parts)
    return both.of(np.lexsort((both.positions, -both.residuals))[: CANDIDATES + 1])


# ---- here ------------------------------------------------------------------------------------------------------------


def select(
    rows: ClusterRows,
    kernel: Kernel,
    m: int,
    *,
    seed: int | None,
    start: npt.ArrayLike | None,
    between_blocks: Callable[[], None],
    numerics: Numerics,
) -> Selection:
    """`nearexact.gp.inducing.select` for rows on a cluster."""
    given = checked_start(rows.n, m, start)
    ties = Ties.drawn(seed, rows.n)
    factor = _Factor(rows, kernel, ties, numerics)
    with numpy_on_one_thread():
        for block in np.array_split(given, range(BLOCK, len(given), BLOCK)):
            if len(block):
                between_blocks()
                factor.add_given(block, ties.positions(block))
        more = True
        while len(factor.pivots) < m and more:
            between_blocks()
            more = factor.add_best(m - len(factor.pivots))
        left = factor.best().residuals[0]
    return Selection(np.asarray(factor.pivots, dtype=np.int64), max(float(left), 0.0))


class _Factor:
    """The pivots so far, the rows of the factor that are theirs, and futures of residual variances."""

    def __init__(self, rows: ClusterRows, kernel: Kernel, ties: Ties, numerics: Numerics) -> None:
        self.rows, self.kernel, self.cluster = rows, kernel, rows.cluster
        self.centre = np.zeros(rows.inputs)  # the mean of standardised inputs
        self.pivots: list[int] = []
        self.Z = torch.empty(0, rows.inputs, dtype=torch.float64)
        self.L = torch.empty(0, 0, dtype=torch.float64)
        parts = zip(rows.blocks, ties.split(rows.first), strict=True)
        self.ties = self.cluster.start([self.cluster.task(beside, block, part) for block, part in parts])
        self.residuals = self.cluster.start(
            [self.cluster.task(first_residuals, block, kernel, self.centre) for block in rows.blocks]
        )
        self.least = numerics.selection_tolerance * float(self.best().residuals[0])

    def best(self) -> Candidates:
        """The rows of largest residual variance, and one more."""
        parts = zip(self.rows.blocks, self.residuals, self.rows.first, self.ties, strict=False)
        calls = [Call(candidates, block, (residuals, *others)) for block, residuals, *others in parts]
        found: Candidates = self.cluster.sum(calls, merged)
        return found

    def add_best(self, most: int) -> bool:
        """Take a block of pivots, at most `most`; False if no residual is left."""
        found = self.best()
        limits = Limits(min(most, BLOCK), self.least)
        if len(found.residuals) > CANDIDATES:
            outside = float(found.residuals[-1])
            tied = outside == found.residuals[-2]
            limits = Limits(limits.most, self.least, outside, int(found.positions[-1]) if tied else 0)
        inside = np.argsort(found.positions[:CANDIDATES])
        return self._steps(found.of(inside), limits, in_order=False) > 0

    def add_given(self, rows: IndexArray, positions: Positions) -> None:
        """Take these rows as the next pivots, whatever their residuals."""
        X = self.rows.take(rows).X
        F = self._rows_of_F(X)
        variances = self.kernel.diagonal(self._features(X)) - F.square().sum(1)
        chosen = Candidates(variances.numpy(), positions, rows, X.numpy())
        self._steps(chosen, Limits(len(rows), self.least), in_order=True)

    def _steps(self, chosen: Candidates, limits: Limits, *, in_order: bool) -> int:
        X = tensor(chosen.X)
        old = self._rows_of_F(X)  # [C, j]
        R = self.kernel.gram(self._features(X)).addmm_(old, old.T, alpha=-1.0).numpy()
        taken, columns, L = greedy_steps(R, chosen.residuals.copy(), chosen.positions, limits, in_order=in_order)
        if not taken:
            return 0
        self.pivots += chosen.rows[taken].tolist()
        j, new = len(self.L), len(columns)
        grown = self.L.new_zeros(j + new, j + new)
        grown[:j, :j], grown[j:, :j], grown[j:, j:] = self.L, old[columns], torch.from_numpy(L)
        self.L, self.Z = grown, torch.cat([self.Z, X[columns]])
        pivots = Pivots(self.kernel, self.centre, self.Z.numpy(), self.L.numpy(), new, chosen.rows[np.asarray(taken)])
        shared = self.cluster.constant(pivots)
        self.residuals = self.cluster.start(
            [
                self.cluster.task(next_residuals, block, before, first, shared)
                for block, before, first in zip(self.rows.blocks, self.residuals, self.rows.first, strict=False)
            ]
        )
        return len(taken)

    def _features(self, X: Tensor) -> Tensor:
        return self.kernel.features(X, torch.from_numpy(self.centre))

    def _rows_of_F(self, X: Tensor) -> Tensor:
        """The rows of the factor that belong to rows X: [C, j]."""
        if not len(self.L):
            return X.new_empty(len(X), 0)
        return solve_rows(self.L, self.kernel.cross(self._features(X), self._features(self.Z)))
