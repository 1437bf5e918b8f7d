"""Sparse GP regression with growing M: the baseline."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor

from nearexact.bench.methods.kernel_option import DEFAULT, hyperparameters, kernel_name
from nearexact.bench.protocol import Predict, Report, Task
from nearexact.bench.running.clock import TrainingClock
from nearexact.evidence import Evidence
from nearexact.gp import (
    Progress,
    SparseObjective,
    SparsePosterior,
    Stage,
    Training,
    greedy_variance,
)
from nearexact.gp.iterative_posterior import Posterior
from nearexact.gp.schedule import SCHEDULE, checked_schedule
from nearexact.gp.stages import StageEnd
from nearexact.gp.training import EVIDENCE_SHARE, SEARCH_SHARE, ObjectiveFactory
from nearexact.kernels.base import Kernel
from nearexact.kernels.names import named_kernel
from nearexact.model_verdict import reason_to_end, verdict_so_far
from nearexact.typing import FloatArray


class SGPR:
    """The training procedure of `SGPRegressor`, but it goes on to the end of the schedule or of the budget.

    With `ends_near_exact` it ends where the estimator ends. `inducing` is a list of M in the place of the schedule;
    those beyond N are N.
    """

    name = "sgpr"
    objective: ClassVar[ObjectiveFactory] = SparseObjective

    def __init__(
        self,
        procedure: str = "robust",
        max_inducing: int = SCHEDULE[-1],
        bound: str = "elbo",
        kernel: str = DEFAULT,
        inducing: Sequence[int] | None = None,
        ends_near_exact: bool = False,
    ) -> None:
        self.procedure, self.max_inducing, self.bound = procedure, max_inducing, bound
        self.kernel = kernel_name(kernel)
        self.inducing = None if inducing is None else checked_schedule(inducing)
        self.ends_near_exact = ends_near_exact

    def run(self, task: Task, report: Report) -> None:
        clock = TrainingClock()

        def record(predict: Predict, **figures: Any) -> None:
            with clock.paused():
                report(predict, flops=training.flops + witness.flops, **figures)

        def after_step(progress: Progress) -> None:
            predict = Predictor(progress.posterior, self.kernel)
            record(predict, elbo=progress.objective, m=progress.m, **predict.hyperparameters())

        def after_stage(stage: Stage, posterior: SparsePosterior) -> str | None:
            predict, evidence = Predictor(lambda: posterior, self.kernel), witness.evidence()
            record(
                predict,
                m=stage.m,
                milestone=True,
                scheduled_m=stage.scheduled_m,
                reselections=stage.reselections,
                jitter=stage.jitter,
                **common_to_stages(stage),
                **figures_of(evidence),
                **predict.hyperparameters(),
            )
            if not self.ends_near_exact:
                return None
            return reason_to_end(training, verdict_so_far(training, evidence))

        n = len(task.y_train)
        training = Training(
            named_kernel(self.kernel),
            *training_data(task),
            procedure=self.procedure,
            max_inducing=self.max_inducing,
            inducing=None if self.inducing is None else sorted({min(m, n) for m in self.inducing}),
            objective=self.objective,
            bound=self.bound,
            search_limit=SEARCH_SHARE * task.budget_seconds,
            memory_limit=task.memory_limit,
            seed=task.seed,
            on_step=after_step,
            on_stage=after_stage,
        )
        witness = Witness(training, task.budget_seconds, clock)
        training.run()

    def at(self, task: Task, kernel: Kernel, noise_variance: float, m: int | None) -> SparsePosterior:
        """The approximation at given hyperparameters, with m points chosen for them."""
        X, y = training_data(task)
        rows = greedy_variance(kernel, X, min(m or len(X), len(X)), seed=task.seed)
        Z = X[torch.from_numpy(rows)]
        objective = self.objective(kernel, noise_variance, X, y, Z, memory_limit=task.memory_limit)
        return objective.factorise(kernel, noise_variance).posterior()


def training_data(task: Task) -> tuple[Tensor, Tensor]:
    """X [N, D] and y [N] on the task's device."""
    return torch.tensor(task.X_train, device=task.device), torch.tensor(task.y_train, device=task.device)


def common_to_stages(stage: Stage) -> dict[str, Any]:
    """What the trace gets of a stage, sparse or exact."""
    return {
        "elbo": stage.objective,
        "upper_bound": stage.upper_bound,
        "lower_bound": stage.lower_bound,
        "evaluations": stage.evaluations,
        "restarts": stage.restarts,
        "rescues": stage.rescues,
        "complete": stage.complete,
        "cut_short": stage.end in (StageEnd.TIME_LIMIT, StageEnd.INTERRUPTED),
        "stopped": stage.stopped,
    }


class Witness:
    """Says what speaks for a training's θ. Its looks are on the clock, and take a share of the budget at most."""

    def __init__(self, training: Training, budget_seconds: float, clock: TrainingClock) -> None:
        self._training, self._budget_seconds, self._clock = training, budget_seconds, clock
        self._seconds = EVIDENCE_SHARE * budget_seconds  # for all looks that are still to come
        self.flops = 0.0

    def evidence(self) -> Evidence | None:
        """For the best θ so far, if there was a search."""
        search, started = self._training.search, self._clock.elapsed()
        if search is None:
            return None
        flops = search.flops
        evidence = self._training.evidence_within(min(self._seconds, self._budget_seconds - started))
        self._seconds -= self._clock.elapsed() - started
        self.flops += search.flops - flops
        return evidence


def figures_of(evidence: Evidence | None) -> dict[str, Any]:
    """What the trace gets of what speaks for θ."""
    return {} if evidence is None else {f"evidence_{name}": value for name, value in asdict(evidence).items()}


class Predictor:
    """Predictions of new observations by a posterior that is computed when it is first needed."""

    def __init__(self, posterior: Callable[[], Posterior], kernel: str) -> None:
        self._compute, self._kernel = posterior, kernel

    @cached_property
    def posterior(self) -> Posterior:
        return self._compute()

    def __call__(self, X: FloatArray) -> tuple[FloatArray, FloatArray]:
        mean, variance = self.posterior.predict(X)
        return mean.cpu().numpy(), variance.cpu().numpy() + self.posterior.noise_variance

    def hyperparameters(self) -> dict[str, Any]:
        """For the trace."""
        return hyperparameters(self._kernel, lambda: (self.posterior.kernel, self.posterior.noise_variance))
