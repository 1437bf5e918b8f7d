"""Greedy variance selection: inducing points by pivoted Cholesky of K_XX, in blocks, at the speed of matrix products.

The literal algorithm takes the row of largest residual variance k(x, x) − q(x, x), adds its column to the factor, and
starts again: every step reads the whole factor. But residuals only ever fall, so a residual that is out of date is an
upper bound. A block of pivots can therefore be found among the candidates of largest residual alone, as long as the
best of them stays above every residual outside; then all residuals are brought up to date at once. The pivots are the
same, and no step reads [N, m] for the sake of a single column.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from nearexact.gp.safety import DEFAULT_NUMERICS, Numerics
from nearexact.gp.threads import numpy_on_one_thread
from nearexact.gp.ties import Positions, tie_order
from nearexact.kernels.base import Kernel, as_kernel
from nearexact.kernels.names import unless_named
from nearexact.typing import FloatArray, IndexArray
from nearexact.validation import as_matrix

CANDIDATES = 512
BLOCK = 64
ROWS_AT_ONCE = 2**15


@dataclass(frozen=True)
class Selection:
    """Chosen rows of X in the order in which they were chosen, and the largest residual variance that is left."""

    indices: IndexArray
    residual: float


def greedy_variance(
    kernel: Kernel | str, X: Any, m: int, *, seed: int | None, start: npt.ArrayLike | None = None
) -> IndexArray:
    """Indices of at most m rows of X, each the one of largest variance given those before it.

    Ties are broken by a random order drawn from `seed` (ties.py). Fewer than m come back when the residual variance has
    run out: further points would be copies. `start` is an earlier selection to be extended: it is kept, in its order.
    """
    return select(unless_named(kernel), X, m, seed=seed, start=start).indices


def select(
    kernel: Kernel,
    X: Any,
    m: int,
    *,
    seed: int | None,
    start: npt.ArrayLike | None = None,
    between_blocks: Callable[[], None] | None = None,
    numerics: Numerics = DEFAULT_NUMERICS,
) -> Selection:
    """`greedy_variance` with what else is known at its end.

    `between_blocks` is called before each block of pivots; an exception that it raises ends the selection.
    """
    inputs = as_matrix(X, "X")
    n = len(inputs)
    given = checked_start(n, m, start)
    order = tie_order(seed, n)
    kernel = as_kernel(kernel, inputs.shape[1])
    features = kernel.features(inputs[torch.from_numpy(order)], inputs.mean(0))
    state = _Residuals(kernel, features, m, numerics)
    position = np.empty(n, dtype=np.int64)
    position[order] = np.arange(n)
    pause = between_blocks or (lambda: None)
    with numpy_on_one_thread():
        for block in np.array_split(position[given], range(BLOCK, len(given), BLOCK)):
            if len(block):
                pause()
                state.add_given(block)
        more = True
        while len(state.pivots) < m and more:
            pause()
            more = state.add_best(m - len(state.pivots))
    return Selection(order[np.asarray(state.pivots, dtype=np.int64)], max(float(state.residual.max()), 0.0))


def checked_start(n: int, m: int, start: npt.ArrayLike | None) -> IndexArray:
    """The row numbers that m of n are to begin with; a ValueError if they are none, or if m is no such number."""
    given = np.asarray(np.zeros(0, np.int64) if start is None else start)
    if not isinstance(m, (int, np.integer)) or not 1 <= m <= n:
        raise ValueError(f"m must be a whole number between 1 and the number of rows, {n}, got {m!r}")
    whole = given.dtype.kind in "iu" and given.ndim == 1 and len(np.unique(given)) == len(given) <= m
    if not whole or ((given < 0) | (given >= n)).any():
        raise ValueError(f"start must be at most m={m} different row numbers below {n}, got {start!r}")
    return given


def selection_memory(kernel: Kernel, n: int, m: int, n_features: int) -> int:
    """Bytes that selecting m of n rows allocates at most, besides the data: the factor above all."""
    by_row = m + 2 * n_features + 4  # the factor, features of the permuted rows, residuals and the order
    block = min(n, ROWS_AT_ONCE) * min(m, BLOCK) * (3 + kernel.temporaries)
    candidates = min(n, CANDIDATES) * (min(n, CANDIDATES) * (2 + kernel.temporaries) + m)
    return 8 * (n * by_row + block + candidates)


@dataclass(frozen=True)
class Limits:
    """Where greedy steps among candidates end: see `greedy_steps`."""

    most: int  # steps
    least: float  # residual variance, up to which what is left is rounding noise
    outside: float = -np.inf  # the largest residual variance of a row that is no candidate ...
    first: int = 0  # ... and the position of the first row that has it


def greedy_steps(
    R: FloatArray, residual: FloatArray, positions: Positions, limits: Limits, *, in_order: bool
) -> tuple[list[int], list[int], FloatArray]:
    """Greedy steps among candidates, of residual covariance R [C, C] and residual variances [C], which are changed.

    They end where a row outside might come next, unless all are to be taken `in_order`: where the best residual falls
    below the largest outside, or equals it and does not come before the first row that has it. What comes back are the
    candidates that were taken; those of them that add a column to the factor, since a given pivot may be a copy of an
    earlier one; and the Cholesky factor of their residual covariance.
    """
    W: FloatArray = np.zeros((len(residual), limits.most))  # columns that the new pivots add to the factor
    taken: list[int] = []
    columns: list[int] = []
    for step in range(limits.most):
        best = step if in_order else int(residual.argmax())
        exhausted = residual[best] <= limits.least
        tied = residual[best] == limits.outside and positions[best] >= limits.first
        beaten = residual[best] < limits.outside or tied
        if not in_order and (exhausted or (taken and beaten)):
            break
        taken.append(best)
        k = len(columns)
        if not exhausted:
            column = R[:, best] - W[:, :k] @ W[best, :k]
            W[:, k] = column / np.sqrt(residual[best])
            W[best, k] = np.sqrt(residual[best])
            residual -= W[:, k] ** 2
            columns.append(best)
        residual[best] = -1.0
    return taken, columns, np.tril(W[columns, : len(columns)])


class _Residuals:
    """Residual variances of all rows given the pivots so far, and the factor F with K ≈ F Fᵀ that produces them."""

    def __init__(self, kernel: Kernel, features_X: Tensor, m: int, numerics: Numerics) -> None:
        self.kernel, self.features_X = kernel, features_X
        self.residual = kernel.diagonal(features_X).clone()  # [N]; −1 for pivots, so that none is taken twice
        self.least = numerics.selection_tolerance * float(self.residual.max())
        self.F = features_X.new_empty(len(features_X), m)  # [N, m], the first `columns` of it in use
        self.columns = 0
        self.pivots: list[int] = []

    def add_best(self, most: int) -> bool:
        """Take a block of pivots, at most `most`; False if no residual is left."""
        candidates, outside, first = self._candidates()
        return self._steps(candidates, min(most, BLOCK), outside=outside, first=first) > 0

    def add_given(self, positions: IndexArray) -> None:
        """Take these rows as the next pivots, whatever their residuals."""
        self._steps(torch.from_numpy(positions).to(self.features_X.device), len(positions), in_order=True)

    def _candidates(self) -> tuple[Tensor, float, int]:
        """Rows of largest residual, in order of position; the largest residual outside, and the first row with it."""
        n = len(self.residual)
        if n <= CANDIDATES:
            return torch.arange(n, device=self.features_X.device), -np.inf, n
        values = torch.topk(self.residual, CANDIDATES + 1).values
        threshold = values[-2]
        above = (self.residual > threshold).nonzero()[:, 0]
        equal = (self.residual == threshold).nonzero()[:, 0]
        taken = CANDIDATES - len(above)  # of those equal to the threshold, the first so many
        first = int(equal[taken]) if taken < len(equal) else 0
        return torch.cat([above, equal[:taken]]).sort().values, float(values[-1]), first

    def _steps(
        self, rows: Tensor, most: int, *, outside: float = -np.inf, first: int = 0, in_order: bool = False
    ) -> int:
        """Greedy steps among `rows` alone, then the update of every residual; how many were taken."""
        old = self.F[rows, : self.columns]  # [C, j]
        # Residual covariance of the candidates; the steps themselves are too small to gain from anything but NumPy.
        R = self.kernel.gram(self.features_X[rows]).addmm_(old, old.T, alpha=-1.0).cpu().numpy()  # [C, C]
        residual, positions = self.residual[rows].cpu().numpy().copy(), rows.cpu().numpy()
        limits = Limits(most, self.least, outside, first)
        taken, columns, L = greedy_steps(R, residual, positions, limits, in_order=in_order)
        self.pivots += positions[taken].tolist()
        if columns:
            self._update(rows[columns], torch.from_numpy(L).to(self.features_X.device))
        self.residual[rows[taken]] = -1.0
        return len(taken)

    def _update(self, pivots: Tensor, L: Tensor) -> None:
        """Columns of the factor for new pivots, L being the Cholesky factor of their residual covariance."""
        j, b = self.columns, len(pivots)
        old, features_Z = self.F[pivots, :j], self.features_X[pivots]
        for first in range(0, len(self.features_X), ROWS_AT_ONCE):
            rows = slice(first, first + ROWS_AT_ONCE)
            K = self.kernel.cross(self.features_X[rows], features_Z).addmm_(
                self.F[rows, :j], old.T, alpha=-1.0
            )  # [rows, b]
            torch.linalg.solve_triangular(L.T, K, upper=True, left=False, out=K)
            self.F[rows, j : j + b] = K
            # One column after the other, as the literal algorithm does: it rounds where their sum would not.
            for square in K.square_().T.contiguous():
                self.residual[rows] -= square
        self.columns += b
