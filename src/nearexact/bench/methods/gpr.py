"""Exact GP regression: what the approximations are measured against, where it can be computed."""

from __future__ import annotations

import torch

from nearexact.bench.methods.kernel_option import DEFAULT, kernel_name
from nearexact.bench.methods.sgpr import Predictor, common_to_stages, figures_of
from nearexact.bench.protocol import Report, Task
from nearexact.gp import ExactPosterior, ExactTraining, Progress, Stage
from nearexact.gp.exact_training import SEARCH_SHARE, exact_memory
from nearexact.kernels.names import named_kernel
from nearexact.limits import memory_budget


class GPR:
    """The training procedure of `GPRegressor`. A data set that does not fit into memory is refused at once."""

    name = "gpr"

    def __init__(self, kernel: str = DEFAULT) -> None:
        self.kernel = kernel_name(kernel)

    def run(self, task: Task, report: Report) -> None:
        def after_step(progress: Progress) -> None:
            lml, predict = progress.objective, Predictor(progress.posterior, self.kernel)
            report(predict, elbo=lml, upper_bound=lml, flops=training.flops, **predict.hyperparameters())

        def after_stage(stage: Stage, posterior: ExactPosterior) -> None:
            predict = Predictor(lambda: posterior, self.kernel)
            shared = {**common_to_stages(stage), **figures_of(training.evidence()), **predict.hyperparameters()}
            report(predict, milestone=True, flops=training.flops, **shared)

        X, y = (torch.tensor(values, device=task.device) for values in (task.X_train, task.y_train))
        kernel = named_kernel(self.kernel)
        needed, free = exact_memory(kernel, len(y)), memory_budget(task.memory_limit, X.device)
        if needed > free:
            raise MemoryError(f"{len(y)} rows need {needed / 1e9:.3g} GB, there are {free / 1e9:.3g} GB")
        training = ExactTraining(
            kernel,
            X,
            y,
            search_limit=SEARCH_SHARE * task.budget_seconds,
            memory_limit=task.memory_limit,
            seed=task.seed,
            on_step=after_step,
            on_stage=after_stage,
        )
        training.run()
