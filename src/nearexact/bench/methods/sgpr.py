"""Sparse GP regression with growing M: the baseline."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import torch

from nearexact.bench.protocol import Predict, Report, Task
from nearexact.gp import ExactPosterior, Progress, SparseObjective, SparsePosterior, Stage, Training
from nearexact.gp.schedule import SCHEDULE
from nearexact.gp.training import ObjectiveFactory
from nearexact.kernels import SquaredExponential
from nearexact.kernels.base import FloatArray


class SGPR:
    """The training procedure of `SGPRegressor`, but it goes on to the end of the schedule or of the budget."""

    name = "sgpr"
    objective: ClassVar[ObjectiveFactory] = SparseObjective

    def __init__(self, procedure: str = "robust", max_inducing: int = SCHEDULE[-1]) -> None:
        self.procedure, self.max_inducing = procedure, max_inducing

    def run(self, task: Task, report: Report) -> None:
        def after_step(progress: Progress) -> None:
            report(predictor(progress.posterior), elbo=progress.elbo, m=progress.m, flops=training.flops)

        def after_stage(stage: Stage, posterior: SparsePosterior) -> None:
            report(
                predictor(lambda: posterior),
                elbo=stage.elbo,
                upper_bound=stage.upper_bound,
                m=stage.m,
                milestone=True,
                flops=training.flops,
                scheduled_m=stage.scheduled,
                evaluations=stage.evaluations,
                reselections=stage.reselections,
                restarts=stage.restarts,
                rescues=stage.rescues,
                jitter=stage.jitter,
                noise_variance=stage.noise_variance,
                stopped=stage.stopped,
            )

        training = Training(
            SquaredExponential(),
            torch.tensor(task.X_train, device=task.device),
            torch.tensor(task.y_train, device=task.device),
            procedure=self.procedure,
            max_inducing=self.max_inducing,
            objective=self.objective,
            memory_limit=task.memory_limit,
            seed=task.seed,
            on_step=after_step,
            on_stage=after_stage,
        )
        training.run()


def predictor(posterior: Callable[[], SparsePosterior | ExactPosterior]) -> Predict:
    """Predictions of new observations by a posterior that is computed when it is first asked."""
    known: list[SparsePosterior | ExactPosterior] = []

    def predict(X: FloatArray) -> tuple[FloatArray, FloatArray]:
        if not known:
            known.append(posterior())
        mean, variance = known[0].predict(X)
        return mean.cpu().numpy(), variance.cpu().numpy() + known[0].noise_variance

    return predict
