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
import torch

from nearexact.evidence import Evidence
from nearexact.gp.bounds import LikelihoodBounds
from nearexact.gp.budget import TimeIsUpError, Timer, held_memory
from nearexact.gp.exact import ExactObjective, exact_memory, factorisation_seconds
from nearexact.gp.factorisation import Factorisation
from nearexact.gp.flops import cholesky_flops, feature_count, kernel_flops, selection_flops, sparse_flops
from nearexact.gp.inducing import select
from nearexact.gp.iterative import Estimate, IterativeObjective
from nearexact.gp.iterative_cost import EvaluationCost, possible_sizes, variance_seconds
from nearexact.gp.iterative_model import HeldModel
from nearexact.gp.iterative_posterior import IterativePosterior, ModelSolver
from nearexact.gp.nearest_density import best_noise, best_with_all_rows
from nearexact.gp.neighbours import CALIBRATION_ROWS
from nearexact.gp.optimise import LBFGSSettings, OptimiserEnd, Step, minimise
from nearexact.gp.parameters import LogCoordinates, ParameterLayout
from nearexact.gp.posterior import ExactPosterior, SparsePosterior
from nearexact.gp.row_noise import RowNoise, check_noise
from nearexact.gp.safety import DEFAULT_NUMERICS, NumericalError, Numerics, Repairs
from nearexact.gp.search import Round, Search
from nearexact.gp.sparse import SparseObjective
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
PATIENCE, NOISE_SHARE = 4, 0.5  # so many evaluations that gain less than this share of the standard error end a climb
SETTLED = 1e-4  # nats per row that a whole climb may gain, if the standard error is smaller, for θ to be found
SOLVING_SHARE = 0.5  # of what is left, for the weights, where there is time for no more than one solution
SELECTING_SHARE = 0.1  # of what is left, for selecting points where there is time for no more than one solution
CHECKING_PASSES = 1.5  # over K: one that may take longer than predicted
FEWEST_EVALUATIONS = 2.5  # that there must be time for: with fewer θ stays where it is
FINISHING_SHARE = 0.25  # of the time limit, at most, is kept for weights to rounding and for variances
FACTORISATIONS = 2.5  # that there must be time for, to end with one
FINISHING_POINTS = 2  # times those of an evaluation, at most: so many columns are worth a better preconditioner


