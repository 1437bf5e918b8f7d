"""Climbs from one start on the likelihood that conjugate gradients estimate, until nothing is left to gain.

A climb keeps inducing points and probes fixed, so that the optimiser sees a smooth function. The next one selects
points for the θ that was reached, as many as make an evaluation cheapest, and draws new probes; when a whole climb
gains no more than the standard error of its own estimate, nothing is left to be found.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable

import numpy as np

from nearexact.gp.curvature import newton_gain
from nearexact.gp.iterative import Estimate, IterativeObjective
from nearexact.gp.iterative_model import HeldModel
from nearexact.gp.iterative_plan import IterativePlan, most_iterations
from nearexact.gp.iterative_workbench import Workbench
from nearexact.gp.optimise import LBFGSSettings, OptimiserEnd, Step, minimise
from nearexact.gp.parameters import LogCoordinates
from nearexact.typing import FloatArray

logger = logging.getLogger(__name__)

FIRST_STEPS = 8  # of L-BFGS in the first climb; twice as many in each one after
# Lengths of the first step, in logarithms: the search's θ is near already, later climbs begin where an optimum was
# found, and a step that is too long leads to θ at which conjugate gradients take several times as long.
FIRST_STEP, LATER_STEP = 0.3, 0.1
PATIENCE, NOISE_SHARE = 4, 0.5  # so many evaluations that gain less than this share of the standard error end a climb
# Times the iterations of a climb's first evaluation, and so many at least: then its points are those of another θ.
STALE, STALE_ITERATIONS = 4, 12
SETTLED = 1e-4  # nats per row that a whole climb may gain, if the standard error is smaller, for θ to be found
# Of what counts as settled: where Newton's step would gain no more than that, or than what the estimate is uncertain
# by, further evaluations only confirm it.
NEGLIGIBLE_SHARE = 0.1


class _OnlyNoiseLeftError(Exception):
    """The optimiser gains less than what the estimate is uncertain by."""


class _OtherPointsError(Exception):
    """Evaluations with another number of points would be much cheaper."""


class _StalePointsError(Exception):
    """Points selected for the present θ would make evaluations much cheaper."""


class Climbs:
    """From one start. `model` is what they have led to so far.

    `curvature` gives second derivatives of the likelihood of some rows at a θ, if they are known; `on_step` is called
    after each step of the optimiser with the number of points, and `kept` with each better model. `until` makes, for
    each climb, what is called after its steps and ends it by StopIteration.
    """

    def __init__(
        self,
        bench: Workbench,
        plan: IterativePlan,
        model: HeldModel,
        *,
        curvature: Callable[[FloatArray], FloatArray | None],
        kept: Callable[[HeldModel], None],
        on_step: Callable[[int, Step], None],
        until: Callable[[], Callable[[Step], None]] = lambda: lambda _: None,
    ) -> None:
        self.bench, self.plan, self.timer, self.n = bench, plan, plan.timer, len(bench.y)
        self.model, self.curvature, self.kept, self.on_step, self.until = model, curvature, kept, on_step, until
        self.cost = plan.cost  # of evaluations, after the last one
        self.number = 0  # of climbs so far
        self.points = 0  # of the present climb
        self.evaluations, self.restarts = 0, 0  # of the present climb
        self._begins = True  # whether θ may still be far from where it leads to
        # Of the last climb in nats, once it has come to its end; of the last two, whether or not they had.
        self._gain, self._gains = math.nan, (math.nan, math.nan)

    @property
    def is_settled(self) -> bool:
        """Whether θ is found. One climb does not tell: its line search may have failed, and later steps are smaller."""
        estimate = self.model.estimate
        little = estimate is not None and self.left_to_gain <= max(estimate.standard_error, SETTLED * self.n)
        return self.number > 1 and little

    @property
    def left_to_gain(self) -> float:
        """The gain of the last climb, and of those to come if gains go on shrinking as from the one before.

        On a long ridge every climb gains little, and as much as the one before. What is less than half a standard error
        may be gained by fitting to the probes alone, in every climb.
        """
        estimate, before = self.model.estimate, self._gains[0]
        if estimate is None or not self._gain > max(NOISE_SHARE * estimate.standard_error, 0.5 * SETTLED * self.n):
            return self._gain
        return self._gain / (1.0 - self._gain / before) if self._gain < before else math.inf

    def climb(self) -> OptimiserEnd:
        """L-BFGS with points selected for the present θ, and new probes; again, if others are much cheaper.

        TimeIsUpError where there is no time for it.
        """
        self.evaluations, self.restarts = 0, 0
        try:
            end = self._climb_with_points(may_begin_again=True)
        except _OtherPointsError:
            end = None  # only now nobody holds the first points' matrices any more
        end = end or self._climb_with_points(may_begin_again=False)
        self.number += 1
        return end

    def _climb_with_points(self, *, may_begin_again: bool) -> OptimiserEnd:
        theta, self._gain = self.model.theta, math.nan
        self.plan.consider_blocks()
        self.points = self.plan.points()
        self.timer.require(self.plan.climbing_seconds(is_first=self.number == 0))
        objective = self.bench.with_new_points(theta, self.points, self.plan.cost.given)
        objective.most_iterations = self.plan.most_iterations(self.points) or objective.most_iterations
        best: list[float] = []  # so far, after each evaluation of this climb
        first_iterations, is_stale, left = 0, False, 0.0  # nats, by Newton's step, where that ends the climb
        curvature, bounds = self.curvature(theta), self.bench.layout.bounds
        free = np.ones(len(theta), dtype=bool) if bounds is None else bounds[0] < bounds[1]

        def evaluate(theta: FloatArray) -> tuple[float, FloatArray]:
            if best:  # an evaluation that would not end in time takes from what is kept for the end
                self.timer.require(objective.timing.seconds + self.plan.finishing_seconds())
            nonlocal first_iterations, left
            estimate, gradient = self._evaluate(objective, theta, is_first=not best)
            if not best:
                first_iterations = estimate.iterations
                if may_begin_again and self.plan.is_dear(self.points):
                    raise _OtherPointsError
            best.append(max([estimate.value, *best[-1:]]))
            if estimate.value == best[-1] and estimate.iterations >= max(STALE * first_iterations, STALE_ITERATIONS):
                raise _StalePointsError
            little = NOISE_SHARE * estimate.standard_error
            if len(best) > PATIENCE and best[-1] - best[-1 - PATIENCE] < little:
                raise _OnlyNoiseLeftError
            if estimate.value == best[-1] and curvature is not None:
                slopes = np.where(free, LogCoordinates.gradient(theta, gradient), 0.0) / self.n
                to_top = self.n * newton_gain(curvature, slopes)
                if to_top < max(little, NEGLIGIBLE_SHARE * SETTLED * self.n):
                    left = to_top
                    raise _OnlyNoiseLeftError
            return -estimate.value, -gradient

        check_end = self.until()

        def after_step(step: Step) -> None:
            self.on_step(len(objective.sparse.Z), step)
            check_end(step)

        try:
            optimum = minimise(
                LogCoordinates.objective(evaluate),
                LogCoordinates.from_theta(theta),
                bounds=LogCoordinates.bounds(bounds),
                callback=after_step,
                settings=LBFGSSettings(
                    max_iterations=FIRST_STEPS * 2**self.number,
                    ftol=1e-8,
                    first_step=FIRST_STEP if self._begins else LATER_STEP,
                ),
                curvature=None if curvature is None else self.n * curvature,
                clock=self.timer.clock,
            )
            reason, self.restarts = optimum.reason, optimum.restarts
        except _OnlyNoiseLeftError:
            reason = OptimiserEnd.CONVERGED
        except _StalePointsError:
            reason, is_stale = OptimiserEnd.MAX_ITERATIONS, True
        self._begins &= is_stale
        self._gains = self._gains[1], best[-1] - best[0] + left
        if reason not in (OptimiserEnd.MAX_ITERATIONS, OptimiserEnd.TIME_LIMIT, OptimiserEnd.FAILING):
            self._gain = self._gains[1]
        return reason

    def _evaluate(
        self, objective: IterativeObjective, theta: FloatArray, is_first: bool
    ) -> tuple[Estimate, FloatArray]:
        """The estimate and its gradient. The model is kept if it is the climb's best."""
        bench = self.bench
        estimate, gradients, by_noise = objective.evaluate(*bench.layout.unpack(theta))
        self.evaluations += 1
        self.plan.learn(objective, estimate)
        self.cost = self.plan.cost
        logger.info(
            "estimate %.8g ± %.2g, %d iterations with M=%d, %.1f s", estimate.value, estimate.standard_error,
            estimate.iterations, len(objective.sparse.Z), objective.timing.seconds,
        )  # fmt: skip
        if is_first or estimate.value > self.model.value:  # estimates with other probes cannot be compared
            given = self.plan.cost.given
            self.model = HeldModel.estimated(np.array(theta), estimate, bench.X, bench.y, bench.row_noise, given)
            self.kept(self.model)
            objective.most_iterations = most_iterations(estimate.iterations)
        return estimate, bench.layout.gradient(theta, gradients, by_noise)
