"""How near bounds on the exact GP's predictions can be brought to each other, within limits of time and memory.

First v ≈ K̂⁻¹y by conjugate gradients, once for all rows: with the columns k(X, x) alone, that settles most means. Then
each row gets what the model has at hand, in time of order NM; with a Cholesky factor it is done there. Then conjugate
gradients on the columns, many at once, until the bounds are near enough. Every result is judged by its own residual,
computed anew. What has been proved when the time is up remains.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from nearexact.gp.block_cg import BlockSolution, NotConvergedError, block_cg
from nearexact.gp.budget import TimeIsUpError, Timer
from nearexact.gp.prediction_bounds import Columns, ExactSystem, PredictionBounds
from nearexact.gp.prediction_solvers import Solver

logger = logging.getLogger(__name__)

MEAN_SHARE = 1e-3  # of the std of a new observation, by which a mean may be off and count as known
STD_SHARE = 1e-2  # of the latent std, by which its bounds may be apart and count as known
VARIANCE_SHARE = 1.5 * STD_SHARE  # twice as much is the same for variances; less, to make sure
SOLUTION_TIME = 0.5  # the share of time that v may take
COLUMN_ARRAYS = 16  # [N, C] arrays that are alive at once, at most, besides the kernel's own
MOST_COLUMNS = 256
NEAREST_ROWS = 128  # that bound a variance from above at once
MOST_ITERATIONS = 1000  # of conjugate gradients, between two residuals that are computed anew
STALLED_ITERATIONS = 50  # in which the least that was left open must fall to a half
LEAST_GAIN = 0.1  # by which another round must narrow some bounds
RESERVE = 1.5  # times the last iteration: what the residual computed anew may take


class EnoughError(Exception):
    """Conjugate gradients have come as far as they are needed, or can."""


@dataclass
class TightenedPredictions:
    """What came out of it."""

    bounds: PredictionBounds
    known: Tensor  # whether the bounds of a row are as near as they were to be: bool [rows]


def tighten_predictions(
    system: ExactSystem,
    solver: Solver,
    X_new: Tensor,
    *,
    memory: int,
    time_limit: float = math.inf,
    clock: Callable[[], float] = time.perf_counter,
) -> TightenedPredictions:
    """Bounds on the exact GP's mean and variance at each row of X_new; `memory` in bytes, `time_limit` in seconds."""
    run = _Run(system, solver, X_new, memory, Timer(time_limit, clock))
    try:
        run.solve()
        run.by_columns()
        run.by_factors()
        run.by_conjugate_gradients()
    except TimeIsUpError:
        pass
    known = run.is_known(run.bounds)
    logger.info("bounds on %d predictions, %d settled, %.1f s", len(known), int(known.sum()), run.timer.seconds())
    return TightenedPredictions(run.bounds, known)


