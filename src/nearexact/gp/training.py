"""Training a sparse GP with nothing to tune: M grows, and for each M θ is optimised and the points are selected anew.

`procedure="paper"` is Algorithm 1 of Ober et al., where every M starts from the same θ. `procedure="robust"` adds a way
out where that start leads nowhere, and never gives back what a smaller M has reached. What to make of the models on
the way, and whether one of them is good enough, is left to the callbacks.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import torch

from nearexact.gp.bounds import LikelihoodBounds
from nearexact.gp.budget import Cost
from nearexact.gp.factorisation import Factorisation
from nearexact.gp.fitc import FitcObjective
from nearexact.gp.inducing import select, selection_memory
from nearexact.gp.memory import sweep_memory
from nearexact.gp.optimise import Step, minimise
from nearexact.gp.parameters import ParameterLayout
from nearexact.gp.posterior import SparsePosterior
from nearexact.gp.safety import DEFAULT_NUMERICS, NumericalError, Numerics, Repairs
from nearexact.gp.schedule import SCHEDULE, ends_early, inducing_schedule
from nearexact.gp.sparse import SparseObjective, is_tight
from nearexact.gp.stages import FAILED, INTERRUPTED, TIME_LIMIT, UNBEATEN, Progress, Stage
from nearexact.gp.starts import START_NOISE, with_less_influence
from nearexact.kernels.base import Kernel
from nearexact.limits import is_out_of_memory, memory_budget
from nearexact.noise_only import explains_nothing, noise_only_likelihood
from nearexact.typing import FloatArray, IndexArray
from nearexact.validation import as_training_data

logger = logging.getLogger(__name__)

# How the log marginal likelihood is approximated: a class of objectives, made from kernel, noise, X, y and Z.
ObjectiveFactory = type[SparseObjective] | type[FitcObjective]
MOST_SELECTIONS = 20  # for one M
HELD_SQUARES = 4  # [M, M] arrays of two models, the best and the last, that are kept while another one is computed
EVALUATION_SWEEPS = 3.0  # an evaluation with its gradient takes no more than so many sweeps without


@dataclass(frozen=True, eq=False)
class Candidate:
    """A model as its ingredients: rows of X that are inducing points, and θ."""

    rows: IndexArray
    theta: FloatArray
    elbo: float  # the bound that is maximised, −∞ where it could not be computed
    model: _Model | None = None  # where it is at hand

    @property
    def computed(self) -> bool:
        """Whether there is a model at all."""
        return self.elbo > -math.inf


@dataclass(frozen=True, eq=False)
class _Model:
    """What is kept of a factorisation: two [M, M] arrays."""

    posterior: SparsePosterior
    bounds: LikelihoodBounds
    jitter: float


class _OutOfTimeError(Exception):
    """What comes next would end after the time limit."""


@dataclass
class _Tally:
    """What is counted while one M is under way."""

    scheduled: int
    started: float
    evaluations: int = 0
    reselections: int = 0
    restarts: int = 0
    rescues: int = 0
    exhausted: bool = True  # whether every selection ended early: other points would be copies, whatever θ is
    best: Candidate | None = None
    repairs: list[Repairs] = field(default_factory=list)


class Training:
    """One training run. `run` does it; after an exception in it, Ctrl-C for example, the best model is still there.

    `bound` is what is maximised: "elbo", or "tight" for the tighter collapsed bound, with the same predictions at the
    same θ. `time_limit` (seconds) and `memory_limit` bound the run; `clock` tells the seconds. `on_step` is called
    after each step of the optimiser and `on_stage` after each M, with the model that it gave; the latter ends the
    training by raising StopIteration(reason). `flops` counts floating point operations by formula, the sweeps over the
    data only.
    """

    def __init__(
        self,
        kernel: Kernel,
        X: Any,
        y: Any,
        *,
        procedure: str = "robust",
        bound: str = "elbo",
        max_inducing: int = SCHEDULE[-1],
        time_limit: float = math.inf,
        memory_limit: int | float | str | None = None,
        seed: int | None = None,
        objective: ObjectiveFactory = SparseObjective,
        on_step: Callable[[Progress], None] | None = None,
        on_stage: Callable[[Stage, SparsePosterior], None] | None = None,
        clock: Callable[[], float] = time.perf_counter,
        numerics: Numerics = DEFAULT_NUMERICS,
    ) -> None:
        if procedure not in ("robust", "paper"):
            raise ValueError(f'procedure must be "robust" or "paper", got {procedure!r}')
        self.tight = is_tight(bound)
        if self.tight and objective is not SparseObjective:
            raise ValueError(f"only SparseObjective has a tight bound, got {objective.__name__}")
        whole = isinstance(max_inducing, (int, np.integer)) and not isinstance(max_inducing, bool)
        if not whole or not 1 <= max_inducing <= SCHEDULE[-1]:
            raise ValueError(f"max_inducing must be a whole number from 1 to {SCHEDULE[-1]}, got {max_inducing!r}")
        self.X, self.y = as_training_data(X, y)
        self.numerics = numerics
        self.layout = ParameterLayout(kernel, self.X.shape[1], numerics)
        self.theta0 = self.layout.pack(self.layout.kernel, START_NOISE)
        self.procedure, self.time_limit = procedure, time_limit
        self.memory = memory_budget(memory_limit, self.X.device)
        self.schedule = inducing_schedule(len(self.X), max_inducing)
        self.capped = ends_early(len(self.X), max_inducing)
        self.noise_only = noise_only_likelihood(self.y, numerics.floor)
        self.history: list[Stage] = []
        self.flops = 0.0
        self.on_step, self.on_stage, self.clock = on_step, on_stage, clock
        self._make_objective = partial(SparseObjective, bound=bound) if self.tight else objective
        self._random = np.random.default_rng(seed)
        self._started = clock()
        self._evaluation, self._sweep, self._selection = Cost(), Cost(), Cost()
        self._stage = _Tally(self.schedule[0], self._started)
        if not self._fits(self.schedule[0]):
            raise ValueError(
                f"{self.schedule[0]} inducing points for {len(self.X)} rows need"
                f" {self._memory_of(self.schedule[0]) / 1e6:.3g} MB, but the memory limit is {self.memory / 1e6:.3g} MB"
            )
        # Something to return whatever happens: any points, with the θ to start from.
        rows = self._random.permutation(len(self.X))[: self.schedule[0]]
        self.best = Candidate(rows, self.theta0, -math.inf)

    def seconds(self) -> float:
        """Since training began."""
        return self.clock() - self._started

    def run(self) -> None:
        """Go through the schedule."""
        ended = "max_inducing" if self.capped else "schedule"
        for m in self.schedule:
            if not self._fits(m):
                ended = "memory limit"
                break
            if self.history and self._left() < self._least_seconds(m):
                ended = TIME_LIMIT
                break
            self._stage = _Tally(m, self.clock())
            try:
                result, stopped = self._robust(m) if self.procedure == "robust" else self._climb(m, self.theta0)
            except _OutOfTimeError:
                result, stopped = None, TIME_LIMIT
            except NumericalError as error:
                logger.warning("M=%d could not be computed: %s", m, error)
                result, stopped = self.best, f"{FAILED}: {error}"
            except (MemoryError, RuntimeError) as error:
                if not is_out_of_memory(error) or not self.history:
                    raise
                ended = "memory limit"
                break
            # Only here, since an exception keeps the buffers of what it interrupts alive.
            if result is None:
                self._record(self._unfinished(), TIME_LIMIT)
                ended = TIME_LIMIT
                break
            if not result.computed:
                continue
            model = self._record(result, stopped)
            try:
                if self.on_stage is not None:
                    self.on_stage(self.history[-1], model.posterior)
            except StopIteration as reason:
                ended = str(reason)
                break
            if self._stage.exhausted:
                ended = "no variance left"
                break
        if not self.history:
            raise NumericalError("no number of inducing points could be computed; the log has the reasons")
        self._end(ended)

    def interrupted(self) -> None:
        """Close the record after an exception in `run`: what was under way counts if it is the best so far."""
        if self.history and self.history[-1].ended:
            return
        if not self.history or self.history[-1].scheduled != self._stage.scheduled:
            self._record(self._unfinished(), INTERRUPTED)
        self._end(INTERRUPTED)

    def posterior(self) -> SparsePosterior:
        """Predictions of the best model so far."""
        return self._best_model().posterior

    def bounds(self) -> tuple[float, float]:
        """The bound that was maximised and the upper bound, of the best model so far."""
        return self.best.elbo, self._best_model().bounds.upper

    def likelihood_bounds(self) -> LikelihoodBounds:
        """All that is known about the log marginal likelihood of the best model so far."""
        return self._best_model().bounds

    # ---- one M -----------------------------------------------------------------------------------------------------

    def _robust(self, m: int) -> tuple[Candidate, str]:
        """The paper's start; where it leads nowhere, two more; and never less than what is held already."""
        held = self.best
        theta_smooth = with_less_influence(self.layout, self.theta0)
        afresh = partial(self._climb, m, self.theta0)
        onwards = partial(self._climb, m, held.theta, start=held.rows)  # nested points: no worse from the beginning
        smoother = [] if np.array_equal(theta_smooth, self.theta0) else [partial(self._climb, m, theta_smooth)]
        if self._explains_nothing(held):
            starts = [afresh, *smoother]
        elif self._left() < self._whole_seconds(m):  # too little time to climb from the bottom
            starts = [onwards]
        else:
            starts = [afresh, onwards, *smoother]
        best, stopped = held, UNBEATEN
        failures: list[NumericalError] = []
        for number, climb in enumerate(starts):
            self._stage.rescues = number
            try:
                candidate, reason = climb()
            except NumericalError as error:
                logger.info("M=%d: a start failed: %s", m, error)
                failures.append(NumericalError(str(error)))  # without the traceback, which holds large buffers
                continue
            if candidate.elbo >= best.elbo:
                best, stopped = candidate, reason
            if number == 0 and best is candidate and not self._explains_nothing(best):
                break
        if len(failures) == len(starts) and self.best is held:
            raise failures[-1]
        return (self.best, FAILED) if self.best.elbo > best.elbo else (best, stopped)  # a start may fail late

    def _climb(self, m: int, theta: FloatArray, *, start: IndexArray | None = None) -> tuple[Candidate, str]:
        """Optimise θ, select again, and so on while selection helps: the inner loop of Algorithm 1."""
        rows = self._select(theta, m, start)
        objective = self._objective(rows)
        if not self.best.computed:
            self._candidate(objective, rows, theta)  # something to return if time is up already
        for _ in range(MOST_SELECTIONS):
            theta = self._optimise(objective, rows, theta)
            current = self._candidate(objective, rows, theta)
            del objective  # its buffers would be in the way of the selection
            before, rows = rows, self._select(theta, m)
            self._stage.reselections += 1
            if self.procedure == "robust" and np.array_equal(np.sort(before), np.sort(rows)):
                return current, "selecting again changed nothing"
            objective = self._objective(rows)
            try:
                reselected = self._candidate(objective, rows, theta)
            except NumericalError as error:
                return current, f"selecting again could not be computed: {error}"
            if not reselected.elbo >= current.elbo:
                return current, "selecting again did not help"
            del current
        return reselected, f"{MOST_SELECTIONS} selections"

    def _optimise(self, objective: SparseObjective | FitcObjective, rows: IndexArray, theta: FloatArray) -> FloatArray:
        """The best θ that L-BFGS finds for these points."""
        m = len(rows)
        if self._left() < self._evaluation_seconds(m) + self._sweep.predicted(m):
            raise _OutOfTimeError

        def evaluate(at: FloatArray) -> tuple[float, FloatArray]:
            begun = self.clock()
            value, gradient = objective(at)
            self._evaluation.measured(m, self.clock() - begun)
            self._stage.evaluations += 1
            self.flops += (6.0 if self.tight else 5.0) * m**2 * len(self.X)  # solve, VVᵀ, a product and another solve
            self._offer(Candidate(rows, at.copy(), -value))
            return value, gradient

        def after_step(step: Step) -> None:
            if self.on_step is not None:
                model = partial(objective.factorise, *self.layout.unpack(step.theta))
                self.on_step(Progress(m, -step.value, self.seconds(), lambda: model().posterior()))

        time_limit = self._left() - self._sweep.predicted(m)  # the model itself takes a sweep more
        optimum = minimise(evaluate, theta, time_limit=time_limit, callback=after_step, clock=self.clock)
        self._stage.restarts += optimum.restarts
        logger.debug("M=%d: %s after %d evaluations, ELBO %.6g", m, optimum.reason, optimum.evaluations, -optimum.value)
        if optimum.reason == TIME_LIMIT:
            raise _OutOfTimeError
        return optimum.theta

    def _candidate(self, objective: SparseObjective | FitcObjective, rows: IndexArray, theta: FloatArray) -> Candidate:
        """The model at θ with these points."""
        begun = self.clock()
        factors = objective.factorise(*self.layout.unpack(theta), residuals=True)
        value = factors.tight_bound if self.tight and isinstance(factors, Factorisation) else factors.elbo
        elbo = value if math.isfinite(value) else -math.inf
        model = _Model(factors.posterior(), factors.bounds, factors.jitter)
        self._sweep.measured(len(rows), self.clock() - begun)
        self._stage.evaluations += 1
        self.flops += 2.0 * len(rows) ** 2 * len(self.X)
        candidate = Candidate(rows, theta, elbo, model)
        self._offer(candidate)
        return candidate

    def _select(self, theta: FloatArray, m: int, start: IndexArray | None = None) -> IndexArray:
        begun = self.clock()
        if self.history and self._left() < self._least_seconds(m):
            raise _OutOfTimeError
        kernel, _ = self.layout.unpack(theta)
        seed = int(self._random.integers(2**63))
        rows = select(
            kernel, self.X, m, seed=seed, start=start, between_blocks=self._check_time, numerics=self.numerics
        ).indices
        self._selection.measured(m, self.clock() - begun)
        self.flops += 1.0 * len(rows) ** 2 * len(self.X)
        self._stage.exhausted &= len(rows) < m
        return rows

    def _objective(self, rows: IndexArray) -> SparseObjective | FitcObjective:
        objective = self._make_objective(
            self.layout.kernel,
            START_NOISE,
            self.X,
            self.y,
            self.X[torch.from_numpy(rows)],
            memory_limit=self.memory - held_memory(len(rows)),
            numerics=self.numerics,
        )
        self._stage.repairs.append(objective.repairs)
        return objective

    # ---- the record ------------------------------------------------------------------------------------------------

    def _offer(self, candidate: Candidate) -> None:
        if not math.isfinite(candidate.elbo):
            return
        if candidate.elbo >= self.best.elbo:
            self.best = candidate
        if self._stage.best is None or candidate.elbo >= self._stage.best.elbo:
            self._stage.best = replace(candidate, model=None)  # only one model is worth its memory

    def _unfinished(self) -> Candidate:
        """What stands for an M that was cut short."""
        return self._stage.best if self.procedure == "paper" and self._stage.best is not None else self.best

    def _best_model(self) -> _Model:
        self.best = self._with_model(self.best)
        assert self.best.model is not None
        return self.best.model

    def _with_model(self, candidate: Candidate) -> Candidate:
        if candidate.model is not None:
            return candidate
        return self._candidate(self._objective(candidate.rows), candidate.rows, candidate.theta)

    def _record(self, candidate: Candidate, stopped: str) -> _Model:
        candidate = self._with_model(candidate)
        model, tally = candidate.model, self._stage
        assert model is not None
        stage = Stage(
            n=len(self.X),
            scheduled=tally.scheduled,
            m=len(candidate.rows),
            elbo=candidate.elbo,
            lower_bound=model.bounds.lower,
            upper_bound=model.bounds.upper,
            kernel=model.posterior.kernel,
            noise_variance=model.posterior.noise_variance,
            seconds=self.clock() - tally.started,
            elapsed=self.seconds(),
            evaluations=tally.evaluations,
            reselections=tally.reselections,
            restarts=tally.restarts,
            rescues=tally.rescues,
            jitter=model.jitter,
            repairs=Repairs.sum(tally.repairs),
            stopped=stopped,
        )
        self.history.append(stage)
        logger.info(
            "M=%d: ELBO %.6g, upper bound %.6g, %.1f s, %d evaluations, %d rescues; %s",
            stage.m, stage.elbo, stage.upper_bound, stage.seconds, stage.evaluations, stage.rescues, stage.stopped,
        )  # fmt: skip
        return model

    def _end(self, reason: str) -> None:
        self.history[-1] = replace(self.history[-1], ended=reason)
        logger.info("ended at M=%d after %.1f s: %s", self.history[-1].m, self.seconds(), reason)

    # ---- limits ----------------------------------------------------------------------------------------------------

    def _explains_nothing(self, candidate: Candidate) -> bool:
        return explains_nothing(candidate.elbo, self.noise_only, len(self.X))

    def _left(self) -> float:
        return self.time_limit - self.seconds()

    def _check_time(self) -> None:
        if self._left() < 0.0:
            raise _OutOfTimeError

    def _least_seconds(self, m: int) -> float:
        """What it takes, at least, to learn anything from m points."""
        return self._selection.predicted(m) + self._sweep.predicted(m) + self._evaluation_seconds(m)

    def _evaluation_seconds(self, m: int) -> float:
        if self._evaluation.known:
            return self._evaluation.predicted(m)
        return EVALUATION_SWEEPS * self._sweep.predicted(m)

    def _whole_seconds(self, m: int) -> float:
        """What an M takes from the bottom, if it takes as many evaluations as the one before."""
        if not self.history:
            return 0.0
        before = self.history[-1]
        return self._least_seconds(m) * before.reselections + self._evaluation.predicted(m) * before.evaluations

    def _fits(self, m: int) -> bool:
        return self._memory_of(m) <= self.memory

    def _memory_of(self, m: int) -> int:
        n, n_features = len(self.X), self.layout.kernel.features(self.X[:1], self.X[0]).shape[1]
        sizes = (memory(self.layout.kernel, n, m, n_features) for memory in (sweep_memory, selection_memory))
        return max(sizes) + held_memory(m)


def held_memory(m: int) -> int:
    """Bytes of models that are kept while another one is computed."""
    return 8 * HELD_SQUARES * m * m
