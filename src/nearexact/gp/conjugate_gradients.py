"""Bounds on yᵀK̂⁻¹y for the exact K̂ = K + sI, by conjugate gradients that never store K̂ (Artemev et al. 2021).

Any v with residual r = y − K̂v brackets the quadratic form, since Q + sI = P ⪯ K̂:

    2yᵀv − vᵀK̂v  ≤  yᵀK̂⁻¹y  ≤  2yᵀv − vᵀK̂v + rᵀP⁻¹r

P, of which a sparse GP has the factors at hand, is also the preconditioner. An iteration takes one product with K̂, of
which every entry is computed once for the two places where it stands, block by block.
"""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from nearexact.gp.bounds import Interval, LikelihoodBounds
from nearexact.gp.chunks import row_chunks
from nearexact.gp.factorisation import Factorisation
from nearexact.gp.sparse import SparseObjective
from nearexact.kernels.base import Kernel, with_diagonal

logger = logging.getLogger(__name__)

BLOCK_ROWS = 1024  # of K, and as many columns: the passes over a block find it in the cache
MOST_ITERATIONS = 100
SETTLED_PER_POINT = 1e-4  # nats: a hundredth of the gap that certifies
SETTLED_SHARE = 0.01  # of what the log determinant leaves open, which no iteration changes
STALLED_ITERATIONS, STALLED_GAIN = 20, 0.01  # no longer shrinking: less than this share in so many iterations

# Why the iterations ended.
SETTLED, STALLED, TIME_LIMIT, ITERATIONS = "small enough", "no longer shrinking", "time limit", "iterations"


@dataclass(frozen=True, eq=False)
class Iteration:
    """Where the conjugate gradients stand."""

    number: int  # of products with K̂ so far
    solution: Tensor  # v, which the next iteration changes  [N]
    quadratic: Interval  # what this v alone proves
    bounds: LikelihoodBounds  # the best so far
    seconds: float  # since they began


@dataclass(frozen=True)
class Bracketed:
    """What came out of it."""

    bounds: LikelihoodBounds
    iterations: int
    seconds: float
    stopped: str


class OutOfTimeError(Exception):
    """What is under way would end after the time limit."""


class KernelProduct:
    """v ↦ (K + sI)v for the kernel matrix K of all rows of X. Blocks above the diagonal stand for those below, too."""

    def __init__(self, kernel: Kernel, noise_variance: float, X: Tensor, rows: int = BLOCK_ROWS) -> None:
        self.noise_variance = noise_variance
        self.features = kernel.features(X, X.mean(0))  # [N, F]
        self.diagonal = kernel.diagonal(self.features)  # [N]
        self.blocks = list(row_chunks(len(X), min(rows, len(X))))
        self.crosses = [kernel.against(self.features[block]) for block in self.blocks]
        self._buffer = X.new_empty(min(rows, len(X)) ** 2)

    def block(self, i: int, j: int) -> Tensor:
        """K of the i-th and the j-th block of rows, in a buffer that the next call overwrites."""
        rows, columns = self.blocks[i], self.blocks[j]
        shape = (rows.stop - rows.start, columns.stop - columns.start)
        K = self.crosses[j].values(self.features[rows], out=self._buffer[: shape[0] * shape[1]].view(shape))
        return with_diagonal(K, self.diagonal[rows]) if i == j else K

    def __call__(self, v: Tensor, check: Callable[[], None] = lambda: None) -> Tensor:
        """(K + sI)v [N]. `check` is called between rows of blocks; an exception that it raises ends the product."""
        product = v * self.noise_variance
        for j, columns in enumerate(self.blocks):
            check()
            for i, rows in enumerate(self.blocks[: j + 1]):
                K = self.block(i, j)
                product[rows].addmv_(K, v[columns])
                if i != j:
                    product[columns].addmv_(K.T, v[rows])
        return product