class _Run:
    """The bounds of all rows so far."""

    def __init__(self, system: ExactSystem, solver: Solver, X_new: Tensor, memory: int, timer: Timer) -> None:
        self.system, self.solver, self.X_new, self.timer = system, solver, X_new, timer
        self.columns = max(
            min(memory // (8 * (COLUMN_ARRAYS + system.kernel.temporaries) * len(system.X)), MOST_COLUMNS), 1
        )
        kernel = system.kernel
        k_new = [kernel.diagonal(kernel.features(part, system.centre)) for part in torch.split(X_new, 2**16)]
        self.bounds = system.trivial_bounds(torch.cat(k_new))
        self.solution = system.solution(torch.zeros_like(system.y), system.y, None)

    def solve(self) -> None:
        """v ≈ K̂⁻¹y, as good as means need it, or as time allows."""
        system, solver = self.system, self.solver
        largest = float(system.sizes.square().max())  # of k(x, x): as if nothing were known about a row
        target = (0.3 * MEAN_SHARE) ** 2 * system.noise_variance / largest
        timer = Timer(SOLUTION_TIME * self.timer.left(), self.timer.clock)
        v = solver.weights()
        try:
            if v is None:
                v, r = torch.zeros_like(system.y), system.y
            else:
                r = system.residuals(system.y, v, timer.check)
            self._take(v, r, timer)
            while self.solution.squared_error > target:
                before = self.solution.squared_error
                change = self._iterate(r[:, None], torch.full_like(r[:1], target), lambda latest: False, timer)
                v = v + change[:, 0]
                r = system.residuals(system.y, v, timer.check)
                self._take(v, r, timer)
                if self.solution.squared_error > (1.0 - LEAST_GAIN) * before:
                    return
        except TimeIsUpError:
            return

    def _take(self, v: Tensor, r: Tensor, timer: Timer) -> None:
        solution = self.system.solution(v, r, self.solver.explain(r[:, None], None, timer.check))
        if solution.squared_error <= self.solution.squared_error:
            self.solution = solution

    def by_columns(self) -> None:
        """With w = 0 and f = 0, which takes next to no time."""
        for rows in self._open_blocks():
            columns = self.system.columns(self.X_new[rows])
            nothing = torch.zeros_like(columns.K)
            self.bounds.update(rows, self.system.bounds(columns, self.solution, nothing, columns.K, None))

    def by_factors(self) -> None:
        """All that can be had without conjugate gradients on columns."""
        for rows in self._open_blocks():
            columns = self.system.columns(self.X_new[rows])
            if self.solver.has_factor:
                W = self.solver.precondition(columns.K, self.timer.check)
                self._improve(rows, columns, W, self.system.residuals(columns.K, W, self.timer.check))
            else:
                self._improve(rows, columns, torch.zeros_like(columns.K), columns.K)
                upper = nearest_rows_bounds(self.system, columns, self.timer)
                self.bounds.variance_upper[rows] = torch.fmin(self.bounds.variance_upper[rows], upper)

    def by_conjugate_gradients(self) -> None:
        """Until the bounds of all rows are near enough, or come no nearer.

        One block after the other: half of the iterations prove hardly anything, so that some rows had better get all.
        """
        for rows in self._open_blocks():
            self._refine(rows)

    def _open_blocks(self) -> Iterator[Tensor]:
        """Rows that are not known well enough, as many as can be worked on at once."""
        for rows in torch.split((~self.is_known(self.bounds)).nonzero()[:, 0], self.columns):
            self.timer.check()
            yield rows

    def _refine(self, rows: Tensor) -> None:
        columns = self.system.columns(self.X_new[rows])
        usable = columns.K.square().sum(0).isfinite()  # rows beyond all numbers would spoil the others
        rows, columns = rows[usable], columns.of(usable)
        W, R = torch.zeros_like(columns.K), columns.K
        while len(rows):
            before, targets = self._widths(rows), VARIANCE_SHARE * self.bounds.variance_lower[rows]
            W = W + self._iterate(R, targets, self._enough(rows, columns, W), self.timer)
            R = self.system.residuals(columns.K, W, self.timer.check)
            self._improve(rows, columns, W, R)
            going = ~self.is_known(self.bounds.of(rows)) & (self._widths(rows) < (1.0 - LEAST_GAIN) * before)
            rows, columns, W, R = rows[going], columns.of(going), W[:, going], R[:, going]

    def _enough(self, rows: Tensor, columns: Columns, W: Tensor) -> Callable[[BlockSolution], bool]:
        """Whether iterations so far, as far as they can tell themselves, make the bounds near enough."""
        least = self.bounds.variance_lower[rows]

        def enough(latest: BlockSolution) -> bool:
            solved = W + latest.columns
            upper = columns.k_new - (columns.K * solved).sum(0) - (latest.residuals * solved).sum(0)
            variance = torch.fmax(least, upper - latest.residual_bounds)
            return bool((latest.residual_bounds <= VARIANCE_SHARE * variance).all())

        return enough

    def _iterate(self, R: Tensor, targets: Tensor, enough: Callable[[BlockSolution], bool], timer: Timer) -> Tensor:
        """Nearly K̂⁻¹R, by conjugate gradients until that is enough, nothing is gained, or time is nearly up.

        A column whose rᵀP⁻¹r is at its target is left out of later iterations.
        """
        latest: BlockSolution | None = None
        reserve, started = 0.0, timer.seconds()
        open_shares: list[float] = []

        def check() -> None:
            timer.require(reserve)

        def on_iteration(solution: BlockSolution) -> None:
            nonlocal latest, reserve, started
            latest = solution
            reserve, started = RESERVE * (timer.seconds() - started), timer.seconds()
            open_shares.append(float((solution.residual_bounds / first).max()))
            earlier = open_shares[:-STALLED_ITERATIONS]
            stalled = earlier and not min(open_shares) < 0.5 * min(earlier)
            if stalled or enough(solution):
                raise EnoughError

        first = (R * self.solver.precondition(R, check)).sum(0).clamp_(min=torch.finfo(R.dtype).tiny)  # rᵀP⁻¹r
        try:
            return block_cg(
                lambda columns: self.system.product(columns, check),
                lambda columns: self.solver.precondition(columns, check),
                R,
                tolerance=(targets / first).clamp(min=torch.finfo(R.dtype).eps ** 2),
                most_iterations=MOST_ITERATIONS,
                check=check,
                on_iteration=on_iteration,
            ).columns
        except NotConvergedError as error:
            return error.solution.columns
        except (EnoughError, TimeIsUpError):
            return torch.zeros_like(R) if latest is None else latest.columns

    def _improve(self, rows: Tensor, columns: Columns, W: Tensor, R: Tensor) -> None:
        explanation = self.solver.explain(R, columns.X_new, self.timer.check)
        self.bounds.update(rows, self.system.bounds(columns, self.solution, W, R, explanation))

    def is_known(self, bounds: PredictionBounds) -> Tensor:
        """Whether bounds are so near to each other that the rest does not matter: bool [C]."""
        std = bounds.variance_upper.sqrt()
        mean = bounds.mean_upper - bounds.mean_lower <= 2.0 * MEAN_SHARE * self._noisy_std(bounds)
        return mean & (std - bounds.variance_lower.sqrt() <= STD_SHARE * std)

    def _widths(self, rows: Tensor) -> Tensor:
        """How far the bounds of rows are apart, in multiples of what would be near enough: [C]."""
        bounds = self.bounds.of(rows)
        mean = (bounds.mean_upper - bounds.mean_lower) / (2.0 * MEAN_SHARE * self._noisy_std(bounds))
        std = bounds.variance_upper.sqrt()
        return torch.fmax(mean, (std - bounds.variance_lower.sqrt()) / (STD_SHARE * std))

    def _noisy_std(self, bounds: PredictionBounds) -> Tensor:
        return (bounds.variance_lower + self.system.noise_variance).sqrt()


def nearest_rows_bounds(system: ExactSystem, columns: Columns, timer: Timer) -> Tensor:
    """Upper bounds on the exact variances, from the rows of the data that tell most about each new one: [C].

    More data never make a variance larger, so that some of them give an upper bound. Alone, an observation at x_i
    lowers the variance by k(x_i, x)²/(k(x_i, x_i) + s).
    """
    kernel, s = system.kernel, system.noise_variance
    gains = columns.K.square() / (system.k_X + s)[:, None]
    nearest = gains.topk(min(NEAREST_ROWS, len(gains)), dim=0).indices  # [S, C]
    upper = torch.empty_like(columns.k_new)
    for i, rows in enumerate(nearest.T):
        timer.check()
        k, k_new = columns.K[rows, i][:, None], columns.k_new[i]
        K_hat = kernel.gram(kernel.features(system.X[rows], system.centre))
        if system.scales is not None:
            K_hat.mul_(system.scales[rows][:, None]).mul_(system.scales[rows])
        K_hat.diagonal().add_(s)
        w = torch.cholesky_solve(k, torch.linalg.cholesky_ex(K_hat)[0])
        reach = k_new.sqrt() + system.sizes[rows] @ w[:, 0].abs()
        slack = 4.0 * columns.rounding[i] * (reach.square() + s * w.square().sum())
        upper[i] = k_new - (k * w).sum() - ((k - K_hat @ w) * w).sum() + slack
    return upper
