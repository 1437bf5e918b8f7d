"""Training an exact GP: L-BFGS from the usual start, and from a smoother one where that ends in noise."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from nearexact.gp.bounds import LikelihoodBounds
from nearexact.gp.exact import ExactObjective
from nearexact.gp.memory import chunk_rows
from nearexact.gp.optimise import OptimiserEnd, Step, minimise
from nearexact.gp.posterior import ExactPosterior
from nearexact.gp.safety import DEFAULT_NUMERICS, NumericalError, Numerics
from nearexact.gp.stages import Progress, Stage, StageEnd, TrainingEnd
from nearexact.gp.starts import START_NOISE, with_less_influence
from nearexact.kernels.base import Kernel
from nearexact.limits import memory_budget
from nearexact.noise_only import explains_nothing, noise_only_likelihood
from nearexact.typing import FloatArray

logger = logging.getLogger(__name__)

SQUARE_ARRAYS = 3  # [N, N] arrays that are alive at once, at most: K, its factor, and a copy of that
EVALUATION_FACTORISATIONS = 4.0  # an evaluation with its gradient takes about so many factorisations
CHUNK_ARRAYS = 6  # [rows, N] arrays of a gradient's chunk, besides the kernel's own
ENDS = {
    OptimiserEnd.CONVERGED: TrainingEnd.OPTIMUM_FOUND,
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
    """One training run, with the same interface as `Training`; its stages are the starts, their M is N."""

    def __init__(
        self,
        kernel: Kernel,
        X: Any,
        y: Any,
        *,
        time_limit: float = math.inf,
        memory_limit: int | float | str | None = None,
        on_step: Callable[[Progress], None] | None = None,
        on_stage: Callable[[Stage, ExactPosterior], str | None] | None = None,
        clock: Callable[[], float] = time.perf_counter,
        numerics: Numerics = DEFAULT_NUMERICS,
    ) -> None:
        self.objective = ExactObjective(kernel, START_NOISE, X, y, numerics=numerics)
        self.layout, self.n = self.objective.layout, len(self.objective.y)
        needed = exact_memory(self.layout.kernel, self.n)
        budget = memory_budget(memory_limit, self.objective.X.device)
        if needed > budget:
            raise ValueError(
                f"exact GP regression with {self.n} rows needs {needed / 1e9:.3g} GB, but the memory limit is"
                f" {budget / 1e9:.3g} GB: allow more, or use a sparse GP"
            )
        self.time_limit, self.clock, self.on_step, self.on_stage = time_limit, clock, on_step, on_stage
        self.history: list[Stage] = []
        self.flops = 0.0
        self.best_theta, self.best_lml = self.objective.theta0, -math.inf
        self._model: ExactPosterior | None = None
        self._started = self._stage_started = clock()
        self._evaluations, self._last_seconds, self._recorded = 0, 0.0, False

    def run(self) -> None:
        """Maximise the log marginal likelihood."""
        noise_only = noise_only_likelihood(self.objective.y)
        theta0 = self.objective.theta0
        smooth = with_less_influence(self.layout, theta0)
        self._begin()
        started = self.clock()
        self.best_lml = self.posterior().lml  # something to return if time is up already
        self._last_seconds = EVALUATION_FACTORISATIONS * (self.clock() - started)
        for number, theta in enumerate([theta0] if np.array_equal(smooth, theta0) else [theta0, smooth]):
            if number:
                self._begin()
                self._model = None  # its memory is needed
            end, detail, restarts = TrainingEnd.TIME_LIMIT, "", 0
            left = self.time_limit - (self.clock() - self._started)
            if left > self._last_seconds:
                try:
                    optimum = minimise(
                        self._evaluate, theta, time_limit=left, callback=self._after_step, clock=self.clock
                    )
                    end, restarts = ENDS[optimum.reason], optimum.restarts
                except NumericalError as error:
                    logger.info("exact GP: a start failed: %s", error)
                    end, detail = TrainingEnd.FAILED, f": {error}"
            self._record(end, detail, restarts, rescues=number)
            wanted_end = None if self.on_stage is None else self.on_stage(self.history[-1], self.posterior())
            done = end is TrainingEnd.TIME_LIMIT or not explains_nothing(self.best_lml, noise_only, self.n)
            if wanted_end is not None or done:
                break
        self._close(wanted_end or end)

    def interrupted(self) -> None:
        """Close the record after an exception in `run`."""
        if not self._recorded:
            self._record(TrainingEnd.INTERRUPTED, "", 0, rescues=len(self.history))
        if not self.history[-1].ended:
            self._close(TrainingEnd.INTERRUPTED)

    def _begin(self) -> None:
        self._stage_started, self._evaluations, self._recorded = self.clock(), 0, False

    def _close(self, reason: str) -> None:
        self.history[-1] = replace(self.history[-1], ended=reason)

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

    def _evaluate(self, theta: FloatArray) -> tuple[float, FloatArray]:
        started = self.clock()
        value, gradient = self.objective(theta)
        self._last_seconds = self.clock() - started
        self._evaluations += 1
        self.flops += 1.0 * self.n**3  # Cholesky factor and inverse
        if -value > self.best_lml:
            self.best_theta, self.best_lml, self._model = np.array(theta), -value, None
        return value, gradient

    def _after_step(self, step: Step) -> None:
        if self.on_step is not None:
            posterior = partial(self.objective.factorise, *self.layout.unpack(step.theta))
            self.on_step(Progress(self.n, -step.value, self.clock() - self._started, posterior))

    def _record(self, end: TrainingEnd, detail: str, restarts: int, rescues: int) -> None:
        model = self.posterior()
        now = self.clock()
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
                seconds=now - self._stage_started,
                elapsed=now - self._started,
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
        logger.info("exact GP: log marginal likelihood %.6g after %.1f s, %s", model.lml, now - self._started, end)
        self._recorded = True


def exact_memory(kernel: Kernel, n: int) -> int:
    """Bytes that an evaluation allocates besides the data."""
    chunk = min(n, chunk_rows(n)) * n * (CHUNK_ARRAYS + kernel.temporaries)
    return 8 * (SQUARE_ARRAYS * n * n + chunk)