class Preconditioner:
    """r ↦ P⁻¹r for P = Q + sI = VᵀV + sI, from the factors of a sparse GP (Woodbury)."""

    def __init__(self, objective: SparseObjective, f: Factorisation) -> None:
        self.objective, self.f = objective, f

    def __call__(self, r: Tensor, check: Callable[[], None] = lambda: None) -> tuple[Tensor, float]:
        """P⁻¹r [N] and rᵀP⁻¹r."""
        f, s = self.f, self.f.noise_variance
        Vr = torch.zeros_like(f.b)
        for rows, V in self.objective.rows_of_V(f):
            check()
            Vr.addmv_(V.T, r[rows])
        half = torch.linalg.solve_triangular(f.L_B, Vr[:, None], upper=False)  # L_B⁻¹Vr  [M, 1]
        weights = torch.linalg.solve_triangular(f.L_B.T, half, upper=True)[:, 0].div_(s)  # B⁻¹Vr/s  [M]
        solved = r.clone()
        for rows, V in self.objective.rows_of_V(f):
            check()
            solved[rows].addmv_(V, weights, alpha=-1.0)
        quadratic = (float(r @ r) - float(half.square().sum()) / s) / s
        return solved.div_(s), max(quadratic, 0.0)  # (r − VᵀB⁻¹Vr/s)/s


def bracket(
    objective: SparseObjective,
    f: Factorisation,
    *,
    iterations: int | None = None,
    time_limit: float = math.inf,
    tolerance: float | None = None,
    on_iteration: Callable[[Iteration], None] | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> Bracketed:
    """The bounds of a sparse GP's last factorisation, tightened by conjugate gradients on K̂v = y from v = 0.

    They end after so many iterations, at the time limit (seconds), when what the quadratic form leaves open is below
    `tolerance` (nats; by default when closing it would hardly change the gap), or when it no longer shrinks. The best
    of each side is kept, so more iterations never give looser bounds.
    """
    began = clock()

    def check() -> None:
        if clock() - began > time_limit:
            raise OutOfTimeError

    bounds, y = f.bounds, objective.y
    if tolerance is None:
        tolerance = max(SETTLED_PER_POINT * f.n, SETTLED_SHARE * bounds.trace_gap)
    most = MOST_ITERATIONS if iterations is None else iterations
    number, stopped = 0, ITERATIONS
    gaps: deque[float] = deque([bounds.residual_gap], maxlen=STALLED_ITERATIONS + 1)
    try:
        if most:
            product = KernelProduct(f.kernel, f.noise_variance, objective.X)
            solve = Preconditioner(objective, f)
            v, r = torch.zeros_like(y), y.clone()
            direction, rho = solve(r, check)  # P⁻¹r and rᵀP⁻¹r
        while number < most:
            if bounds.residual_gap <= tolerance:
                stopped = SETTLED
                break
            if len(gaps) > STALLED_ITERATIONS and gaps[-1] > (1.0 - STALLED_GAIN) * gaps[0]:
                stopped = STALLED
                break
            K_direction = product(direction, check)
            curvature = float(direction @ K_direction)
            step = rho / curvature if curvature > 0.0 else math.nan
            if not math.isfinite(step):  # nothing is left but rounding noise
                stopped = STALLED
                break
            # Only now: until here nothing has changed, so that running out of time leaves v and r together.
            solved, next_rho = solve(torch.sub(r, K_direction, alpha=step), check)
            v.add_(direction, alpha=step)
            r.sub_(K_direction, alpha=step)
            number += 1
            least = float(y @ v) + float(r @ v)  # 2yᵀv − vᵀK̂v, as K̂v = y − r
            quadratic = Interval(least, least + next_rho)
            bounds = bounds.meet(quadratic=quadratic)
            gaps.append(bounds.residual_gap)
            if on_iteration is not None:
                on_iteration(Iteration(number, v, quadratic, bounds, clock() - began))
            direction, rho = solved.add_(direction, alpha=next_rho / rho), next_rho
    except OutOfTimeError:
        stopped = TIME_LIMIT
    logger.info("conjugate gradients: %s after %d iterations, %.1f s", stopped, number, clock() - began)
    return Bracketed(bounds, number, clock() - began, stopped)
