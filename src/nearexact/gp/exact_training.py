"""Training an exact GP: θ from a search on subsets, then L-BFGS on all rows from the best few of what it found."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from nearexact.evidence import Evidence
from nearexact.gp.bounds import LikelihoodBounds
from nearexact.gp.budget import TimeIsUpError, Timer
from nearexact.gp.exact import SLOWER_FACTORISATION, TRIAL_ROWS, ExactObjective, exact_memory, factorisation_seconds
from nearexact.gp.flops import exact_flops, feature_count
from nearexact.gp.known_optimum import (
    RIVAL,
    WORTH_CARRYING,
    KnownOptimum,
    SubsetOptimum,
    left_to_gain,
    until_settled,
)
from nearexact.gp.nearest_density import best_with_all_rows
from nearexact.gp.optimise import LBFGSSettings, OptimiserEnd, Optimum, Step, minimise
from nearexact.gp.parameters import LogCoordinates
from nearexact.gp.posterior import ExactPosterior
from nearexact.gp.rounds import Round
from nearexact.gp.row_noise import RowNoise, noise_only
from nearexact.gp.safety import DEFAULT_NUMERICS, NumericalError, Numerics
from nearexact.gp.search import FIRST_ROWS, Search
from nearexact.gp.search_completion import complete_search
from nearexact.gp.simpler_forms import least_price
from nearexact.gp.stages import Progress, Stage, StageEnd, TrainingEnd
from nearexact.gp.start_record import StartRecord
from nearexact.gp.starts import (
    START_NOISE,
    Start,
    gain_by_switching_on,
    with_all_inputs,
    with_finer_details,
    with_related_values,
)
from nearexact.gp.window_scan import starts_with_details
from nearexact.kernels.base import Kernel
from nearexact.limits import memory_budget
from nearexact.noise_only import explains_nothing
from nearexact.typing import FloatArray, MemoryLimit

logger = logging.getLogger(__name__)

SEARCH_SHARE = 0.4  # of the time limit, at most
EVALUATION_FACTORISATIONS = 4.0  # an evaluation with its gradient takes about so many factorisations
FEW_EVALUATIONS = 3.0  # with less time than for so many after the search, L-BFGS gets nowhere
USUAL_EVALUATIONS = 30.0  # until a start was followed to its end
# Times what a factorisation is predicted to take: with less time there is only one, at what the search has found.
TWO_FACTORISATIONS = 3.0
# Of what is left after the search, at most, where that is too little to follow a start with all rows to its end: a step
# with half of the rows takes a sixth of the time, and most of the way is the same.
POLISHING_SHARE = 0.3
MOST_PASSES = 2  # over starts made from the best: they may lead to another one
DETAILS_SHARE = 0.2  # of what is left after that, at most, for a look at details that more rows show
COMPLETION_SHARE = 0.6  # of what is left in the end, for what the search had no time for
# While several starts compete, and for the best. They come from a search and are near their optimum already: steps that
# are too long waste evaluations.
COARSE, FINE = LBFGSSettings(ftol=1e-5, first_step=0.3), LBFGSSettings(ftol=1e-8, first_step=0.3)
FAR = LBFGSSettings(ftol=1e-5)  # for starts that are far from any optimum: on a plateau nothing has settled
CLOSER = LBFGSSettings(ftol=1e-7, first_step=0.3)  # for a start that may have settled too early
SETTLED = 1e-3  # nats per row that may be left to gain where the optimiser is nearly done
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
            most_rows=max(min(self.n, FIRST_ROWS), -(-self.n // 2)),
            start=start,
            row_noise=row_noise,
            polishes=False,  # its best is climbed from with all rows
            looks_for_details=False,  # with all rows, too
            on_round=on_round,
            clock=clock,
            numerics=numerics,
        )
        self.best_theta, self.best_lml = self.search.candidates[0].theta, -math.inf
        self._best_gradient: FloatArray | None = None
        self._leader: KnownOptimum | None = None  # the best so far, if it is an optimum whose surroundings are known
        self._made: list[FloatArray] = []  # starts that were made from an optimum
        self._before = math.inf  # the highest likelihood when the start that is under way began
        self._flops, self._n_features = 0.0, feature_count(self.layout.kernel, self.objective.X)
        self._model: ExactPosterior | None = None
        self._started, self._evaluations, self._recorded = 0.0, 0, False
        self._evaluation_seconds = 0.0
        self._steps: list[float] = []  # likelihoods after the steps of the start that leads to the best one
        self._followed = False  # whether the last start was followed to its end, or nearly so
        # Whether the optimiser was done, or nearly so, where the likelihood is highest. With nothing to do, it is.
        self._settled = self.layout.nothing_is_free
        self._starts_record = StartRecord(self.objective, self.search, self._may_look)
        # How far each optimum of the search was below the best, in nats per row, until it was followed to its end.
        self._pending: list[float] = []
        self._beyond: list[SubsetOptimum] = []  # rivals of these that wait until the others were followed
        # Whether what more rows show than those of the search was looked for, and from where.
        self._looked_further = self.layout.nothing_is_free
        self._looked_from: SubsetOptimum | None = None

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
            self.best_theta = self._best_of_search()
            self._begin_at(self.posterior().lml)
            self._evaluation_seconds = EVALUATION_FACTORISATIONS * factorisation
        else:
            self._search_after_first_model()
        end = TrainingEnd.TIME_LIMIT
        for number, (theta, settings) in enumerate(self._all_starts()):
            if number:
                self._begin()
            result = self._climb(theta, settings)
            if number < len(self._pending) and self._followed:
                self._pending[number] = math.inf
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
        try:
            return factorisation_seconds(self.layout.kernel, self.objective.X, self.objective.y, self.timer.clock)
        except NumericalError:
            return 0.0

    def _search_after_first_model(self) -> None:
        """First of all a model at the θ to start from: something to return if time is up already."""
        started = self.timer.seconds()
        self._begin_at(self.posterior().lml)
        factorisation = self.timer.seconds() - started
        self._evaluation_seconds = EVALUATION_FACTORISATIONS * factorisation
        in_a_hurry = (1.0 - SEARCH_SHARE) * self.timer.left() < FEW_EVALUATIONS * self._evaluation_seconds
        held = self._model if in_a_hurry and self._has_room else None
        self._model = None  # the search needs the memory
        self.objective.release()
        if not in_a_hurry:
            self._search_for(SEARCH_SHARE * self.timer.time_limit - self.timer.seconds())
            if USUAL_EVALUATIONS * self._evaluation_seconds > self.timer.left():
                self.search.polish(POLISHING_SHARE * self.timer.left())
            return
        # No time to climb with all rows: all of it for the search, and one look at what that has found. What training
        # started from is kept where it is better: it may come from a larger subset.
        self._search_for(self.timer.left() - SLOWER_FACTORISATION * factorisation)
        theta = self._best_of_search()
        self._model = held  # without room for two models it is computed again where it is the better one
        if self.search.rounds and not np.array_equal(theta, self.best_theta):
            self._look_at(theta)

    def _search_for(self, seconds: float) -> None:
        if seconds > 0.0:
            self.search.timer = Timer(seconds, self.timer.clock)
            self.search.run()

    def _best_of_search(self) -> FloatArray:
        data = self.objective
        return best_with_all_rows(self.search, data.X, data.y, data.row_noise, self.timer)

    def _begin_at(self, lml: float) -> None:
        """The likelihood at the best θ, before any start is climbed from."""
        self.best_lml = lml
        self._starts_record.top = SubsetOptimum(self.best_theta, lml)

    def _look_at(self, theta: FloatArray) -> None:
        """Take this θ if its likelihood is higher."""
        try:
            model = self.objective.factorise(*self.layout.unpack(theta))
        except NumericalError as error:
            logger.info("exact GP: the search has led to a model that cannot be computed: %s", error)
            return
        if model.lml > self.best_lml:
            self.best_theta, self._model = theta, model
            self._begin_at(model.lml)

    def interrupted(self) -> None:
        """Close the record after an exception in `run`."""
        self._starts_record.stop_looking()
        if self.best_lml > self._before + SETTLED * self.n:  # the start under way has left the optimum that was known
            self._settled, self._starts_record.top = False, None
        if not self._recorded:
            self._record(TrainingEnd.INTERRUPTED, "", 0, rescues=len(self.history))
        if not self.history[-1].ended:
            self._close(TrainingEnd.INTERRUPTED)

    def posterior(self) -> ExactPosterior:
        """The best model so far."""
        if self._model is None:
            self._model = self.objective.factorise(*self.layout.unpack(self.best_theta))
        return self._model

    def bounds(self) -> tuple[float, float]:
        """The log marginal likelihood of the best model so far, twice."""
        return self.posterior().lml, self.posterior().lml

    def likelihood_bounds(self) -> LikelihoodBounds:
        """The same, part by part."""
        return self.posterior().bounds

    def evidence(self) -> Evidence:
        """What speaks for the best θ so far."""
        support = self._starts_record.support()
        if self.layout.nothing_is_free and self.search.rounds:
            support = self.search.rounds[-1].support
        followed = self.search.is_complete and not self.search.has_left_behind_a_rival
        followed = followed and self._looked_further and not self._starts_record.has_left(self._looked_from)
        followed = followed and min(self._pending, default=math.inf) > RIVAL and not self._beyond
        gain = 0.0 if self._settled and followed else None
        return Evidence(self.n, support[1], support[0], gain, self.best_lml, self._price())

    def _price(self) -> float | None:
        """How many parameters a likelihood must pay for, where these are fewer than those of the kernel."""
        size, noise = self.layout.kernel.size, noise_only(self.objective.y, self.objective.row_noise)
        if not self.search.rounds or not explains_nothing(self.best_lml, noise, self.n, size):
            return None
        price = least_price(self.search.objective(self.search.rounds[0].rows), self.best_theta)
        return price if price < size else None

    def _all_starts(self) -> Iterator[tuple[FloatArray, LBFGSSettings]]:
        """Those of the search, what was made from their best, what only more rows show, and the best to its end."""
        starts = self._starts()
        self._looked_further |= self._has_searched_all_rows
        settings = COARSE if len(starts) > 1 else FINE
        for theta in starts:
            yield theta, settings
        polished = self.best_theta if settings is FINE else None
        revived = self._revived()
        if revived is not None:
            self._made.append(revived)
            yield revived, FAR
        for _ in range(MOST_PASSES):
            known = self._looked_from = self._starts_record.top
            further = self._further()
            # Until all of them are followed, nothing speaks for the best.
            self._pending += [math.inf] * (len(self.history) - len(self._pending)) + [0.0] * len(further)
            for theta in further:
                yield theta, FAR
            elsewhere = self._starts_record.ends_elsewhere(known)
            for end in elsewhere:  # what they lead to in the same way, they confirm
                for theta in self._what_more_rows_show(end.theta):
                    yield theta, FAR
            if not self._starts_record.has_left(known):
                break
        if self.best_theta is not polished or not self._settled:  # the best may also be what training started from
            yield self.best_theta, FINE
        left_out = self._left_out(starts)
        for theta in left_out:
            yield theta, COARSE
        if left_out and not self._settled:
            yield self.best_theta, FINE
        for end in self._starts_record.unconfirmed():
            yield end.theta, CLOSER

    @property
    def _has_searched_all_rows(self) -> bool:
        return bool(self.search.rounds) and self.search.rounds[-1].rows >= self.n

    def _revived(self) -> FloatArray | None:
        """The best with its inputs switched on again, where that may help."""
        revived = with_all_inputs(self.layout, self.best_theta)
        if revived is None or self._best_gradient is None:
            return None
        gain = gain_by_switching_on(self.layout, self.best_theta, -self._best_gradient, revived)
        return revived if gain > SETTLED * self.n else None

    def _further(self) -> list[FloatArray]:
        """Starts for what all rows may show and those of the search do not."""
        if not self.search.rounds or self._has_searched_all_rows:
            return []
        made = self._what_more_rows_show(self.best_theta)
        self._made += made
        if self._looked_further:
            return made
        left = self.timer.left() - self._last_model_seconds
        try:
            found = starts_with_details(self.search, self.best_theta, DETAILS_SHARE * left)
        except TimeIsUpError:
            return made
        self._looked_further = True
        return made + found

    def _what_more_rows_show(self, theta: FloatArray) -> list[FloatArray]:
        """θ with related values, and with finer details."""
        related = with_related_values(self.layout, theta, self.search.starts.gaps)
        finer = with_finer_details(self.layout, theta)
        return [changed for changed in (related, finer) if changed is not None]

    def _left_out(self, followed: list[FloatArray]) -> list[FloatArray]:
        """Starts from what the search had no time for before, if there is time now and anything new is found."""
        left = self.timer.left() - 2.0 * self._last_model_seconds
        is_whole = not (self.search.may_be_completed or self._beyond)
        if is_whole or left < FEW_EVALUATIONS * self._evaluation_seconds:
            return []
        number = len(self.history)
        self.objective.release()  # the search needs the memory
        self._beyond.append(self.search.candidates[0])  # whoever interrupts must not take it for whole
        if self.search.may_be_completed:
            complete_search(self.search, COMPLETION_SHARE * left)
        found = self._near([*self.search.carried(), *self.search.rivals()])
        near = [pair for pair in found if not any(np.array_equal(pair[0], theta) for theta in followed)]
        self._pending += [math.inf] * (number - len(self._pending)) + [deficit for _, deficit in near]
        self._beyond = []
        return [theta for theta, _ in near]

    def _near(self, optima: list[SubsetOptimum]) -> list[tuple[FloatArray, float]]:
        """Those of the last subset that may yet win on all rows, and how far below the best they are, per row."""
        rows = self.search.rounds[-1].rows if self.search.rounds else 1
        different = list(dict.fromkeys(optima))
        deficits = [(self.search.candidates[0].likelihood - optimum.likelihood) / rows for optimum in different]
        self._made += [optimum.theta for optimum in different if optimum.is_derived]
        return [(o.theta, d) for o, d in zip(different, deficits, strict=True) if d <= WORTH_CARRYING]

    def _starts(self) -> list[FloatArray]:
        """The best of the search, and others that may yet win on all rows."""
        carried = self.search.carried()
        self._beyond = [other for other in self.search.near_best() if other not in carried]
        near = self._near(carried)
        if not near:
            return [self.search.candidates[0].theta]
        self._pending = [deficit for _, deficit in near]
        starts = [theta for theta, _ in near]
        if len(starts) * USUAL_EVALUATIONS * self._evaluation_seconds > self.timer.left() and self._has_time_to_climb():
            self._put_first(self._best_of_search(), starts)
        return starts

    def _put_first(self, theta: FloatArray, starts: list[FloatArray]) -> None:
        """Where not all starts can be followed to their end, the first one should be what all rows speak for."""
        known = next((i for i, start in enumerate(starts) if np.array_equal(start, theta)), None)
        if known == 0:
            return
        pending = 0.0
        if known is None:
            self._made.append(theta)
        else:
            del starts[known]
            pending = self._pending.pop(known)
        starts.insert(0, theta)
        self._pending.insert(0, pending)

    def _may_look(self) -> bool:
        """Whether there are time and memory for another factorisation besides the model that is held."""
        has_room = self._has_room or self._model is None
        return has_room and self.timer.left() > 2.0 * self._last_model_seconds

    def _has_time_to_climb(self) -> bool:
        """For an evaluation, and the model at the best θ that is computed in the end."""
        return self.timer.left() - self._last_model_seconds > self._evaluation_seconds

    @property
    def _last_model_seconds(self) -> float:
        return self._evaluation_seconds / EVALUATION_FACTORISATIONS

    def _climb(self, theta: FloatArray, settings: LBFGSSettings) -> tuple[TrainingEnd, str, int]:
        """L-BFGS from a start: how it ended, details, restarts."""
        self._followed = False
        if not self._has_time_to_climb():
            return TrainingEnd.TIME_LIMIT, "", 0
        curvature = None if settings is FAR else self.search.curvature(theta, self.n)
        left = self.timer.left() - self._last_model_seconds
        again, before = theta is self.best_theta and bool(self._starts_record), self.best_lml
        self._before = before
        self._steps, self._model = [], None  # the model's memory is needed
        coarse = settings is COARSE
        leader = None if settings is FINE else self._leader
        try:
            optimum = minimise(
                LogCoordinates.objective(self._evaluate),
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
            self._starts_record.follow(end)
        else:
            self._starts_record.add(theta, end, is_made=any(theta is made for made in self._made))
        if self.best_lml > before + (SETTLED * self.n if again else 0.0):
            # Coarse steps end where one of them has gained little: on a ridge that says nothing.
            by_itself = settings in (FINE, CLOSER) or optimum.reason is OptimiserEnd.CALLBACK
            self._settled = self._followed and (by_itself or self._has_little_to_gain())
            known = (self.layout, self.best_theta, self.best_lml, self.n)
            self._leader = KnownOptimum(*known, curvature) if self._followed and curvature is not None else None
            self._starts_record.top = end
        elif again and self._followed:  # from the best θ nothing leads higher, wherever that came from
            self._settled = True
        return ENDS[optimum.reason], "", optimum.restarts

    def _is_settled(self, optimum: Optimum) -> bool:
        if optimum.reason in (OptimiserEnd.CONVERGED, OptimiserEnd.NO_FURTHER_STEP, OptimiserEnd.CALLBACK):
            return True
        return self._has_little_to_gain()

    def _has_little_to_gain(self) -> bool:
        return left_to_gain([-likelihood for likelihood in self._steps]) <= SETTLED * self.n

    def _evaluate(self, theta: FloatArray) -> tuple[float, FloatArray]:
        started = self.timer.seconds()
        value, gradient = self.objective(theta)
        self._evaluation_seconds = self.timer.seconds() - started
        self._evaluations += 1
        self._flops += exact_flops(self.n, self._n_features)
        if -value > self.best_lml:
            self.best_theta, self.best_lml, self._model = np.array(theta), -value, None
            self._best_gradient = np.array(gradient)  # of what is minimised
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
