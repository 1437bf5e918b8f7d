"""Training an exact GP: θ from a search on subsets, then L-BFGS on all rows from the best few of what it found."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from nearexact.evidence import Evidence
from nearexact.gp.bounds import LikelihoodBounds
from nearexact.gp.budget import Timer
from nearexact.gp.exact import (
    LITTLE_SHARE,
    SLOWER_FACTORISATION,
    TRIAL_ROWS,
    ExactObjective,
    exact_memory,
    factorisation_seconds,
)
from nearexact.gp.exact_starts import (
    CLOSER,
    COARSE,
    FAR,
    FEW_EVALUATIONS,
    FINE,
    SETTLED,
    USUAL_EVALUATIONS,
    ExactStarts,
)
from nearexact.gp.flops import exact_flops, feature_count
from nearexact.gp.known_optimum import (
    KnownOptimum,
    SubsetOptimum,
    left_to_gain,
    until_settled,
)
from nearexact.gp.nearest_density import best_with_all_rows
from nearexact.gp.optimise import LBFGSSettings, OptimiserEnd, Optimum, Step, minimise
from nearexact.gp.parameters import LogCoordinates
from nearexact.gp.posterior import NEGLIGIBLE_ERROR, ExactPosterior
from nearexact.gp.rounds import Round
from nearexact.gp.row_noise import RowNoise, noise_only
from nearexact.gp.safety import DEFAULT_NUMERICS, NumericalError, Numerics
from nearexact.gp.search import FIRST_ROWS, Search
from nearexact.gp.simpler_forms import least_price
from nearexact.gp.stages import Progress, Stage, StageEnd, TrainingEnd
from nearexact.gp.start_record import StartRecord
from nearexact.gp.starts import (
    START_NOISE,
    Start,
)
from nearexact.kernels.base import Kernel
from nearexact.limits import memory_budget
from nearexact.noise_only import explains_nothing
from nearexact.typing import FloatArray, MemoryLimit

logger = logging.getLogger(__name__)

SEARCH_SHARE = 0.4  # of the time limit, at most
EVALUATION_FACTORISATIONS = 3.0  # an evaluation with its gradient takes so many factorisations, or less
# Times what a factorisation is predicted to take: with less time there is only one, at what the search has found.
TWO_FACTORISATIONS = 3.0
# Of what is left after the search, at most, where that is too little to follow a start with all rows to its end: a step
# with half of the rows takes a sixth of the time, and most of the way is the same.
POLISHING_SHARE = 0.3
SEARCHED_AT_ONCE = 384  # rows: with so few, a subset saves next to nothing
HIDDEN_FOLDS = 5.0  # by which a signal may still grow while the likelihood rises as steeply as where rounding ended it
ENDS = {
    OptimiserEnd.CONVERGED: TrainingEnd.OPTIMUM_FOUND,
    OptimiserEnd.CALLBACK: TrainingEnd.OPTIMUM_FOUND,
    OptimiserEnd.MAX_ITERATIONS: TrainingEnd.MAX_ITERATIONS,
    OptimiserEnd.NO_FURTHER_STEP: TrainingEnd.NO_FURTHER_STEP,
    OptimiserEnd.TIME_LIMIT: TrainingEnd.TIME_LIMIT,
    OptimiserEnd.FAILING: TrainingEnd.FAILED,
}
STAGE_ENDS = {
    TrainingEnd.TIME_LIMIT: StageEnd.TIME_LIMIT,
    TrainingEnd.INTERRUPTED: StageEnd.INTERRUPTED,
    TrainingEnd.FAILED: StageEnd.FAILED,
}


class ExactTraining:
    """One training run, with the same interface as `Training`; its stages are the starts on all rows, their M is N."""

    def __init__(
        self,
        kernel: Kernel,
        X: Any,
        y: Any,
        *,
        time_limit: float = math.inf,
        memory_limit: MemoryLimit = None,
        start: Start | None = None,
        row_noise: RowNoise | None = None,
        seed: int | None = None,
        on_step: Callable[[Progress], None] | None = None,
        on_stage: Callable[[Stage, ExactPosterior], str | None] | None = None,
        on_round: Callable[[Round], None] = lambda _: None,
        clock: Callable[[], float] = time.perf_counter,
        numerics: Numerics = DEFAULT_NUMERICS,
    ) -> None:
        self.objective = ExactObjective(kernel, START_NOISE, X, y, row_noise=row_noise, numerics=numerics)
        self.layout, self.n = self.objective.layout, len(self.objective.y)
        needed = exact_memory(self.layout.kernel, self.n)
        budget = memory_budget(memory_limit, self.objective.X.device)
        if needed > budget:
            raise ValueError(
                f"exact GP regression with {self.n} rows needs {needed / 1e9:.3g} GB, but the memory limit is"
                f" {budget / 1e9:.3g} GB: allow more, or use a sparse GP"
            )
        self._has_room = budget >= needed + 8 * self.n**2  # for a second model
        self.timer, self.on_step, self.on_stage = Timer(time_limit, clock), on_step, on_stage
        self.history: list[Stage] = []
        self.search = Search(
            kernel,
            self.objective.X,
            self.objective.y,
            memory=budget,
            seed=seed,
            # A small problem is searched on all rows at once; else the last subset is half of them. Few rows mislead.
            most_rows=self.n if self.n <= SEARCHED_AT_ONCE else max(FIRST_ROWS, -(-self.n // 2)),
            start=start,
            row_noise=row_noise,
            polishes=False,  # its best is climbed from with all rows
            looks_for_details=False,  # with all rows, too
            on_round=on_round,
            clock=clock,
            numerics=numerics,
        )
        self.best_theta, self.best_lml = self.search.candidates[0].theta, -math.inf
        self.best_gradient: FloatArray | None = None
        self._leader: KnownOptimum | None = None  # the best so far, if it is an optimum whose surroundings are known
        self._before = math.inf  # the highest likelihood when the start that is under way began
        self._flops, self._n_features = 0.0, feature_count(self.layout.kernel, self.objective.X)
        self._model: ExactPosterior | None = None
        self._started, self._evaluations, self._recorded = 0.0, 0, False
        self.evaluation_seconds = self.last_model_seconds = 0.0
        self._steps: list[float] = []  # likelihoods after the steps of the start that leads to the best one
        self._followed = False  # whether the last start was followed to its end, or nearly so
        # Whether the optimiser was done, or nearly so, where the likelihood is highest. With nothing to do, it is.
        self.settled = self.layout.nothing_is_free
        self.record = StartRecord(self.objective, self.search, self._may_look)
        self.starts = ExactStarts(self)

    @property
    def flops(self) -> float:
        """Floating point operations so far, by formula (flops.py)."""
        return self._flops + self.search.flops

    def run(self) -> None:
        """Maximise the log marginal likelihood."""
        self._begin()
        factorisation = self._predicted_factorisation()
        if self.timer.left() < TWO_FACTORISATIONS * factorisation:
            self._search_for(self.timer.left() - SLOWER_FACTORISATION * factorisation)
            self.best_theta = self.best_of_search()
            self._begin_at(self.posterior().sure_lml)
            self.evaluation_seconds = EVALUATION_FACTORISATIONS * factorisation
        else:
            self._search_after_first_model(factorisation)
        end = TrainingEnd.TIME_LIMIT
        for number, (theta, settings) in enumerate(self.starts.all()):
            if number:
                self._begin()
            result = self._climb(theta, settings)
            if self._followed:
                self.starts.was_followed(number)
            end = result[0]
            self._record(*result, rescues=number)
            wanted_end = None if self.on_stage is None else self.on_stage(self.history[-1], self.posterior())
            if wanted_end is not None:
                self._close(wanted_end)
                return
            if end is TrainingEnd.TIME_LIMIT:
                break
        self._close(end)

    def _predicted_factorisation(self) -> float:
        """Seconds; none where rows are so few that it does not matter."""
        if self.n <= TRIAL_ROWS or math.isinf(self.timer.time_limit):
            return 0.0
        data, little = (self.objective.X, self.objective.y), LITTLE_SHARE * self.timer.time_limit
        try:
            return factorisation_seconds(self.layout.kernel, *data, self.timer.clock, little=little)
        except NumericalError:
            return 0.0

    def _search_after_first_model(self, predicted: float) -> None:
        """First of all a model at the θ to start from: something to return if time is up already.

        What its factorisation takes says less than what was predicted: memory is new to it.
        """
        self._begin_at(self.posterior().sure_lml)
        factorisation = self.last_model_seconds
        if predicted:
            self.last_model_seconds = factorisation = min(factorisation, SLOWER_FACTORISATION * predicted)
        self.evaluation_seconds = EVALUATION_FACTORISATIONS * factorisation
        in_a_hurry = (1.0 - SEARCH_SHARE) * self.timer.left() < FEW_EVALUATIONS * self.evaluation_seconds
        held = self._model if in_a_hurry and self._has_room else None
        self._model = None  # the search needs the memory
        self.objective.release()
        if not in_a_hurry:
            self._search_for(SEARCH_SHARE * self.timer.time_limit - self.timer.seconds())
            if USUAL_EVALUATIONS * self.evaluation_seconds > self.timer.left():
                self.search.polish(POLISHING_SHARE * self.timer.left())
            return
        # No time to climb with all rows: all of it for the search, and one look at what that has found. What training
        # started from is kept where it is better: it may come from a larger subset.
        self._search_for(self.timer.left() - SLOWER_FACTORISATION * factorisation)
        theta = self.best_of_search()
        self._model = held  # without room for two models it is computed again where it is the better one
        if self.search.rounds and not np.array_equal(theta, self.best_theta):
            self._look_at(theta)

    def _search_for(self, seconds: float) -> None:
        if seconds > 0.0:
            self.search.timer = Timer(seconds, self.timer.clock)
            self.search.run()

    def best_of_search(self) -> FloatArray:
        data = self.objective
        return best_with_all_rows(self.search, data.X, data.y, data.row_noise, self.timer)

    def _begin_at(self, lml: float) -> None:
        """The likelihood at the best θ, before any start is climbed from."""
        self.best_lml = lml
        self.record.top = SubsetOptimum(self.best_theta, lml)

    def _look_at(self, theta: FloatArray) -> None:
        """Take this θ if its likelihood is higher."""
        try:
            model = self.objective.factorise(*self.layout.unpack(theta))
        except NumericalError as error:
            logger.info("exact GP: the search has led to a model that cannot be computed: %s", error)
            return
        if model.sure_lml > self.best_lml:
            self.best_theta, self._model = theta, model
            self._begin_at(model.sure_lml)

    def interrupted(self) -> None:
        """Close the record after an exception in `run`."""
        self.record.stop_looking()
        if self.best_lml > self._before + SETTLED * self.n:  # the start under way has left the optimum that was known
            self.settled, self.record.top = False, None
        if not self._recorded:
            self._record(TrainingEnd.INTERRUPTED, "", 0, rescues=len(self.history))
        if not self.history[-1].ended:
            self._close(TrainingEnd.INTERRUPTED)

    def posterior(self) -> ExactPosterior:
        """The best model so far."""
        if self._model is None:
            started = self.timer.seconds()
            self._model = self.objective.factorise(*self.layout.unpack(self.best_theta))
            self.last_model_seconds = self.timer.seconds() - started
        return self._model

    def bounds(self) -> tuple[float, float]:
        """The log marginal likelihood of the best model so far, twice."""
        return self.posterior().lml, self.posterior().lml

    def likelihood_bounds(self) -> LikelihoodBounds:
        """The same, part by part."""
        return self.posterior().bounds

    def evidence(self) -> Evidence:
        """What speaks for the best θ so far."""
        support = self.record.support()
        if self.layout.nothing_is_free and self.search.rounds:
            support = self.search.rounds[-1].support
        followed = self.search.is_complete and not self.search.rivals.are_left_behind
        followed = followed and self.starts.are_followed
        # Beyond where rounding has ended the climb the likelihood may rise for some time.
        hidden = HIDDEN_FOLDS * self.posterior().hidden_slope / self.n
        hidden = hidden if hidden > NEGLIGIBLE_ERROR else 0.0
        gain = hidden if self.settled and followed else None
        return Evidence(self.n, support[1], support[0], gain, self.best_lml, self._price())

    def _price(self) -> float | None:
        """How many parameters a likelihood must pay for, where these are fewer than those of the kernel."""
        if not self.search.rounds or not self.explains_nothing:
            return None
        size = self.layout.kernel.size
        price = least_price(self.search.objective(self.search.rounds[0].rows), self.best_theta)
        return price if price < size else None

    @property
    def explains_nothing(self) -> bool:
        """Whether the best so far is no better than noise, as far as a nat for each parameter tells."""
        noise = noise_only(self.objective.y, self.objective.row_noise)
        return explains_nothing(self.best_lml, noise, self.n, self.layout.kernel.size)

    def _may_look(self) -> bool:
        """Whether there are time and memory for another factorisation besides the model that is held."""
        has_room = self._has_room or self._model is None
        return has_room and self.timer.left() > 2.0 * self.last_model_seconds

    def has_time_to_climb(self) -> bool:
        """For an evaluation, and the model at the best θ that is computed in the end."""
        return self.timer.left() - self.last_model_seconds > self.evaluation_seconds

    def _climb(self, theta: FloatArray, settings: LBFGSSettings) -> tuple[TrainingEnd, str, int]:
        """L-BFGS from a start: how it ended, details, restarts."""
        self._followed = False
        if not self.has_time_to_climb():
            return TrainingEnd.TIME_LIMIT, "", 0
        self._model = None  # its memory is needed
        curvature = None if settings is FAR else self.search.curvature(theta, self.n)
        left = self.timer.left() - self.last_model_seconds
        again, before = theta is self.best_theta and bool(self.record), self.best_lml
        self._before = before
        self._steps = []
        coarse, nearly = settings is COARSE, settings in (COARSE, FAR)
        leader = None if settings is FINE else self._leader
        try:
            optimum = minimise(
                LogCoordinates.objective(partial(self._evaluate, nearly=nearly)),
                LogCoordinates.from_theta(theta),
                bounds=LogCoordinates.bounds(self.layout.bounds),
                time_limit=left,
                callback=until_settled(self.n, leader, settles=coarse, after=self._after_step),
                settings=settings,
                curvature=None if curvature is None else self.n * curvature,
                clock=self.timer.clock,
            )
        except NumericalError as error:
            logger.info("exact GP: a start failed: %s", error)
            self._followed = True  # it leads nowhere
            return TrainingEnd.FAILED, f": {error}", 0
        self._followed = self._is_settled(optimum)
        self._before = math.inf  # nothing is under way
        end = SubsetOptimum(LogCoordinates.to_theta(optimum.theta), -optimum.value)
        if again:  # the best, once more, agrees with itself
            self.record.follow(end)
        else:
            self.record.add(theta, end, is_made=self.starts.was_made(theta))
        if self.best_lml > before + (SETTLED * self.n if again else 0.0):
            # Coarse steps end where one of them has gained little: on a ridge that says nothing.
            by_itself = settings in (FINE, CLOSER) or optimum.reason is OptimiserEnd.CALLBACK
            self.settled = self._followed and (by_itself or self._has_little_to_gain())
            known = (self.layout, self.best_theta, self.best_lml, self.n)
            self._leader = KnownOptimum(*known, curvature) if self._followed and curvature is not None else None
            self.record.top = end
        elif again and self._followed:  # from the best θ nothing leads higher, wherever that came from
            self.settled = True
        return ENDS[optimum.reason], "", optimum.restarts

    def _is_settled(self, optimum: Optimum) -> bool:
        if optimum.reason in (OptimiserEnd.CONVERGED, OptimiserEnd.NO_FURTHER_STEP, OptimiserEnd.CALLBACK):
            return True
        return self._has_little_to_gain()

    def _has_little_to_gain(self) -> bool:
        return left_to_gain([-likelihood for likelihood in self._steps]) <= SETTLED * self.n

    def _evaluate(self, theta: FloatArray, *, nearly: bool) -> tuple[float, FloatArray]:
        started = self.timer.seconds()
        value, gradient = self.objective.nearly(theta) if nearly else self.objective(theta)
        self.evaluation_seconds = self.timer.seconds() - started
        self._evaluations += 1
        self._flops += exact_flops(self.n, self._n_features)
        if -value > self.best_lml:
            self.best_theta, self.best_lml, self._model = np.array(theta), -value, None
            self.best_gradient = np.array(gradient)  # of what is minimised
        return value, gradient

    def _after_step(self, step: Step) -> None:
        self._steps.append(-step.value)
        if self.on_step is not None:
            theta = LogCoordinates.to_theta(step.theta)
            posterior = partial(self.objective.factorise, *self.layout.unpack(theta))
            self.on_step(Progress(self.n, -step.value, self.timer.seconds(), posterior))

    # ---- the record ------------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        self._started, self._evaluations, self._recorded = self.timer.seconds(), 0, False

    def _close(self, reason: str) -> None:
        self.history[-1] = replace(self.history[-1], ended=reason)

    def _record(self, end: TrainingEnd, detail: str, restarts: int, *, rescues: int) -> None:
        model = self.posterior()
        now = self.timer.seconds()
        self.history.append(
            Stage(
                n=self.n,
                scheduled_m=self.n,
                m=self.n,
                objective=model.lml,
                lower_bound=model.lml,
                upper_bound=model.lml,
                kernel=model.kernel,
                noise_variance=model.noise_variance,
                seconds=now - self._started,
                elapsed=now,
                evaluations=self._evaluations,
                reselections=0,
                restarts=restarts,
                rescues=rescues,
                jitter=model.jitter,
                repairs=replace(self.objective.repairs),
                end=STAGE_ENDS.get(end, StageEnd.COMPLETE),
                stopped=f"{end}{detail}",
            )
        )
        logger.info("exact GP: log marginal likelihood %.6g after %.1f s, %s", model.lml, now, end)
        self._recorded = True
