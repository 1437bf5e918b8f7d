"""Training a sparse GP with nothing to tune: M grows, and for each M θ is optimised and the points are selected again.

`procedure="paper"` is Algorithm 1 of Ober et al., where every M starts from the same θ; it differs from the printed one
only where it must: M points that do not fit into memory are not tried, an M that cannot be computed is left out, and
once the residual variance of every row is rounding noise, further points are any rows.

`procedure="robust"` starts from what a search on subsets has found (search.py), compares models by what is proved about
the exact likelihood, since the ELBO at a given M favours smooth θ, and never gives back what a smaller M has reached.
What to make of the models on the way, and whether one of them is good enough, is left to the callbacks.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch

from nearexact.evidence import CERTIFIED_GAP, Evidence
from nearexact.gp.bounds import LikelihoodBounds
from nearexact.gp.budget import Budget, TimeIsUpError
from nearexact.gp.candidates import Candidate, Model, Result, Tally, complete
from nearexact.gp.factorisation import Factorisation
from nearexact.gp.fitc import FitcObjective
from nearexact.gp.flops import feature_count, selection_flops, sparse_flops, sparse_gradient_flops
from nearexact.gp.known_optimum import RIVAL
from nearexact.gp.optimise import LBFGSSettings, OptimiserEnd, Step, minimise
from nearexact.gp.parameters import LogCoordinates, ParameterLayout
from nearexact.gp.posterior import SparsePosterior
from nearexact.gp.rounds import Round
from nearexact.gp.row_noise import RowNoise
from nearexact.gp.rows import LocalRows, as_rows
from nearexact.gp.safety import DEFAULT_NUMERICS, NumericalError, Numerics, Repairs
from nearexact.gp.schedule import SCHEDULE, check_max_inducing, checked_schedule, ends_early, inducing_schedule
from nearexact.gp.search import Search
from nearexact.gp.search_completion import complete_search
from nearexact.gp.search_evidence import evidence_for, found_nothing, gain_per_row, price_of
from nearexact.gp.sparse import SparseObjective, is_tight
from nearexact.gp.stages import Progress, Stage, StageEnd, TrainingEnd
from nearexact.gp.starts import START_NOISE, Start, with_less_influence
from nearexact.gp.ties import random_rows
from nearexact.kernels.base import Kernel
from nearexact.limits import is_out_of_memory, memory_budget
from nearexact.noise_only import explains_nothing
from nearexact.typing import FloatArray, IndexArray, MemoryLimit

logger = logging.getLogger(__name__)

# How the log marginal likelihood is approximated: a class of objectives, made from kernel, noise, X, y and Z.
ObjectiveFactory = type[SparseObjective] | type[FitcObjective]
MOST_SELECTIONS = 20  # for one M
SEARCH_SHARE = 0.25  # of the time limit, at most
EVIDENCE_SHARE = 0.1  # of what is left of it, for each look at what speaks for θ ...
CLOSING_SHARE = 0.5  # ... and where bounds leave nothing else open
SAME_THETA = 0.002  # nats per row of a subset between the exact likelihoods at two θ that count as alike
ROBUST_SETTINGS, PAPER_SETTINGS = LBFGSSettings(ftol=1e-7), LBFGSSettings()
LARGE_DATA = 10**6  # numbers in X, above which even the first steps take a while, and are predicted from a few rows
TRIAL_SHARE, FEWEST_TRIAL_ROWS = 0.02, 64


class Training:
    """One training run. `run` does it; after an exception in it, Ctrl-C for example, the best model is still there.

    X and y are arrays, or X is `Rows` that have their targets, here or elsewhere.
    `bound` is what is maximised: "elbo", or "tight" for the tighter collapsed bound, with the same predictions at the
    same θ. `inducing` is a list of M to go through in the place of the usual schedule, up to N; every one of them is
    done, also where further points are copies. `time_limit` (seconds) and `memory_limit` bound the run, `search_limit`
    (seconds; by default a share of the time limit) what its search for θ may take, which tries `start` first; `clock`
    tells the seconds. `on_step` is called after each step of the optimiser and `on_stage` after each M, with the model
    that it gave; a reason that the latter returns ends the training. `flops` counts floating point operations, by
    formula (flops.py).
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
        inducing: Sequence[int] | None = None,
        time_limit: float = math.inf,
        search_limit: float | None = None,
        memory_limit: MemoryLimit = None,
        start: Start | None = None,
        row_noise: RowNoise | None = None,
        seed: int | None = None,
        objective: ObjectiveFactory = SparseObjective,
        on_step: Callable[[Progress], None] | None = None,
        on_stage: Callable[[Stage, SparsePosterior], str | None] | None = None,
        on_round: Callable[[Round], None] = lambda _: None,
        clock: Callable[[], float] = time.perf_counter,
        numerics: Numerics = DEFAULT_NUMERICS,
    ) -> None:
        if procedure not in ("robust", "paper"):
            raise ValueError(f'procedure must be "robust" or "paper", got {procedure!r}')
        self.tight = is_tight(bound)
        if self.tight and objective is not SparseObjective:
            raise ValueError(f"only SparseObjective has a tight bound, got {objective.__name__}")
        check_max_inducing(max_inducing)
        if row_noise is not None and objective is not SparseObjective:
            raise ValueError(f"only SparseObjective takes noise that differs from row to row, got {objective.__name__}")
        self.data = as_rows(X, y, row_noise)
        self.numerics = numerics
        self.layout = ParameterLayout(kernel, self.data.inputs, numerics)
        self.theta0 = self.layout.pack(self.layout.kernel, START_NOISE)
        self.procedure = procedure
        n, one_row = self.data.n, torch.zeros(1, self.data.inputs, dtype=torch.float64)
        self.n_features = feature_count(self.layout.kernel, one_row)
        memory = memory_budget(memory_limit, self.data.device)
        self.budget = Budget(
            self.layout.kernel, self.data.here, self.n_features, memory=memory, time_limit=time_limit, clock=clock
        )
        to_all = procedure == "robust"  # the paper's ends at 0.8 N
        self.given_schedule = inducing is not None
        self.schedule = (
            inducing_schedule(n, max_inducing, to_all=to_all) if inducing is None else checked_schedule(inducing, n)
        )
        self.capped = inducing is None and ends_early(n, max_inducing, to_all=to_all)
        self.noise_only = self.data.noise_only(numerics.floor)
        self.history: list[Stage] = []
        self.flops = 0.0
        self.on_step, self.on_stage = on_step, on_stage
        self.after_stage: Callable[[], None] = lambda: None  # called after each M but the last
        self.seed = seed
        self._evidence: tuple[FloatArray, Evidence] | None = None  # the last one, and the θ that it is about
        self._priced: tuple[FloatArray, float | None] | None = None  # the best of the search, and its price
        self._is_interrupted = False
        self._earlier = 0.0  # seconds of training that this one goes on from
        self._make_objective = partial(SparseObjective, bound=bound) if self.tight else objective
        self.random = np.random.default_rng(seed)
        self._stage = Tally(self.schedule[0], clock())
        if not self.budget.fits(self.schedule[0]):
            needed = self.budget.memory_of(self.schedule[0])
            raise ValueError(
                f"{self.schedule[0]} inducing points for {n} rows need {needed / 1e6:.3g} MB,"
                f" but the memory limit is {memory / 1e6:.3g} MB"
            )
        self.search: Search | None = None
        if procedure == "robust" and objective is SparseObjective:
            self.search = Search(
                kernel,
                self.data,
                None,
                time_limit=SEARCH_SHARE * time_limit if search_limit is None else search_limit,
                memory=memory,
                start=start,
                seed=seed,
                on_round=on_round,
                clock=clock,
                numerics=numerics,
            )
        # Something to return whatever happens: any points, with the θ to start from.
        rows = random_rows(self.random, n, self.schedule[0])
        theta = self.theta0 if self.search is None else self.search.candidates[0].theta
        self.best = Candidate(rows, theta, -math.inf)
        self._proved = self.best  # the best of those that had a model, so that what they have promised was looked at

    def seconds(self) -> float:
        """Since training started."""
        return self.budget.seconds()

    def run(self) -> None:
        """Go through the schedule: the outer loop of Algorithm 1."""
        end: str | None = None
        # On a cluster a few rows tell nothing about the time that all of them take.
        if self.data.here * self.data.inputs >= LARGE_DATA and math.isfinite(self.budget.time_limit):
            self._predict_first_costs()
        begins = not self.history
        if begins and self.search is not None and self.budget.left() > self.budget.least_seconds(self.schedule[0]):
            self.search.run()
            self.flops += self.search.flops
        for m in self.schedule:
            if self.history and m <= self.history[-1].scheduled_m:  # by the training that this one goes on from
                continue
            end = self._limit_before(m) or self._run_stage(m)
            if end is not None:
                break
            self.after_stage()
        if not self.history:
            raise NumericalError("no number of inducing points could be computed; the log has the reasons")
        self._close(end or (TrainingEnd.MAX_INDUCING if self.capped else TrainingEnd.SCHEDULE))

    def go_on(self, best: Candidate, history: list[Stage]) -> None:
        """Go on from the best model and the stages of an earlier training, with its search and random numbers."""
        self.history, self._earlier = history, history[-1].elapsed
        self._stage = Tally(history[-1].scheduled_m, self.budget.clock())
        self.best = self._with_model(best)

    def interrupted(self) -> None:
        """Close the record after an exception in `run`: what was under way counts if it is the best so far."""
        self._is_interrupted = True
        if self.history and self.history[-1].ended:
            return
        if not self.history or self.history[-1].scheduled_m != self._stage.scheduled_m:
            self._record(Result(self._unfinished(), StageEnd.INTERRUPTED, StageEnd.INTERRUPTED))
        self._close(TrainingEnd.INTERRUPTED)

    def posterior(self) -> SparsePosterior:
        """Predictions of the best model so far."""
        return self._best_model().posterior

    def bounds(self) -> tuple[float, float]:
        """What was maximised and the upper bound, of the best model so far."""
        upper = self._best_model().bounds.upper
        return self.best.objective, upper

    def likelihood_bounds(self) -> LikelihoodBounds:
        """All that is known about the log marginal likelihood of the best model so far."""
        return self._best_model().bounds

    def evidence(self) -> Evidence | None:
        """What speaks for the best θ so far, if there was a search."""
        if self.search is None:
            return None
        known = self._evidence
        if known is not None and known[1].gain_per_row is not None and np.array_equal(known[0], self.best.theta):
            return known[1]
        share = CLOSING_SHARE if self._only_theta_is_open else EVIDENCE_SHARE
        # Whoever interrupts does not want to wait for more.
        found = self.evidence_within(0.0 if self._is_interrupted else share * self.budget.left())
        self._evidence = None if found is None else (self.best.theta, found)
        return found

    def evidence_within(self, seconds: float) -> Evidence | None:
        """The same, looked for at most so long."""
        assert self.search is not None
        theta, started = self.best.theta, self.budget.clock()
        if seconds > 0.0 and self._only_theta_is_open and gain_per_row(self.search, theta) <= RIVAL:
            complete_search(self.search, seconds)
            seconds -= self.budget.clock() - started
        return evidence_for(self.search, theta, seconds)

    @property
    def _only_theta_is_open(self) -> bool:
        bounds = self.likelihood_bounds()
        return bounds.upper - bounds.lower <= CERTIFIED_GAP * bounds.n

    def searched_in_vain(self) -> bool:
        """Whether the exact likelihood of a subset was no better than noise wherever the search has looked."""
        if self.search is None or not self.search.rounds:
            return False
        return found_nothing(self.search, self._price)

    @property
    def _price(self) -> float | None:
        """How many parameters a likelihood must pay for, where these are fewer than those of the kernel."""
        if self.search is None or not self.search.rounds:
            return None
        best = self.search.candidates[0].theta
        if self._priced is None or self._priced[0] is not best:
            self._priced = best, price_of(self.search, best)
        return self._priced[1]

    # ---- one M -----------------------------------------------------------------------------------------------------

    def _limit_before(self, m: int) -> TrainingEnd | None:
        """The limit that forbids to begin with this M, if one does."""
        if not self.budget.fits(m):
            return TrainingEnd.MEMORY_LIMIT
        if self.history and self.budget.left() < self.budget.least_seconds(m):
            return TrainingEnd.TIME_LIMIT
        return None

    def _run_stage(self, m: int) -> str | None:
        """Train with m points and record what came of it; why training ends with it, if it does."""
        self._stage = Tally(m, self.budget.clock())
        try:
            result = self._robust(m) if self.procedure == "robust" else self._climb(m, self.theta0)
        except TimeIsUpError:
            result = None
        except NumericalError as error:
            logger.warning("M=%d could not be computed: %s", m, error)
            if self.procedure == "paper":
                return None
            result = Result(self.best, StageEnd.FAILED, f"{StageEnd.FAILED}: {error}")
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error) or not self.history:
                raise
            return TrainingEnd.MEMORY_LIMIT
        # Only here, since an exception keeps the buffers of what it interrupts alive.
        if result is None:
            self._record(Result(self._unfinished(), StageEnd.TIME_LIMIT, StageEnd.TIME_LIMIT))
            return TrainingEnd.TIME_LIMIT
        if not result.candidate.computed:
            return None
        model = self._record(result)
        reason = None if self.on_stage is None else self.on_stage(self.history[-1], model.posterior)
        if reason is None and self._stage.exhausted and self.procedure == "robust" and not self.given_schedule:
            return TrainingEnd.NO_VARIANCE_LEFT
        return reason

    def _robust(self, m: int) -> Result:
        """Several starts, of which the best is kept, and never less than what is held already."""
        held = self.best
        best = Result(held, StageEnd.UNBEATEN, StageEnd.UNBEATEN)
        failures: list[NumericalError] = []
        starts = self._robust_starts(m, held)
        for number, climb in enumerate(starts):
            self._stage.rescues = number
            try:
                result = climb()
            except NumericalError as error:
                logger.info("M=%d: a start failed: %s", m, error)
                failures.append(NumericalError(str(error)))  # without the traceback, which holds large buffers
                continue
            if result.candidate.standing >= best.candidate.standing:
                best = result
        if len(failures) == len(starts) and self.best is held:
            raise failures[-1]
        self._best_model()
        if self.best.standing > best.candidate.standing:  # a start may fail late, or go on to where less is proved
            if failures:
                return Result(self.best, StageEnd.FAILED, StageEnd.FAILED)
            return complete(self.best, "less is proved where the ELBO is higher")
        return best

    def _robust_starts(self, m: int, held: Candidate) -> list[Callable[[], Result]]:
        """What to climb from: the search's θ, what a smaller M has reached, and where that is nothing the usual starts.

        While an exact likelihood says that the θ that is held is worse than the search's, both are tried at every M:
        with few points the smoother one has the better bound. Once they are alike, one of them is enough.
        """
        cold = [self.theta0]
        smooth = with_less_influence(self.layout, self.theta0)
        if not np.array_equal(smooth, self.theta0):
            cold.append(smooth)
        nothing_found = self.search is None or (not self.search.rounds and self.search.start is None)
        searched = [] if self.search is None or nothing_found else [self.search.candidates[0].theta]
        warm = partial(self._climb, m, held.theta, start=held.rows)  # nested points: no worse from the beginning
        if self._explains_nothing(held):
            return [partial(self._climb, m, theta) for theta in [*searched, *cold]]
        if not searched:
            return (
                [warm] if self.budget.left() < self._cold_seconds(m) else [partial(self._climb, m, self.theta0), warm]
            )
        alike = self.search is not None and gain_per_row(self.search, held.theta) <= SAME_THETA
        return [warm] if alike else [partial(self._climb, m, searched[0]), warm]

    def _climb(self, m: int, theta: FloatArray, *, start: IndexArray | None = None) -> Result:
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
                return complete(current, "selecting again changed nothing")
            objective = self._objective(rows)
            try:
                reselected = self._candidate(objective, rows, theta)
            except NumericalError as error:
                return complete(current, f"selecting again could not be computed: {error}")
            if not reselected.objective >= current.objective:
                return complete(current, "selecting again did not help")
            del current
        return complete(reselected, f"{MOST_SELECTIONS} selections")

    def _optimise(self, objective: SparseObjective | FitcObjective, rows: IndexArray, theta: FloatArray) -> FloatArray:
        """The best θ that L-BFGS finds for these points."""
        n, m, features = self.data.n, len(rows), self.n_features
        self.budget.require(self.budget.evaluation_seconds(m) + self.budget.sweep.predicted(m))

        def evaluate(at: FloatArray) -> tuple[float, FloatArray]:
            with self.budget.measuring(self.budget.evaluation, m):
                value, gradient = objective(at)
            self._stage.evaluations += 1
            self.flops += sparse_flops(n, m, features) + sparse_gradient_flops(n, m, features, tight=self.tight)
            self._offer(Candidate(rows, at.copy(), -value))
            return value, gradient

        def after_step(step: Step) -> None:
            if self.on_step is not None:
                at = LogCoordinates.to_theta(step.theta) if in_logs else step.theta
                model = partial(objective.factorise, *self.layout.unpack(at))
                self.on_step(Progress(m, -step.value, self.seconds(), lambda: model().posterior()))

        in_logs = self.procedure == "robust"
        optimum = minimise(
            LogCoordinates.objective(evaluate) if in_logs else evaluate,
            LogCoordinates.from_theta(theta) if in_logs else theta,
            bounds=LogCoordinates.bounds(self.layout.bounds) if in_logs else self.layout.bounds,
            time_limit=self.budget.left() - self.budget.sweep.predicted(m),  # the model itself takes a sweep more
            callback=after_step,
            settings=ROBUST_SETTINGS if in_logs else PAPER_SETTINGS,
            clock=self.budget.clock,
        )
        self._stage.restarts += optimum.restarts
        logger.debug("M=%d: %s after %d evaluations, %.6g", m, optimum.reason, optimum.evaluations, -optimum.value)
        if optimum.reason is OptimiserEnd.TIME_LIMIT:
            raise TimeIsUpError
        return LogCoordinates.to_theta(optimum.theta) if in_logs else optimum.theta

    def _candidate(self, objective: SparseObjective | FitcObjective, rows: IndexArray, theta: FloatArray) -> Candidate:
        """The model at θ with these points."""
        with self.budget.measuring(self.budget.sweep, len(rows)):
            factors = objective.factorise(*self.layout.unpack(theta), residuals=True)
            if isinstance(factors, Factorisation):
                value = factors.tight_bound if self.tight else factors.elbo
            else:
                value = factors.log_likelihood
            model = Model(factors.posterior(), factors.bounds, factors.jitter)
        self._stage.evaluations += 1
        self.flops += sparse_flops(self.data.n, len(rows), self.n_features)
        value = value if math.isfinite(value) else -math.inf
        candidate = Candidate(rows, theta, value, model, model.bounds.lower)
        self._offer(candidate)
        return candidate

    def _select(self, theta: FloatArray, m: int, start: IndexArray | None = None) -> IndexArray:
        if self.history or self.budget.selection.is_measured:
            self.budget.require(self.budget.least_seconds(m))
        kernel, _ = self.layout.unpack(theta)
        seed = int(self.random.integers(2**63))
        with self.budget.measuring(self.budget.selection, m):
            rows = self.data.select(
                kernel, m, seed=seed, start=start, between_blocks=self.budget.check, numerics=self.numerics
            ).indices
        self.flops += selection_flops(self.data.n, len(rows), self.n_features)
        self._stage.exhausted &= len(rows) < m
        if self.procedure == "paper" and len(rows) < m:  # what is left is rounding noise: any rows are as good
            others = np.setdiff1d(np.arange(self.data.n), rows)
            rows = np.concatenate([rows, np.random.default_rng(seed).permutation(others)[: m - len(rows)]])
        return rows

    def _objective(self, rows: IndexArray) -> SparseObjective | FitcObjective:
        objective = self._make_objective(
            self.layout.kernel,
            START_NOISE,
            self.data,
            None,
            self.data.take(rows).X,
            memory_limit=self.budget.memory_of_sweep(len(rows)),
            numerics=self.numerics,
        )
        self._stage.repairs.append(objective.repairs)
        return objective

    def _predict_first_costs(self) -> None:
        """Take the first steps with a small part of the rows: with all of them they take as much longer."""
        m, n = self.schedule[0], self.data.n
        sample = np.random.default_rng(0).choice(n, max(int(TRIAL_SHARE * n), FEWEST_TRIAL_ROWS))
        data = LocalRows(*self.data.take(sample))
        for _ in range(2):  # the first time takes longer
            started = self.seconds()
            rows = data.select(self.layout.kernel, m, seed=0).indices
            selected = self.seconds()
            objective = self._make_objective(self.layout.kernel, START_NOISE, data, None, data.take(rows).X)
            objective.factorise(self.layout.kernel, START_NOISE)
        self.budget.selection.measured(m, (selected - started) * n / len(sample))
        self.budget.sweep.measured(m, (self.seconds() - selected) * n / len(sample))

    def _explains_nothing(self, candidate: Candidate) -> bool:
        price = self.layout.kernel.size if self._price is None else self._price
        return explains_nothing(candidate.objective, self.noise_only, self.data.n, price)

    def _cold_seconds(self, m: int) -> float:
        """What an M may take from the first θ, if it takes as many evaluations as the one before."""
        if not self.history:
            return 0.0
        return self.budget.climb_seconds(m, self.history[-1].evaluations, self.history[-1].reselections)

    # ---- the record ------------------------------------------------------------------------------------------------

    def _offer(self, candidate: Candidate) -> None:
        if not math.isfinite(candidate.objective):
            return
        if self.procedure == "paper":
            better = candidate.objective >= self.best.objective
        else:
            better = candidate.standing >= self.best.standing
            if candidate.proved is not None and candidate.standing >= self._proved.standing:
                self._proved = replace(candidate, model=None)  # only one model is worth its memory
        if better:
            self.best = candidate
        if self._stage.best is None or candidate.objective >= self._stage.best.objective:
            self._stage.best = replace(candidate, model=None)

    def _unfinished(self) -> Candidate:
        """What stands for an M that was cut short."""
        if self.procedure == "paper" and self._stage.best is not None:
            return self._stage.best
        self._best_model()
        return self.best

    def _best_model(self) -> Model:
        """That of the best candidate, which may have promised more than its model proves."""
        best = self._with_model(self.best)
        if self.procedure == "robust" and self._proved.standing > best.standing:
            best = self._with_model(self._proved)
        self.best = best
        assert best.model is not None
        return best.model

    def _with_model(self, candidate: Candidate) -> Candidate:
        if candidate.model is not None:
            return candidate
        return self._candidate(self._objective(candidate.rows), candidate.rows, candidate.theta)

    def _record(self, result: Result) -> Model:
        candidate = self._with_model(result.candidate)
        model, tally = candidate.model, self._stage
        assert model is not None
        stage = Stage(
            n=self.data.n,
            scheduled_m=tally.scheduled_m,
            m=len(candidate.rows),
            objective=candidate.objective,
            lower_bound=model.bounds.lower,
            upper_bound=model.bounds.upper,
            kernel=model.posterior.kernel,
            noise_variance=model.posterior.noise_variance,
            seconds=self.budget.clock() - tally.started,
            elapsed=self._earlier + self.seconds(),
            evaluations=tally.evaluations,
            reselections=tally.reselections,
            restarts=tally.restarts,
            rescues=tally.rescues,
            jitter=model.jitter,
            repairs=Repairs.sum(tally.repairs),
            end=result.end,
            stopped=result.reason,
        )
        self.history.append(stage)
        logger.info(
            "M=%d: ELBO %.6g, upper bound %.6g, %.1f s, %d evaluations, %d rescues; %s",
            stage.m, stage.objective, stage.upper_bound, stage.seconds, stage.evaluations, stage.rescues, stage.stopped,
        )  # fmt: skip
        return model

    def _close(self, reason: str) -> None:
        self.history[-1] = replace(self.history[-1], ended=reason)
        logger.info("ended at M=%d after %.1f s: %s", self.history[-1].m, self.seconds(), reason)
