"""Exact GP regression: what the approximations are measured against, where it can be computed."""

from __future__ import annotations

from typing import Any

import torch

from nearexact.bench.methods.kernel_option import DEFAULT, kernel_name
from nearexact.bench.methods.sgpr import Predictor, common_to_stages, figures_of
from nearexact.bench.protocol import BudgetExhausted, Report, Task
from nearexact.bench.running.clock import TrainingClock
from nearexact.gp import ExactPosterior, ExactTraining, Progress, Stage
from nearexact.gp.exact import exact_memory
from nearexact.gp.stages import StageEnd
from nearexact.kernels.names import named_kernel
from nearexact.limits import memory_budget


class GPR:
    """The training procedure of `GPRegressor`. A data set that does not fit into memory is refused at once."""

    name = "gpr"

    def __init__(self, kernel: str = DEFAULT) -> None:
        self.kernel = kernel_name(kernel)

    def run(self, task: Task, report: Report) -> None:
        clock = TrainingClock()

        def record(predict: Predictor, **figures: Any) -> None:
            with clock.paused():
                report(predict, flops=training.flops, **figures, **predict.hyperparameters())

        def after_step(progress: Progress) -> None:
            lml = progress.objective
            record(Predictor(progress.posterior, self.kernel), elbo=lml, upper_bound=lml)

        def after_stage(stage: Stage, posterior: ExactPosterior) -> None:
            shared = {**common_to_stages(stage), **figures_of(training.evidence())}
            record(Predictor(lambda: posterior, self.kernel), milestone=True, **shared)

        X, y = (torch.tensor(values, device=task.device) for values in (task.X_train, task.y_train))
        kernel = named_kernel(self.kernel)
        needed, free = exact_memory(kernel, len(y)), memory_budget(task.memory_limit, X.device)
        if needed > free:
            raise MemoryError(f"{len(y)} rows need {needed / 1e9:.3g} GB, there are {free / 1e9:.3g} GB")
        training = ExactTraining(
            kernel,
            X,
            y,
            time_limit=task.budget_seconds,  # no evaluation starts that would end after it
            memory_limit=task.memory_limit,
            seed=task.seed,
            on_step=after_step,
            on_stage=after_stage,
            clock=clock.elapsed,
        )
        training.run()
        if training.history[-1].end is StageEnd.TIME_LIMIT:
            raise BudgetExhausted
