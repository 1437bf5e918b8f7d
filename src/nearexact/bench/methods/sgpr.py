"""Sparse GP regression with growing M: the baseline."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any, ClassVar

import torch

from nearexact.bench.protocol import Report, Task
from nearexact.gp import (
    ExactPosterior,
    Progress,
    SparseObjective,
    SparsePosterior,
    Stage,
    Training,
    greedy_variance,
)
from nearexact.gp.iterative_posterior import IterativePosterior
from nearexact.gp.schedule import SCHEDULE
from nearexact.gp.stages import StageEnd
from nearexact.gp.training import SEARCH_SHARE, ObjectiveFactory
from nearexact.kernels import SquaredExponential
from nearexact.kernels.base import Kernel
from nearexact.typing import FloatArray


class SGPR:
    """The training procedure of `SGPRegressor`, but it goes on to the end of the schedule or of the budget."""

    name = "sgpr"
    objective: ClassVar[ObjectiveFactory] = SparseObjective

    def __init__(self, procedure: str = "robust", max_inducing: int = SCHEDULE[-1], bound: str = "elbo") -> None:
        self.procedure, self.max_inducing, self.bound = procedure, max_inducing, bound

    def run(self, task: Task, report: Report) -> None:
        def after_step(progress: Progress) -> None:
            predict = Predictor(progress.posterior)
            report(predict, elbo=progress.objective, m=progress.m, flops=training.flops, **predict.hyperparameters())

        def after_stage(stage: Stage, posterior: SparsePosterior) -> None:
            predict = Predictor(lambda: posterior)
            report(
                predict,
                m=stage.m,
                milestone=True,
                flops=training.flops,
                scheduled_m=stage.scheduled_m,
                reselections=stage.reselections,
                jitter=stage.jitter,
                **common_to_stages(stage),
                **predict.hyperparameters(),
            )

        training = Training(
            SquaredExponential(),
            torch.tensor(task.X_train, device=task.device),
            torch.tensor(task.y_train, device=task.device),
            procedure=self.procedure,
            max_inducing=self.max_inducing,
            objective=self.objective,
            bound=self.bound,
            search_limit=SEARCH_SHARE * task.budget_seconds,
            memory_limit=task.memory_limit,
            seed=task.seed,
            on_step=after_step,
            on_stage=after_stage,
        )
        training.run()

    def at(self, task: Task, kernel: Kernel, noise_variance: float, m: int | None) -> SparsePosterior:
        """The approximation at given hyperparameters, with m points chosen for them."""
        X = torch.tensor(task.X_train, device=task.device)
        rows = greedy_variance(kernel, X, min(m or len(X), len(X)), seed=task.seed)
        Z = X[torch.from_numpy(rows)]
        objective = self.objective(kernel, noise_variance, X, task.y_train, Z, memory_limit=task.memory_limit)
        return objective.factorise(kernel, noise_variance).posterior()


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


class Predictor:
    """Predictions of new observations by a posterior that is computed when it is first needed."""

    def __init__(self, posterior: Callable[[], SparsePosterior | ExactPosterior | IterativePosterior]) -> None:
        self._compute = posterior

    @cached_property
    def posterior(self) -> SparsePosterior | ExactPosterior | IterativePosterior:
        return self._compute()

    def __call__(self, X: FloatArray) -> tuple[FloatArray, FloatArray]:
        mean, variance = self.posterior.predict(X)
        return mean.cpu().numpy(), variance.cpu().numpy() + self.posterior.noise_variance

    def hyperparameters(self) -> dict[str, Any]:
        """For the trace, where comparisons with the exact GP look for them; computed if the point is recorded."""
        return {
            "lengthscales": lambda: self.posterior.kernel.parameters["lengthscales"].tolist(),
            "variance": lambda: float(self.posterior.kernel.parameters["variance"]),
            "noise_variance": lambda: self.posterior.noise_variance,
        }
