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

from nearexact.gp.exact import ExactObjective, ExactPosterior
from nearexact.gp.linalg import DEFAULT_NUMERICS, Numerics
from nearexact.gp.optimise import Step, minimise
from nearexact.gp.record import INTERRUPTED, TIME_LIMIT, Progress, Stage
from nearexact.gp.starts import START_NOISE, explains_nothing, noise_only_likelihood, with_less_influence
from nearexact.kernels.base import FloatArray, Kernel
from nearexact.limits import memory_budget

logger = logging.getLogger(__name__)

SQUARE_ARRAYS = 3  # [N, N] arrays that are alive at once, at most


class ExactTraining:
    """One training run, with the same face as `Training`; its stages are the starts, their M is N."""

    def __init__(
        self,
        kernel: Kernel,
        X: Any,
        y: Any,
        *,
        time_limit: float = math.inf,
        memory_limit: int | float | str | None = None,
        on_step: Callable[[Progress], None] | None = None,
        on_stage: Callable[[Stage], None] | None = None,
        clock: Callable[[], float] = time.perf_counter,
        numerics: Numerics = DEFAULT_NUMERICS,
    ) -> None:
        self.objective = ExactObjective(kernel, START_NOISE, X, y, numerics=numerics)
        self.layout, self.n = self.objective.layout, len(self.objective.y)
        needed, budget = 8 * SQUARE_ARRAYS * self.n**2, memory_budget(memory_limit, self.objective.X.device)
        if needed > budget:
            raise ValueError(
                f"exact GP regression with {self.n} rows needs {needed / 1e9:.3g} GB, but the memory limit is"
                f" {budget / 1e9:.3g} GB: allow more, or use SGPRegressor"
            )
        self.time_limit, self.clock, self.on_step, self.on_stage = time_limit, clock, on_step, on_stage
        self.history: list[Stage] = []
        self.best_theta, self.best_lml = self.objective.theta0, -math.inf
        self._model: ExactPosterior | None = None
        self._started = self._stage_started = clock()
        self._evaluations, self._last_seconds = 0, 0.0

    def run(self) -> None:
        """Maximise the log marginal likelihood."""
        noise_only = noise_only_likelihood(self.objective.y)
        for number, theta in enumerate(
            (self.objective.theta0, with_less_influence(self.layout, self.objective.theta0))
        ):
            self._stage_started, self._evaluations = self.clock(), 0
            left = self.time_limit - (self.clock() - self._started)
            optimum = minimise(self._evaluate, theta, time_limit=left - self._last_seconds, callback=self._after_step)
            self._record(optimum.reason, optimum.restarts, rescues=number)
            if optimum.reason == TIME_LIMIT or not explains_nothing(self.best_lml, noise_only, self.n):
                break
        self.history[-1] = replace(self.history[-1], ended=self.history[-1].stopped)

    def interrupted(self) -> None:
        """Close the record after an exception in `run`."""
        self._record(INTERRUPTED, 0, rescues=len(self.history))
        self.history[-1] = replace(self.history[-1], ended=INTERRUPTED)

    def posterior(self) -> ExactPosterior:
        """The best model so far."""
        if self._model is None:
            self._model = self.objective.factorise(*self.layout.unpack(self.best_theta))
        return self._model

    def bounds(self) -> tuple[float, float]:
        """The log marginal likelihood of the best model so far, twice."""
        return self.posterior().lml, self.posterior().lml

    def _evaluate(self, theta: FloatArray) -> tuple[float, FloatArray]:
        begun = self.clock()
        value, gradient = self.objective(theta)
        self._last_seconds = self.clock() - begun
        self._evaluations += 1
        if -value > self.best_lml:
            self.best_theta, self.best_lml, self._model = np.array(theta), -value, None
        return value, gradient

    def _after_step(self, step: Step) -> None:
        if self.on_step is not None:
            posterior = partial(self.objective.factorise, *self.layout.unpack(step.theta))
            self.on_step(Progress(self.n, -step.value, self.clock() - self._started, posterior))

    def _record(self, stopped: str, restarts: int, rescues: int) -> None:
        model = self.posterior()
        now = self.clock()
        self.history.append(
            Stage(
                n=self.n,
                scheduled=self.n,
                m=self.n,
                elbo=model.lml,
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
                stopped=stopped,
            )
        )
        logger.info("exact GP: log marginal likelihood %.6g after %.1f s, %s", model.lml, now - self._started, stopped)
        if self.on_stage is not None:
            self.on_stage(self.history[-1])
