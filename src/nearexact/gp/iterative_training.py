"""Training an exact GP by conjugate gradients: θ from a search on subsets, then L-BFGS on the estimated likelihood.

Then other starts that may lead higher are followed with all rows, while there is time. Whatever happens, the best model
so far is there: before the first evaluation a sparse GP at the θ of the search.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from nearexact.evidence import STANDARD_ERRORS, Evidence
from nearexact.gp.block_ascent import LOOSE, block_likelihood, climbed_in_blocks
from nearexact.gp.bounds import LikelihoodBounds
from nearexact.gp.budget import TimeIsUpError, Timer
from nearexact.gp.climbs import Climbs
from nearexact.gp.exact import exact_memory
from nearexact.gp.hills import halfway
from nearexact.gp.iterative import Estimate
from nearexact.gp.iterative_cost import blocks_fit, possible_sizes
from nearexact.gp.iterative_finishing import Finishing
from nearexact.gp.iterative_model import Difference, HeldModel
from nearexact.gp.iterative_plan import IterativePlan
from nearexact.gp.iterative_posterior import IterativePosterior
from nearexact.gp.iterative_workbench import Workbench
from nearexact.gp.known_optimum import AGREEMENT, SETTLED_GAIN, KnownOptimum, until_settled
from nearexact.gp.nearer_start import nearer_start
from nearexact.gp.nearest_density import best_with_all_rows
from nearexact.gp.optimise import OptimiserEnd, Step
from nearexact.gp.other_starts import OtherEnd, OtherStart, OtherStarts
from nearexact.gp.parameters import ParameterLayout
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
MOST_CLIMBS = 20  # from one start
BLOCKS_SHARE = 0.2  # of the time before the end of training, for a climb on the likelihood in blocks
# Of the time that is left, at most, for another start to come nearer on few rows; or what an evaluation with all rows
# takes: far from any optimum several of these would only lead away from there.
NEARER_SHARE = 0.05
ALL_ROWS_INSTEAD = 4.0  # times an evaluation of a larger subset: where one of all rows takes no more, it tells more


class IterativeTraining:
    """One training run, with the same interface as `Training`; its stages are climbs, their M is the preconditioner's.

    `max_inducing` bounds the points of the preconditioner, or those beside it. With `factorises` the model in the end
    is that of one Cholesky factor at the θ that was found, where memory and time allow it: likelihood and variances are
    then exact too. `flops` counts floating point operations by formula (flops.py).
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
            looks_for_details=False,  # with all rows, too
            keeps_digits=True,
            is_worth=self._is_worth,
            on_round=on_round,
            clock=clock,
            numerics=numerics,
        )
        self._search_limit = search_limit
        factorises = factorises and exact_memory(self.layout.kernel, self.n) <= self.memory
        may_block = blocks_fit(self.layout.kernel, self.n, n_features, self.memory)
        self._plan = IterativePlan(sizes, self.n, self.timer, may_factorise=factorises, may_block=may_block)
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
        self._climbs: Climbs | None = None  # from the present start
        self._leader: Climbs | None = None  # which have led to the best so far
        self._others: OtherStarts | None = None  # once the first start was followed to its end
        self._has_moved = False  # by blocks, from what the search has found
        self._started = 0.0
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
        self._best = self._sparse(theta, self._first_points)
        self._plan.learn_from_sparse(self._best)
        self._ascend(self._best)
        searched = self._best
        self._climb_in_blocks(searched)
        if self._plan.climbing_seconds(is_first=True) > self.timer.left():
            # First the exact GP here; what that takes tells whether there is time for more after all.
            self._finishing.finish(self._best, self._keep)
        end = self._climb_from_first(searched)
        if end == TrainingEnd.OPTIMUM_FOUND:
            self._others = OtherStarts(self.search, theta, has_moved=self._has_moved)
            end = self._follow(self._others)
        self._finishing.finish(self._held(), self._keep)
        self._finishing.prove(self._held(), self._keep)
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
            agreeing = 0 if self._has_moved else agreeing  # blocks have led elsewhere
            return Evidence(rounds[-1].rows, starts, agreeing, None, optimum.likelihood) if rounds else None
        leader, others, gain = self._leader, self._others, None
        if others is not None:
            agreeing, starts = others.support()
            if leader is not None and leader.model.theta is best.theta and leader.is_settled and others.are_followed:
                # A climb that ends in noise may have missed as much as that hides.
                error = best.estimate.standard_error
                highest = others.excess(best.estimate.value, error)
                gain = max(leader.left_to_gain + STANDARD_ERRORS * error, highest) / self.n
        return Evidence(self.n, starts, agreeing, gain, best.value)

    def _ascend(self, model: HeldModel) -> None:
        """On a sparse GP's bound, as far as that is nearly the exact likelihood."""

        def keep(found: HeldModel) -> None:
            self._keep(found)
            self._plan.learn_from_sparse(found)
            if self.on_step is not None:
                self.on_step(Progress(found.points, found.value, self.timer.seconds(), self.posterior))

        ascend(self._workbench, self._plan, self.search, model, keep)

    def _climb_in_blocks(self, model: HeldModel) -> None:
        """On the likelihood of rows in blocks, where that is nearly the exact one."""
        optimum = climbed_in_blocks(self.search, model.theta, BLOCKS_SHARE * self._plan.spare_seconds())
        margin = LOOSE * self.n  # a smaller gain may be none
        if optimum is None or not optimum.is_nearly_exact or optimum.gain <= margin:
            return
        try:
            found = self._sparse(optimum.theta, self._first_points)
        except NumericalError:
            return
        least = max(found.bounds.lower - margin, model.bounds.lower)
        is_right = least <= optimum.likelihood <= found.bounds.upper + margin
        if is_right and found.theta is optimum.theta:
            self._has_moved = self._plan.blocks_tell = True
            self._keep(found)
            self._plan.learn_from_sparse(found, is_elsewhere=True)

    def _climb_from_first(self, searched: HeldModel) -> str:
        """From where blocks have led, or else from what the search has found."""
        self._leader = leader = self._climbs_from(self._held())
        end = self._climb_on(leader, lambda _: leader.is_settled)
        has_model = leader.model.estimate is not None or self._held().is_finished
        if end != TrainingEnd.FAILED or has_model or not self._has_moved:
            return end
        self._has_moved = False
        self._keep(searched)
        self._plan.start_again(searched)
        return self._climb_from_first(searched)

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

    @property
    def _first_points(self) -> int:
        return min(FIRST_POINTS, self._plan.sizes[-1])

    def _is_worth(self, rows: int) -> bool:
        """Whether a subset of so many rows costs much less than all of them, which tell more."""
        try:
            model = self._sparse(self.search.candidates[0].theta, self._first_points)
        except NumericalError:
            return True
        return self._plan.operations_at(model) > ALL_ROWS_INSTEAD * self.search.evaluation_flops(rows)

    # ---- climbs ----------------------------------------------------------------------------------------------------

    def _climbs_from(
        self,
        model: HeldModel,
        *,
        leads: bool = True,
        is_near_optimum: bool = True,
        until: Callable[[], Callable[[Step], None]] = lambda: lambda _: None,
    ) -> Climbs:
        """`leads` is whether these lead to the best so far; else that stays what it is until they have ended."""

        def on_step(points: int, step: Step) -> None:
            if self.on_step is not None:
                best = self._held()
                at = (points, -step.value) if leads else (best.points, best.value)
                self.on_step(Progress(*at, self.timer.seconds(), self.posterior))

        def keep(model: HeldModel) -> None:
            if leads:
                self._keep(model)

        def curvature(theta: FloatArray) -> FloatArray | None:
            return self.search.curvature(theta, self.n) if is_near_optimum else None

        return Climbs(self._workbench, self._plan, model, curvature=curvature, kept=keep, on_step=on_step, until=until)

    def _climb_on(self, climbs: Climbs, is_enough: Callable[[OptimiserEnd], bool]) -> str:
        """Climb after climb from one start, until that is enough: how it ended."""
        self._climbs = climbs
        for number in range(MOST_CLIMBS):
            if number:
                self._begin()
            try:
                end = climbs.climb()
            except TimeIsUpError:
                return TrainingEnd.TIME_LIMIT
            except NumericalError as error:
                logger.warning("a climb could not be computed: %s", error)
                if self._plan.has_another(climbs.points):
                    continue
                return TrainingEnd.FAILED
            if end is OptimiserEnd.TIME_LIMIT:
                return TrainingEnd.TIME_LIMIT
            if is_enough(end):
                return TrainingEnd.OPTIMUM_FOUND
            wanted_end = self._record(StageEnd.COMPLETE, end)
            if wanted_end is not None:
                return wanted_end
        return TrainingEnd.MAX_ITERATIONS

    def _follow(self, others: OtherStarts) -> str:
        """Other starts that may lead higher with all rows: what is found before is the best only after them."""
        self._workbench.release()  # the search needs the memory
        best, end = self._held(), str(TrainingEnd.OPTIMUM_FOUND)
        if self._plan.blocks_tell:  # which the exact likelihood has the last word on
            error = LOOSE * self.n + STANDARD_ERRORS * (best.estimate.standard_error if best.estimate else 0.0)
            self._plan.blocks_tell = abs(block_likelihood(self.search, best.theta) - best.value) <= error
        for start in others.take(lambda: self._held().theta, self.timer, self._plan.finishing_seconds):
            failed = end == TrainingEnd.FAILED
            wanted_end = self._record(StageEnd.FAILED if failed else StageEnd.COMPLETE, end)
            if wanted_end is not None:
                return wanted_end
            self._begin()
            self._climbs = None
            end = self._climb_from_other(others, start)
            if end not in (TrainingEnd.OPTIMUM_FOUND, TrainingEnd.FAILED):
                return end
        return TrainingEnd.TIME_LIMIT if others.lack_time else TrainingEnd.OPTIMUM_FOUND

    def _climb_from_other(self, others: OtherStarts, start: OtherStart) -> str:
        """Climb from another start, until it has led higher, or is known not to."""
        self._workbench.release()
        best = self._held()
        top = others.known(best.theta, best.value)
        theta = self._nearer(start, best, top)
        try:
            model = self._sparse(theta, self._first_points)
        except NumericalError:
            return TrainingEnd.FAILED
        if model.theta is not theta:  # it cannot be computed there
            return TrainingEnd.FAILED
        agrees, left = False, math.nan
        until = partial(until_settled, self.n, top, settles=start.is_optimum)

        def is_enough(end: OptimiserEnd) -> bool:
            nonlocal agrees, left
            if end is OptimiserEnd.MAX_ITERATIONS:  # it still rises, and may get over the hill of the best
                return False
            agrees = self._are_on_one_hill(climbs.model, best, top)
            left = SETTLED_GAIN * self.n if end is OptimiserEnd.CALLBACK else climbs.left_to_gain
            is_known = end is OptimiserEnd.CALLBACK or climbs.number > 1  # one climb does not tell
            is_lower = is_known and climbs.model.value + left < best.value - AGREEMENT * self.n
            return agrees or climbs.is_settled or is_lower

        with self._plan.another_start(model):
            climbs = self._climbs_from(model, leads=False, is_near_optimum=start.is_optimum, until=until)
            end = self._climb_on(climbs, is_enough)
        found = climbs.model
        leads = found.estimate is not None and Difference.between(found, best).is_certain
        if leads:
            self._leader, self._plan.cost = climbs, climbs.cost
            self._keep(found)
            others.lead(start)
        if end == TrainingEnd.OPTIMUM_FOUND and found.estimate is not None:
            # On the hill of the best nothing is left but to get to its top, which is what the best itself has to do.
            reached = OtherEnd(found.value, found.estimate.standard_error, 0.0 if agrees else left)
            others.followed(start, reached, agrees=agrees or leads)
        return end

    def _nearer(self, start: OtherStart, best: HeldModel, top: KnownOptimum | None) -> FloatArray:
        """Where another start leads to as far as less than an evaluation tells: θ itself, if in doubt."""
        if self._plan.blocks_tell:
            optimum = climbed_in_blocks(self.search, start.theta, BLOCKS_SHARE * self._plan.spare_seconds(), top=top)
            # A start that is hardly worse may have a hill of its own, which blocks make too little of.
            if optimum is not None and optimum.is_nearly_exact and optimum.gain > 2.0 * LOOSE * self.n:
                return optimum.theta
        if start.is_optimum:
            return start.theta
        evaluation = min(self._plan.cost.predicted(self._plan.points()), self._plan.spare_seconds())
        return nearer_start(self.search, start.theta, best.theta, max(NEARER_SHARE * self.timer.left(), evaluation))

    def _are_on_one_hill(self, model: HeldModel, best: HeldModel, top: KnownOptimum | None) -> bool:
        """Whether both are near to each other, or the likelihood halfway between them is about as high as theirs."""
        margin, difference, objective = AGREEMENT * self.n, Difference.between(model, best), self._workbench.objective
        if difference.is_certain or difference.likely < -margin or objective is None:
            return False
        if top is not None and top.is_near(model.theta, min(model.value, best.value)):
            return True
        between = self.layout.unpack(halfway(self.layout, model.theta, best.theta))
        try:
            value = objective.estimate(*between).value
        except (NumericalError, TimeIsUpError):
            return False
        return min(model.value, best.value) - margin <= value <= max(model.value, best.value) + margin

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
        self._started, self._recorded = self.timer.seconds(), False

    def _record(self, end: StageEnd, words: str) -> str | None:
        best, now, climbs = self._held(), self.timer.seconds(), self._climbs
        stage = best.stage(
            n=self.n,
            seconds=now - self._started,
            elapsed=now,
            evaluations=0 if climbs is None else climbs.evaluations,
            restarts=0 if climbs is None else climbs.restarts,
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
