"""What there is time for in training by conjugate gradients: evaluations, weights to rounding, variances, a factor."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from dataclasses import replace

from torch import Tensor

from nearexact.gp.budget import Timer
from nearexact.gp.column_solver import MOST_ITERATIONS
from nearexact.gp.exact import LITTLE_SHARE, SLOWER_FACTORISATION, factorisation_seconds
from nearexact.gp.iterative import Estimate, IterativeObjective
from nearexact.gp.iterative_cost import (
    BLOCK_POINTS,
    FEW_ITERATIONS,
    MOST_SPEED,
    NO_ITERATIONS,
    USUAL_PASS,
    EvaluationCost,
)
from nearexact.gp.iterative_model import HeldModel
from nearexact.gp.neighbours import CALIBRATION_ROWS
from nearexact.gp.safety import NumericalError
from nearexact.kernels.base import Kernel

FEWEST_EVALUATIONS = 2.5  # that there must be time for: with fewer θ stays where it is
MUCH_CHEAPER = 0.7  # of what it takes with the points at hand: then others are worth being selected
CHEAP_BOUND = 0.2  # of an evaluation: then many steps on a sparse GP's bound are worth more than a few of the other
FINISHING_SHARE = 0.25  # of the time limit, at most, is kept for weights to rounding and for variances
PROVING_SHARE = 0.05  # the same for bounds on the likelihood
FINISHING_POINTS = 2  # times those of an evaluation, at most: so many columns are worth a better preconditioner
FACTORISATIONS = 2.5  # that there must be time for, to plan one for the end; else there is one if time is left over
# Nats per row between an estimate and the proved bound up to which, as with few iterations, a factor would tell hardly
# more: then time is better spent on θ.
NO_NEED = 0.01
OTHER_SHARE = 0.1  # of the time limit, besides a search and a factor
# Times the iterations that cost as much as points are predicted to, which may be half of what these take where a
# function is rough: so many may be tried with blocks.
TRIAL = 1.5
# Iterations that an evaluation may take: so many times the usual number, or so many if these are few. With more of
# them the step was too long, and a shorter one is cheaper.
MORE_ITERATIONS, FEW_MORE = 5, 25


class IterativePlan:
    """Seconds as they are predicted from trials, and then from what evaluations have taken.

    `sizes` are the numbers of points to choose from; with `may_factorise` training ends with a Cholesky factor, if
    the time limit allows it; with `may_block` there is room for blocks of rows.
    """

    def __init__(self, sizes: list[int], n: int, timer: Timer, *, may_factorise: bool, may_block: bool = False) -> None:
        self.sizes, self.timer, self._may_factorise = sizes, timer, may_factorise
        self._all_sizes = sizes
        self._factorises = self._may_end_with_factor = False  # as planned now; as far as time allows it
        self.cost = EvaluationCost(n, MOST_SPEED)  # until it has been tried
        self._by_points: EvaluationCost | None = None  # of evaluations without blocks, while there are blocks
        self._trial: int | None = None  # iterations that blocks may take, as long as they have not led to convergence
        self._may_block = may_block
        # Whether the likelihood of rows in blocks is nearly the exact one at the best θ: then they need few iterations.
        self.blocks_tell = False
        self._kept = 0.0  # seconds that the end takes, at least
        self._factorisation_seconds = math.inf

    def predict(self, kernel: Kernel, X: Tensor, y: Tensor, memory: int) -> None:
        """What evaluations and factors will take."""
        self.cost = EvaluationCost.tried(kernel, X, memory, self.timer.clock)
        if self._may_factorise:
            with contextlib.suppress(NumericalError):
                self._factorisation_seconds = factorisation_seconds(
                    kernel, X, y, self.timer.clock, little=LITTLE_SHARE * self.timer.time_limit
                )
            self._may_end_with_factor = FACTORISATIONS * self._factorisation_seconds <= self.timer.time_limit
            self._factorises = self._may_end_with_factor

    def learn_from_sparse(self, model: HeldModel, *, is_elsewhere: bool = False) -> None:
        """How smooth the function is; anew, where θ is another one."""
        cost = self.cost.elsewhere() if is_elsewhere else self.cost
        self.cost = cost.after_sparse(model.points, model.left_over, model.posterior.noise_variance)
        self._factorises = self._may_end_with_factor and self.cost.predicted_iterations(self.points()) > FEW_ITERATIONS

    def start_again(self, model: HeldModel) -> None:
        """From a model at another θ, after what could not be computed at this one."""
        self.sizes, self._by_points, self._trial, self.blocks_tell = self._all_sizes, None, None, False
        self.learn_from_sparse(model, is_elsewhere=True)

    def learn(self, objective: IterativeObjective, estimate: Estimate) -> None:
        """From an evaluation."""
        m, error = len(objective.sparse.Z), estimate.standard_error / self.cost.n
        self.cost = self.cost.measured(m, objective.timing.seconds, estimate.iterations, error)
        self._trial = None
        self._factorises &= estimate.value - estimate.bounds.lower > NO_NEED * self.cost.n

    def learn_from_weights(self, m: int, iterations: int) -> None:
        """From a solution for the targets alone."""
        self.cost, self._trial = self.cost.after_weights(m, iterations), None

    def consider_blocks(self) -> None:
        """Precondition with blocks of rows where a function is rough, until iterations prove too many."""
        trial = self._trial_of_blocks()
        if trial:
            self._by_points, self.cost, self._trial = self.cost, self.cost.with_blocks(self.points()), trial

    def _trial_of_blocks(self) -> int:
        """How many iterations are worth trying with blocks; none where a function is smooth.

        Nobody knows before a measurement that more points will mean fewer iterations: where a function is rough, they
        hardly do.
        """
        if not self._may_block or self.cost.given:
            return 0
        m = self.points()
        iterations = self.cost.predicted_iterations(m) if self.cost.is_measured else self.cost.iterations
        worth = self.cost.iterations_worth(m, iterations)
        most = worth if iterations > FEW_ITERATIONS else 0.0
        if self.blocks_tell and iterations > NO_ITERATIONS and worth > -iterations:
            most = max(most, FEW_ITERATIONS)  # up to twice the cost is worth their smaller errors
        return math.ceil(TRIAL * most) if most > NO_ITERATIONS else 0

    def has_another(self, m: int) -> bool:
        """Whether there is another preconditioner, once one has not led to convergence: points, or more of them."""
        if self._by_points is not None:
            self.cost, self._by_points, self._trial = self._by_points, None, None
            self._may_block = self.blocks_tell = False
        else:
            self.sizes = [size for size in self.sizes if size > m]  # with more points it is easier
        return bool(self.sizes)

    def points(self) -> int:
        """Of the next climb: as many as make an evaluation cheapest."""
        return min(BLOCK_POINTS, self.sizes[-1]) if self.cost.given else self.cost.cheapest(self.sizes)

    def most_iterations(self, m: int) -> int | None:
        """That the first evaluation of a climb may take, as far as that is known: many more would eat all the time."""
        if self._trial is not None:
            return self._trial
        if self.cost.given or (self.cost.is_measured and m < self.sizes[-1]):
            return most_iterations(self.cost.predicted_iterations(m))
        return None

    def points_of_bound(self) -> int:
        """With which a sparse GP's bound is far cheaper than an evaluation: as many as possible, or none."""
        most = CHEAP_BOUND * self._counted.predicted(self.points())
        return max((m for m in self.sizes if self._counted.sweeping(m) <= most), default=0)

    def is_dear(self, m: int) -> bool:
        """Whether evaluations with blocks, or with another number of points, may be much cheaper."""
        if self._trial_of_blocks():
            seconds = (TRIAL + FEWEST_EVALUATIONS) * self.cost.predicted(m)
            return seconds + self.finishing_seconds() <= self.timer.left()
        return self._counted.predicted(self.points()) <= MUCH_CHEAPER * self._counted.predicted(m)

    @property
    def _counted(self) -> EvaluationCost:
        """Without what was measured about K: to compare numbers of points, since a clock decides nothing."""
        return replace(self.cost, kernel_pass=USUAL_PASS)

    def climbing_seconds(self, *, is_first: bool) -> float:
        """What there must be time for before a climb begins."""
        evaluations = FEWEST_EVALUATIONS if is_first else 1.0
        return evaluations * self.cost.predicted(self.points()) + self.finishing_seconds()

    def has_time_to_factorise(self) -> bool:
        """Whether a Cholesky factor is wanted, and there is time left for it."""
        slower = 1.0 if self._factorises else SLOWER_FACTORISATION
        return self._may_factorise and self.timer.left() > slower * self._factorisation_seconds

    def spare_seconds(self) -> float:
        """Besides the end of training, and a Cholesky factor if there is time for it now."""
        factor = SLOWER_FACTORISATION * self._factorisation_seconds if self.has_time_to_factorise() else 0.0
        return self.timer.left() - max(self.finishing_seconds(), factor)

    def seconds_before_factor(self, most: float) -> float:
        """So many seconds, or fewer if a Cholesky factor then has time, too."""
        seconds = (1.0 - OTHER_SHARE) * self.timer.time_limit - SLOWER_FACTORISATION * self._factorisation_seconds
        return seconds if OTHER_SHARE * self.timer.time_limit < seconds < most else most

    def finishing(self, seconds: float) -> tuple[int, int]:
        """Points of the preconditioner, and training rows to learn variances from: as many as there is time for."""
        held, counted = self.cost.iterations_m, self._counted
        sizes = [m for m in self.sizes if held <= m <= FINISHING_POINTS * held] or [held]
        m, rows = held, 0
        for rows in (*CALIBRATION_ROWS, 0):
            m = min(sizes, key=lambda m: counted.finishing(m, rows))
            if counted.finishing(m, rows) > MUCH_CHEAPER * counted.finishing(held, rows):
                m = held  # others have to be selected first, and K is computed again
            if self._by_points is not None:  # whatever is asked of the model later makes use of its points
                m = max(self._by_points.cheapest(self.sizes), held)
                if self.cost.finishing(m, rows) > seconds:
                    m = held
            if self.cost.finishing(m, rows) <= seconds:
                break
        return m, rows

    def finishing_seconds(self) -> float:
        """What the end of training may take."""
        if self._factorises:
            return 1.5 * self._factorisation_seconds
        share = FINISHING_SHARE * self.timer.time_limit
        finishing = min(self.cost.finishing(*self.finishing(share)), share)
        return max(finishing + self.proving_seconds(), self._kept)

    def proving_seconds(self) -> float:
        """What is kept of that for bounds by the chain rule."""
        return min(self.cost.proving(), PROVING_SHARE * self.timer.time_limit)

    def left_to_finish(self) -> float:
        """Seconds for weights and variances."""
        return self.timer.left() - self.proving_seconds()

    @contextlib.contextmanager
    def another_start(self, model: HeldModel) -> Iterator[None]:
        """What comes in between is predicted for this model, with time kept for the end of the one that is held."""
        before = self.sizes, self.cost, self._factorises, self._by_points, self._trial, self._may_block
        blocks_tell = self.blocks_tell
        self._kept = self.finishing_seconds()
        self.cost = self.cost.elsewhere().after_sparse(model.points, model.left_over, model.posterior.noise_variance)
        self._by_points = self._trial = None
        try:
            yield
        finally:
            self.sizes, self.cost, self._factorises, self._by_points, self._trial, self._may_block = before
            self._kept, self.blocks_tell = 0.0, blocks_tell

    def operations_at(self, model: HeldModel) -> float:
        """Of an evaluation there, as far as a sparse GP tells."""
        cost = replace(self._counted, seconds_per_operation=1.0)
        cost = cost.after_sparse(model.points, model.left_over, model.posterior.noise_variance)
        return cost.predicted(cost.cheapest(self.sizes))

    def keep_time_to_finish(self) -> None:
        """TimeIsUpError where there would be none left for the end."""
        self.timer.require(self.finishing_seconds())


def most_iterations(usual: float) -> int:
    """That an evaluation may take where so many are usual."""
    return min(max(math.ceil(MORE_ITERATIONS * usual), FEW_MORE), MOST_ITERATIONS)
