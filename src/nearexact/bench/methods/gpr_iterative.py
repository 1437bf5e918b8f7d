"""Exact GP regression by conjugate gradients, with a sparse GP as preconditioner."""

from __future__ import annotations

from typing import Any

from nearexact.bench.methods.kernel_option import DEFAULT, kernel_name
from nearexact.bench.methods.sgpr import Predictor, common_to_stages, figures_of, training_data
from nearexact.bench.protocol import Report, Task
from nearexact.bench.running.clock import TrainingClock
from nearexact.gp import ExactPosterior, Progress, SparsePosterior, Stage
from nearexact.gp.iterative_posterior import IterativePosterior
from nearexact.gp.iterative_training import IterativeTraining
from nearexact.kernels.names import named_kernel
from nearexact.persistence import method_of

# The end of training may take a little longer than predicted, and counts only within the budget.
SHARE_OF_BUDGET = 0.98


class IterativeGPR:
    """The training procedure of `GPRegressor(method="iterative")`. What it reports as `elbo` is an estimate.

    `method_` in its trace says which kind of model it holds, as the estimator's attribute does.
    """

    name = "gpr-iterative"

    def __init__(self, kernel: str = DEFAULT) -> None:
        self.kernel = kernel_name(kernel)

    def run(self, task: Task, report: Report) -> None:
        self.train(task, report)

    def train(self, task: Task, report: Report, *, max_inducing: int | None = None, factorises: bool = False) -> None:
        """As `run` does, or as `method="auto"` does it, which may end with a Cholesky factor."""
        clock = TrainingClock()

        def reported(predict: Predictor, **values: Any) -> None:
            with clock.paused():
                estimate = training.estimate()
                values["standard_error"] = None if estimate is None else estimate.standard_error
                values.setdefault("lower_bound", training.likelihood_bounds().lower)
                method_ = method_of(training.posterior())
                report(predict, flops=training.flops, method_=method_, **values, **predict.hyperparameters())

        def after_step(progress: Progress) -> None:
            reported(Predictor(progress.posterior, self.kernel), elbo=progress.objective, preconditioner_m=progress.m)

        def after_stage(stage: Stage, posterior: SparsePosterior | IterativePosterior | ExactPosterior) -> None:
            predict = Predictor(lambda: posterior, self.kernel)
            shared = {**common_to_stages(stage), **figures_of(training.evidence())}
            if isinstance(posterior, IterativePosterior):
                shared["mean_error"] = posterior.mean_error
            reported(predict, milestone=True, preconditioner_m=stage.m, **shared)

        training = IterativeTraining(
            named_kernel(self.kernel),
            *training_data(task),
            max_inducing=max_inducing,
            factorises=factorises,
            time_limit=SHARE_OF_BUDGET * task.budget_seconds,
            memory_limit=task.memory_limit,
            seed=task.seed,
            on_step=after_step,
            on_stage=after_stage,
            clock=clock.elapsed,
        )
        training.run()
