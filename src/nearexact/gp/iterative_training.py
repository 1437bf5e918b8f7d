"""Training an exact GP by conjugate gradients: θ from a search on subsets, then L-BFGS on the estimated likelihood.

A climb keeps inducing points and probes fixed, so that the optimiser sees a smooth function. The next one selects
points for the θ that was reached, as many as make an evaluation cheapest, and draws new probes; when a whole climb
gains no more than the standard error of its own estimate, nothing is left to be found. Whatever happens, the best model
so far is there: before the first evaluation a sparse GP at the θ of the search.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from nearexact.evidence import STANDARD_ERRORS, Evidence
from nearexact.gp.bounds import LikelihoodBounds
from nearexact.gp.budget import TimeIsUpError, Timer
from nearexact.gp.column_solver import MOST_ITERATIONS
from nearexact.gp.exact import exact_memory
from nearexact.gp.iterative import Estimate, IterativeObjective
from nearexact.gp.iterative_cost import possible_sizes
from nearexact.gp.iterative_finishing import Finishing
from nearexact.gp.iterative_model import HeldModel
from nearexact.gp.iterative_plan import IterativePlan
from nearexact.gp.iterative_posterior import IterativePosterior
from nearexact.gp.iterative_workbench import Workbench
from nearexact.gp.nearest_density import best_with_all_rows
from nearexact.gp.optimise import LBFGSSettings, OptimiserEnd, Step, minimise
from nearexact.gp.parameters import LogCoordinates, ParameterLayout
from nearexact.gp.posterior import ExactPosterior, SparsePosterior
from nearexact.gp.rounds import Round
from nearexact.gp.row_noise import RowNoise, check_noise
from nearexact.gp.safety import DEFAULT_NUMERICS, NumericalError, Numerics
from nearexact.gp.search import Search
from nearexact.gp.sparse_ascent import ascend
from nearexact.gp.stages import Progress, Stage, StageEnd, TrainingEnd
from nearexact.gp.starts import Start
from nearexact.kernels.base import Kernel
from nearexact.limits import memory_budget
from nearexact.typing import FloatArray, MemoryLimit
from nearexact.validation import as_training_data

logger = logging.getLogger(__name__)

SEARCH_SHARE = 0.25  # of the time limit, at most ...
LONGER_SEARCH_SHARE = 0.4  # ... or this where θ cannot be improved with all rows
SEARCH_ROWS = 4096  # of the largest subset
FIRST_POINTS = 400  # of the sparse GP that is there before anything else
MOST_CLIMBS = 20
FIRST_STEPS = 8  # of L-BFGS in the first climb; twice as many in each one after
# Lengths of the first step, in logarithms: the search's θ is near already, later climbs begin where an optimum was
# found, and a step that is too long leads to θ at which conjugate gradients take several times as long.
FIRST_STEP, LATER_STEP = 0.3, 0.1
# Iterations that an evaluation may take: so many times those at the best θ, or so many if these are few. With more of
# them the step was too long, and a shorter one is cheaper.
MORE_ITERATIONS, FEW_ITERATIONS = 5, 25
PATIENCE, NOISE_SHARE = 4, 0.5  # so many evaluations that gain less than this share of the standard error end a climb
SETTLED = 1e-4  # nats per row that a whole climb may gain, if the standard error is smaller, for θ to be found


class _OnlyNoiseLeftError(Exception):
    """The optimiser gains less than what the estimate is uncertain by."""


class _OtherPointsError(Exception):
    """Evaluations with another number of points would be much cheaper."""


class IterativeTraining:
    """One training run, with the same interface as `Training`; its stages are climbs, their M is the preconditioner's.

    `max_inducing` bounds the preconditioner. With `factorises` the model in the end is that of one Cholesky factor at
    the θ that was found, where memory and time allow it: likelihood and variances are then exact too. `flops` counts
    floating point operations by formula (flops.py).
    """

    def __init__(
        self,
        kernel: Kernel,
        X: Any,
        y: Any,
        *,
        max_inducing: int | None = None,
        factorises: bool = False,
        time_limit: float = math.inf,
        search_limit: float | None = None,
        memory_limit: MemoryLimit = None,
        seed: int | None = None,
        start: Start | None = None,
        row_noise: RowNoise | None = None,
        on_step: Callable[[Progress], None] | None = None,
        on_stage: Callable[[Stage, SparsePosterior | IterativePosterior | ExactPosterior], str | None] | None = None,
        on_round: Callable[[Round], None] = lambda _: None,
        clock: Callable[[], float] = time.perf_counter,
        numerics: Numerics = DEFAULT_NUMERICS,
    ) -> None:
        self.X, self.y = as_training_data(X, y)
        self.row_noise = check_noise(row_noise, self.X)
        self.layout = ParameterLayout(kernel, self.X.shape[1], numerics)
        self.n, self.memory = len(self.y), memory_budget(memory_limit, self.X.device)
        n_features = self.layout.kernel.features(self.X[:1], self.X[0]).shape[1]
        sizes = possible_sizes(self.layout.kernel, self.n, n_features, self.memory)
        if not sizes:
            raise ValueError(
                f"conjugate gradients with {self.n} rows need more memory than the limit of {self.memory / 1e6:.3g} MB:"
                " allow more, or use a sparse GP"
            )
        if max_inducing is not None:
            sizes = [m for m in sizes if m <= max_inducing] or [min(max_inducing, self.n)]
        self.timer, self.on_step, self.on_stage = Timer(time_limit, clock), on_step, on_stage
        self.history: list[Stage] = []
        self.search = Search(
            kernel,
            self.X,
            self.y,
            time_limit=time_limit if search_limit is None else search_limit,
            memory=self.memory,
            seed=seed,
            start=start,
            row_noise=self.row_noise,
            most_rows=SEARCH_ROWS,
            polishes=False,  # its best is climbed from with all rows
            keeps_digits=True,
            on_round=on_round,
            clock=clock,
            numerics=numerics,
        )
        self._search_limit = search_limit
        factorises = factorises and exact_memory(self.layout.kernel, self.n) <= self.memory
        self._plan = IterativePlan(sizes, self.n, self.timer, may_factorise=factorises)
        self._workbench = Workbench(
            self.layout,
            self.X,
            self.y,
            self.row_noise,
            memory=self.memory,
            timer=self.timer,
            check=self._plan.keep_time_to_finish,
            seed=seed,
        )
        self._finishing = Finishing(self._workbench, self._plan)
        self._best: HeldModel | None = None
        self._started, self._evaluations, self._restarts = 0.0, 0, 0
        self._tried = 0  # points of the present climb
        self._from_best_of_search = False  # or else from another θ, which all rows seemed to speak for
        # Of the last climb in nats, once it has come to its end; of the last two, whether or not they had.
        self._gain, self._gains = math.nan, (math.nan, math.nan)
        self._recorded = True  # whether the present climb is in the history

    @property
    def flops(self) -> float:
        """Floating point operations so far."""
        return self._workbench.flops + self.search.flops

    def run(self) -> None:
        """Maximise the exact log marginal likelihood."""
        self._begin()
        self._predict_costs()
        if self.timer.left() > 0.0:
            self.search.run()
        theta = best_with_all_rows(self.search, self.X, self.y, self.row_noise, self.timer)
        self._from_best_of_search = theta is self.search.candidates[0].theta
        self._best = self._sparse(theta, min(FIRST_POINTS, self._plan.sizes[-1]))
        self._plan.learn_from_sparse(self._best)
        self._ascend(self._best)
        if self._plan.climbing_seconds(is_first=True) > self.timer.left():
            # First the exact GP here; what that takes tells whether there is time for more after all.
            self._finishing.finish(self._best, self._keep)
        end: str = TrainingEnd.MAX_ITERATIONS
        for number in range(MOST_CLIMBS):
            if number:
                self._begin()
            try:
                optimiser_end = self._climb(number)
            except TimeIsUpError:
                end = TrainingEnd.TIME_LIMIT
                break
            except NumericalError as error:
                logger.warning("a climb could not be computed: %s", error)
                self._plan.sizes = [m for m in self._plan.sizes if m > self._tried]  # with more points it is easier
                if self._plan.sizes:
                    continue
                end = TrainingEnd.FAILED
                break
            if optimiser_end is OptimiserEnd.TIME_LIMIT:
                end = TrainingEnd.TIME_LIMIT
                break
            if number and self._is_settled:  # once may be a line search that has failed: the next takes smaller steps
                end = TrainingEnd.OPTIMUM_FOUND
                break
            wanted_end = self._record(StageEnd.COMPLETE, optimiser_end)
            if wanted_end is not None:
                end = wanted_end
                break
        self._finishing.finish(self._held(), self._keep)
        if not self._recorded:
            stage_end = next((stage for stage in (StageEnd.TIME_LIMIT, StageEnd.FAILED) if stage == end), None)
            end = self._record(stage_end or StageEnd.COMPLETE, end) or end
        self._close(end)

    def interrupted(self) -> None:
        """Close the record after an exception in `run`."""
        if not self._recorded:
            self.on_stage = None
            self._record(StageEnd.INTERRUPTED, StageEnd.INTERRUPTED)
        if not self.history[-1].ended:
            self._close(TrainingEnd.INTERRUPTED)

    def posterior(self) -> SparsePosterior | IterativePosterior | ExactPosterior:
        """The best model so far."""
        return self._held().posterior

    def bounds(self) -> tuple[float, float]:
        """The estimate of the likelihood, or the ELBO where there is none yet, and the proved upper bound."""
        best = self._held()
        return best.value, best.bounds.upper

    def likelihood_bounds(self) -> LikelihoodBounds:
        """What is proved about the exact likelihood of the best model so far."""
        return self._held().bounds

    def estimate(self) -> Estimate | None:
        """The estimate of the exact likelihood, where there is one and nothing better."""
        best = self._held()
        return None if isinstance(best.posterior, ExactPosterior) else best.estimate

    def evidence(self) -> Evidence | None:
        """What speaks for the best θ so far."""
        best = self._held()
        agreeing, starts = self.search.rounds[-1].support if self.search.rounds else (0, 0)
        if best.estimate is None:  # θ is that of a subset: whether it is right for all rows is not known
            optimum, rounds = self.search.candidates[0], self.search.rounds
            return Evidence(rounds[-1].rows, starts, agreeing, None, optimum.likelihood) if rounds else None
        settled = self._is_settled and len(self.history) > 1
        has_rival = self.search.has_rival() or self.search.has_left_behind_a_rival
        followed = settled and self._from_best_of_search and self.search.is_complete and not has_rival
        # A climb that ends in noise may have missed as much as that hides.
        gain = (self._left_to_gain + STANDARD_ERRORS * best.estimate.standard_error) / self.n if followed else None
        return Evidence(self.n, starts, agreeing, gain, best.value)

    def _ascend(self, model: HeldModel) -> None:
        """On a sparse GP's bound, as far as that is nearly the exact likelihood."""

        def keep(found: HeldModel) -> None:
            self._keep(found)
            self._plan.learn_from_sparse(found)
            if self.on_step is not None:
                self.on_step(Progress(found.points, found.value, self.timer.seconds(), self.posterior))

        ascend(self._workbench, self._plan, self.search, model, keep)

    # ---- climbs ----------------------------------------------------------------------------------------------------

    @property
    def _is_settled(self) -> bool:
        estimate = self._held().estimate
        return estimate is not None and self._left_to_gain <= max(estimate.standard_error, SETTLED * self.n)

    @property
    def _left_to_gain(self) -> float:
        """The gain of the last climb, and of those to come if gains go on shrinking as from the one before.

        On a long ridge every climb gains little, and as much as the one before. What is less than half a standard error
        may be gained by fitting to the probes alone, in every climb.
        """
        estimate, before = self._held().estimate, self._gains[0]
        if estimate is None or not self._gain > max(NOISE_SHARE * estimate.standard_error, 0.5 * SETTLED * self.n):
            return self._gain
        return self._gain / (1.0 - self._gain / before) if self._gain < before else math.inf

    def _predict_costs(self) -> None:
        """What evaluations and factors will take; the search has more time where that is too long to improve θ."""
        self._plan.predict(self.layout.kernel, self.X, self.y, self.memory)
        if self._search_limit is None:
            limit = self.timer.time_limit
            if self._plan.climbing_seconds(is_first=True) <= (1.0 - SEARCH_SHARE) * limit:
                seconds = SEARCH_SHARE * limit
            else:
                seconds = self._plan.seconds_before_factor(LONGER_SEARCH_SHARE * limit)
            self.search.timer.time_limit = seconds

    def _climb(self, number: int) -> OptimiserEnd:
        """L-BFGS with points selected for the present θ, and new probes; again, if others are much cheaper."""
        try:
            return self._climb_with_points(number, may_begin_again=True)
        except _OtherPointsError:
            pass  # only now nobody holds the first points' matrices any more
        return self._climb_with_points(number, may_begin_again=False)

    def _climb_with_points(self, number: int, *, may_begin_again: bool) -> OptimiserEnd:
        theta, self._gain = self._held().theta, math.nan
        self._tried = self._plan.points()
        self.timer.require(self._plan.climbing_seconds(is_first=number == 0))
        objective = self._workbench.with_new_points(theta, self._tried)
        if self._plan.cost.is_measured and self._tried < self._plan.sizes[-1]:
            # Far more iterations than predicted would eat all the time: then more points are tried.
            objective.most_iterations = self._most_iterations(self._plan.cost.predicted_iterations(self._tried))
        best: list[float] = []  # so far, after each evaluation of this climb
        curvature = self.search.curvature(theta, self.n)

        def evaluate(theta: FloatArray) -> tuple[float, FloatArray]:
            if best:  # an evaluation that would not end in time takes from what is kept for the end
                self.timer.require(objective.timing.seconds + self._plan.finishing_seconds())
            value, gradient, error = self._evaluate(objective, theta, is_first=not best)
            if not best and may_begin_again and self._plan.is_dear(self._tried):
                raise _OtherPointsError
            best.append(max([-value, *best[-1:]]))
            if len(best) > PATIENCE and best[-1] - best[-1 - PATIENCE] < NOISE_SHARE * error:
                raise _OnlyNoiseLeftError
            return value, gradient

        def after_step(step: Step) -> None:
            if self.on_step is not None:
                self.on_step(Progress(len(objective.sparse.Z), -step.value, self.timer.seconds(), self.posterior))

        try:
            optimum = minimise(
                LogCoordinates.objective(evaluate),
                LogCoordinates.from_theta(theta),
                bounds=LogCoordinates.bounds(self.layout.bounds),
                callback=after_step,
                settings=LBFGSSettings(
                    max_iterations=FIRST_STEPS * 2**number, ftol=1e-8, first_step=LATER_STEP if number else FIRST_STEP
                ),
                curvature=None if curvature is None else self.n * curvature,
                clock=self.timer.clock,
            )
            reason, self._restarts = optimum.reason, optimum.restarts
        except _OnlyNoiseLeftError:
            reason = OptimiserEnd.CONVERGED
        self._gains = self._gains[1], best[-1] - best[0]
        if reason not in (OptimiserEnd.MAX_ITERATIONS, OptimiserEnd.TIME_LIMIT, OptimiserEnd.FAILING):
            self._gain = self._gains[1]
        return reason

    def _evaluate(
        self, objective: IterativeObjective, theta: FloatArray, is_first: bool
    ) -> tuple[float, FloatArray, float]:
        """The negative estimate, its gradient and its standard error. The model is kept if it is the climb's best."""
        estimate, gradients, by_noise = objective.evaluate(*self.layout.unpack(theta))
        self._evaluations += 1
        self._plan.learn(objective, estimate)
        logger.info(
            "estimate %.8g ± %.2g, %d iterations with M=%d, %.1f s", estimate.value, estimate.standard_error,
            estimate.iterations, len(objective.sparse.Z), objective.timing.seconds,
        )  # fmt: skip
        if is_first or estimate.value > self._held().value:  # estimates with other probes cannot be compared
            self._keep(HeldModel.estimated(np.array(theta), estimate, self.X, self.y, self.row_noise))
            objective.most_iterations = self._most_iterations(estimate.iterations)
        return -estimate.value, -self.layout.gradient(theta, gradients, by_noise), estimate.standard_error

    @staticmethod
    def _most_iterations(usual: float) -> int:
        return min(max(math.ceil(MORE_ITERATIONS * usual), FEW_ITERATIONS), MOST_ITERATIONS)

    # ---- the record ------------------------------------------------------------------------------------------------

    def _held(self) -> HeldModel:
        """The best model so far; if there is none, a few points with the best θ of the search."""
        if self._best is None:
            self._best = self._sparse(self.search.candidates[0].theta, self._plan.sizes[0])
        return self._best

    def _sparse(self, theta: FloatArray, m: int) -> HeldModel:
        return self._workbench.sparse(theta, m, usual=self.search.theta0)

    def _keep(self, model: HeldModel) -> None:
        self._best = model

    def _begin(self) -> None:
        self._started, self._evaluations, self._restarts, self._recorded = self.timer.seconds(), 0, 0, False

    def _record(self, end: StageEnd, words: str) -> str | None:
        best, now = self._held(), self.timer.seconds()
        stage = best.stage(
            n=self.n,
            seconds=now - self._started,
            elapsed=now,
            evaluations=self._evaluations,
            restarts=self._restarts,
            repairs=self._workbench.repairs,
            end=end,
            stopped=words,
        )
        self.history.append(stage)
        self._recorded = True
        logger.info("climb %d: %.8g after %.1f s, %s", len(self.history), best.value, now, words)
        return None if self.on_stage is None else self.on_stage(stage, best.posterior)

    def _close(self, reason: str) -> None:
        self.history[-1] = replace(self.history[-1], ended=reason)