class _OnlyNoiseLeftError(Exception):
    """The optimiser gains less than what the estimate is uncertain by."""


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
        self.layout, self.numerics = ParameterLayout(kernel, self.X.shape[1], numerics), numerics
        self.n, self.memory = len(self.y), memory_budget(memory_limit, self.X.device)
        n_features = self.layout.kernel.features(self.X[:1], self.X[0]).shape[1]
        self.sizes = possible_sizes(self.layout.kernel, self.n, n_features, self.memory)
        if not self.sizes:
            raise ValueError(
                f"conjugate gradients with {self.n} rows need more memory than the limit of {self.memory / 1e6:.3g} MB:"
                " allow more, or use a sparse GP"
            )
        if max_inducing is not None:
            self.sizes = [m for m in self.sizes if m <= max_inducing] or [min(max_inducing, self.n)]
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
            on_round=on_round,
            clock=clock,
            numerics=numerics,
        )
        self._search_limit = search_limit
        self._factorises = factorises and exact_memory(self.layout.kernel, self.n) <= self.memory
        self._factorisation_seconds = math.inf
        self._random = np.random.default_rng(seed)
        self._best: HeldModel | None = None
        self._objective: IterativeObjective | None = None
        self._cost: EvaluationCost | None = None
        self._n_features = feature_count(self.layout.kernel, self.X)
        self._flops, self._started, self._evaluations, self._restarts = 0.0, 0.0, 0, 0
        self._tried = 0  # points of the present climb
        self._tried_to_solve = False  # without an evaluation
        self._gain = math.nan  # of the last climb in nats, once it has come to its end
        self._recorded = True  # whether the present climb is in the history

    @property
    def flops(self) -> float:
        """Floating point operations so far."""
        return self._flops + self.search.flops + (0.0 if self._objective is None else self._objective.flops)

    def run(self) -> None:
        """Maximise the exact log marginal likelihood."""
        self._begin()
        self._predict_costs()
        if self.timer.left() > 0.0:
            self.search.run()
        theta = best_with_all_rows(self.search, self.X, self.y, self.row_noise, self.timer)
        self._best = self._sparse(theta, min(FIRST_POINTS, self.sizes[-1]))
        if self._climbing_seconds(0) > self.timer.left():
            self._finish()  # first the exact GP here; what that takes tells whether there is time for more after all
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
                self.sizes = [m for m in self.sizes if m > self._tried]  # with more points it is easier
                if self.sizes:
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
        self._finish()
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
        followed = self.search.is_complete and not self.search.has_rival()
        settled = self._is_settled and len(self.history) > 1 and followed
        gain = self._gain / self.n if settled else None
        return Evidence(self.n, starts, agreeing, gain, best.value)

    # ---- climbs ----------------------------------------------------------------------------------------------------

    @property
    def _is_settled(self) -> bool:
        estimate = self._held().estimate
        return estimate is not None and self._gain <= max(estimate.standard_error, SETTLED * self.n)

    def _predict_costs(self) -> None:
        """What evaluations and factors will take; the search has more time where that is too long to improve θ."""
        kernel = self.layout.kernel
        self._cost = EvaluationCost.tried(kernel, self.X, self.memory, self.timer.clock)
        if self._factorises:
            self._factorisation_seconds = factorisation_seconds(kernel, self.X, self.y, self.timer.clock)
            self._factorises = FACTORISATIONS * self._factorisation_seconds <= self.timer.time_limit
        if self._search_limit is None:
            left = (1.0 - SEARCH_SHARE) * self.timer.time_limit
            share = SEARCH_SHARE if self._climbing_seconds(0) <= left else LONGER_SEARCH_SHARE
            self.search.timer.time_limit = share * self.timer.time_limit

    def _climbing_seconds(self, number: int) -> float:
        """What there must be time for before a climb begins."""
        assert self._cost is not None
        evaluations = 1.0 if number else FEWEST_EVALUATIONS
        return evaluations * self._cost.predicted(self._cost.cheapest(self.sizes)) + self._finishing_seconds()

    def _climb(self, number: int) -> OptimiserEnd:
        """L-BFGS with points selected for the present θ, and new probes."""
        assert self._cost is not None
        theta, self._gain = self._held().theta, math.nan
        m = self._tried = self._cost.cheapest(self.sizes)
        self.timer.require(self._climbing_seconds(number))
        self._release()
        rows = self._select(theta, m)
        self._objective = objective = self._objective_with(theta, self.X[rows])
        best: list[float] = []  # so far, after each evaluation of this climb
        curvature = self.search.curvature(theta, self.n)

        def evaluate(theta: FloatArray) -> tuple[float, FloatArray]:
            if best:  # an evaluation that would not end in time takes from what is kept for the end
                self.timer.require(objective.timing.seconds + self._finishing_seconds())
            value, gradient, error = self._evaluate(objective, theta, is_first=not best)
            best.append(max([-value, *best[-1:]]))
            if len(best) > PATIENCE and best[-1] - best[-1 - PATIENCE] < NOISE_SHARE * error:
                raise _OnlyNoiseLeftError
            return value, gradient

        def after_step(step: Step) -> None:
            if self.on_step is not None:
                self.on_step(Progress(len(rows), -step.value, self.timer.seconds(), self.posterior))

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
        if reason not in (OptimiserEnd.MAX_ITERATIONS, OptimiserEnd.TIME_LIMIT, OptimiserEnd.FAILING):
            self._gain = best[-1] - best[0]
        return reason

    def _evaluate(
        self, objective: IterativeObjective, theta: FloatArray, is_first: bool
    ) -> tuple[float, FloatArray, float]:
        """The negative estimate, its gradient and its standard error. The model is kept if it is the climb's best."""
        estimate, gradients, by_noise = objective.evaluate(*self.layout.unpack(theta))
        self._evaluations += 1
        m, timing = len(objective.sparse.Z), objective.timing
        error = estimate.standard_error / self.n
        assert self._cost is not None
        self._cost = self._cost.measured(m, timing.seconds, estimate.iterations, error)
        logger.info(
            "estimate %.8g ± %.2g, %d iterations with M=%d, %.1f s", estimate.value, estimate.standard_error,
            estimate.iterations, m, timing.seconds,
        )  # fmt: skip
        if is_first or estimate.value > self._held().value:  # estimates with other probes cannot be compared
            self._best = HeldModel.estimated(np.array(theta), estimate, self.X, self.y, self.row_noise)
        return -estimate.value, -self.layout.gradient(theta, gradients, by_noise), estimate.standard_error

    def _finish(self) -> None:
        """The weights of the best model to rounding, and variances: in what is left of the time limit."""
        best = self._held()
        if best.is_finished:
            return
        kernel, noise_variance = self.layout.unpack(best.theta)
        if self._factorises and self.timer.left() > self._factorisation_seconds:
            self._release()
            try:
                exact = ExactObjective(
                    kernel, noise_variance, self.X, self.y, row_noise=self.row_noise, numerics=self.numerics
                )
                self._best = best.factorised(exact.factorise(kernel, noise_variance))
                self._flops += cholesky_flops(self.n) + kernel_flops(self.n, self.n, self._n_features)
                return
            except NumericalError as error:
                logger.info("no Cholesky factor at the end: %s", error)
        try:
            if best.estimate is None:
                if not self._tried_to_solve:
                    self._solve_once(best)
            else:
                m, rows = self._finishing_plan(self.timer.left())
                self._best = best.finished(self._solver(best, m), int(self._random.integers(2**31)), rows)
        except TimeIsUpError:
            logger.info("time was up before the model was finished")
        except NumericalError as error:
            logger.warning("the model could not be finished: %s", error)
        finally:
            self._release()

    def _solve_once(self, best: HeldModel) -> None:
        """The exact GP at the θ of the search, where there was no time for an evaluation: the mean, then variances."""
        assert self._cost is not None
        self._tried_to_solve = True
        m = self._cost.most_points(self.sizes, SELECTING_SHARE * self.timer.left())
        solver, seed = self._solver(best, m), int(self._random.integers(2**31))
        held = self._best = HeldModel.sparse(best.theta, solver.factorisation)
        theta = self._with_enough_noise(best.theta, solver.factorisation)
        if theta is not best.theta:
            solver = self._solver(replace(held, theta=theta), held.points)
            held = self._best = HeldModel.sparse(theta, solver.factorisation)
        computing = self._cost.computing(CHECKING_PASSES)  # K again, if time is up before the weights are right
        solver.check = lambda: self.timer.require(computing)
        started = self.timer.seconds()
        self._best = held.finished(solver, seed, 0)
        self._cost = self._cost.after_weights(self._best.points, self._best.iterations)
        seconds = self.timer.seconds() - started
        rows = next((rows for rows in CALIBRATION_ROWS if variance_seconds(seconds, rows) <= self.timer.left()), 0)
        if rows:
            self._best = self._best.finished(solver, seed, rows)

    def _with_enough_noise(self, theta: FloatArray, f: Factorisation) -> FloatArray:
        """θ, or one with more noise, at which the weights can be found in time."""
        assert self._cost is not None
        assert f.residuals is not None
        share = self._cost.least_noise(SOLVING_SHARE * self.timer.left())
        least, (kernel, noise) = share * float(f.residuals.nanmean()), self.layout.unpack(theta)
        if noise >= least:
            return theta
        noise, _ = best_noise(kernel, least, self.X, self.y, self.row_noise)
        logger.info("with noise of %.2g there is no time for the exact GP: with %.2g", f.noise_variance, noise)
        more = self.layout.pack(kernel, noise)
        return more if self.layout.bounds is None else np.clip(more, *self.layout.bounds)

    def _solver(self, best: HeldModel, m: int) -> ModelSolver:
        """For a model, with its own points or with more of them."""
        if m > best.points:
            self._release()
            self._objective = self._objective_with(best.theta, self.X[self._select(best.theta, m)])
        elif self._objective is None:
            self._objective = self._objective_with(best.theta, best.posterior.inducing_points)
        objective = self._objective
        theta = self.layout.unpack(best.theta)
        return ModelSolver(objective.sparse, *theta, objective.product, self.timer.check, in_full=objective.in_full)

    def _finishing_plan(self, seconds: float) -> tuple[int, int]:
        """Points of the preconditioner, and training rows to learn variances from: as many as there is time for."""
        assert self._cost is not None
        cost, held = self._cost, self._cost.iterations_m
        sizes = [m for m in self.sizes if held <= m <= FINISHING_POINTS * held] or [held]
        m, rows = held, 0
        for rows in (*CALIBRATION_ROWS, 0):
            m = min(sizes, key=lambda m: cost.finishing(m, rows))
            if cost.finishing(m, rows) <= seconds:
                break
        return m, rows

    def _finishing_seconds(self) -> float:
        """What `_finish` may take."""
        if self._factorises:
            return 1.5 * self._factorisation_seconds
        assert self._cost is not None
        share = FINISHING_SHARE * self.timer.time_limit
        return min(self._cost.finishing(*self._finishing_plan(share)), share)

    def _keep_time_to_finish(self) -> None:
        self.timer.require(self._finishing_seconds())

    def _select(self, theta: FloatArray, m: int) -> torch.Tensor:
        """Rows that are to be inducing points."""
        kernel, seed = self.layout.unpack(theta)[0], int(self._random.integers(2**31))
        rows = select(kernel, self.X, m, seed=seed, between_blocks=self.timer.check, numerics=self.numerics).indices
        self._flops += selection_flops(self.n, len(rows), self._n_features)
        return torch.from_numpy(rows).to(self.X.device)

    def _sparse(self, theta: FloatArray, m: int) -> HeldModel:
        """A sparse GP with any m points; at the usual θ, if this one cannot be computed."""
        Z = self.X[torch.from_numpy(self._random.permutation(self.n)[:m]).to(self.X.device)]
        kernel, noise_variance = self.layout.unpack(theta)
        objective = SparseObjective(
            kernel,
            noise_variance,
            self.X,
            self.y,
            Z,
            row_noise=self.row_noise,
            memory_limit=self.memory,
            numerics=self.numerics,
        )
        self._flops += sparse_flops(self.n, len(Z), self._n_features)
        try:
            return HeldModel.sparse(theta, objective.factorise(kernel, noise_variance, residuals=True))
        except NumericalError as error:
            logger.warning("the θ of the search could not be computed: %s", error)
        usual = self.search.theta0
        return HeldModel.sparse(usual, objective.factorise(*self.layout.unpack(usual), residuals=True))

    def _objective_with(self, theta: FloatArray, Z: torch.Tensor) -> IterativeObjective:
        kernel, noise_variance = self.layout.unpack(theta)
        return IterativeObjective(
            kernel,
            noise_variance,
            self.X,
            self.y,
            Z,
            row_noise=self.row_noise,
            seed=int(self._random.integers(2**31)),
            memory_limit=self.memory - held_memory(len(Z)),
            check=self._keep_time_to_finish,
            clock=self.timer.clock,
            numerics=self.numerics,
        )

    def _release(self) -> None:
        if self._objective is not None:
            self._flops += self._objective.flops
            self._objective = None

    # ---- the record ------------------------------------------------------------------------------------------------

    def _held(self) -> HeldModel:
        """The best model so far; if there is none, a few points with the best θ of the search."""
        if self._best is None:
            self._best = self._sparse(self.search.candidates[0].theta, self.sizes[0])
        return self._best

    def _begin(self) -> None:
        self._started, self._evaluations, self._restarts, self._recorded = self.timer.seconds(), 0, 0, False

    def _record(self, end: StageEnd, words: str) -> str | None:
        best, now = self._held(), self.timer.seconds()
        repairs = Repairs() if self._objective is None else replace(self._objective.repairs)
        stage = best.stage(
            n=self.n,
            seconds=now - self._started,
            elapsed=now,
            evaluations=self._evaluations,
            restarts=self._restarts,
            repairs=repairs,
            end=end,
            stopped=words,
        )
        self.history.append(stage)
        self._recorded = True
        logger.info("climb %d: %.8g after %.1f s, %s", len(self.history), best.value, now, words)
        return None if self.on_stage is None else self.on_stage(stage, best.posterior)

    def _close(self, reason: str) -> None:
        self.history[-1] = replace(self.history[-1], ended=reason)
