"""What `GPRegressor(method="auto")` does: the exact GP where the budget allows it, else the sparse one.

By conjugate gradients the likelihood of the exact GP is only estimated: the trace then has the proved lower bound as
`elbo`, and the estimate beside it.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from nearexact.bench.methods.gpr import GPR
from nearexact.bench.methods.gpr_iterative import IterativeGPR
from nearexact.bench.methods.kernel_option import DEFAULT, kernel_name
from nearexact.bench.methods.sgpr import SGPR
from nearexact.bench.protocol import Report, Task
from nearexact.gp import ExactObjective, ExactPosterior, SparsePosterior
from nearexact.gp.affordable import best_method
from nearexact.gp.schedule import SCHEDULE
from nearexact.kernels.base import Kernel, as_kernel
from nearexact.kernels.names import named_kernel


class NearExact:
    """The estimator under a training-time budget: it ends where the estimator ends, near the exact GP or at a limit.

    `method_` in its trace says which way it went, as the estimator's attribute does.
    """

    name = "nearexact"

    def __init__(self, max_inducing: int = SCHEDULE[-1], kernel: str = DEFAULT) -> None:
        self.max_inducing, self.kernel = max_inducing, kernel_name(kernel)

    def run(self, task: Task, report: Report) -> None:
        way = self.way(task)

        def with_bound(predict: Any, *, elbo: Any = None, **values: Any) -> None:
            """What this method reports as `elbo` is a bound; an estimate has a column of its own."""
            report(predict, elbo=values.get("lower_bound"), estimate=elbo, **values)

        if way == "iterative":
            IterativeGPR(self.kernel).train(task, with_bound, max_inducing=self.max_inducing, factorises=True)
        elif way == "cholesky":
            GPR(self.kernel).run(task, partial(report, method_=way))
        else:
            sparse = SGPR(max_inducing=self.max_inducing, kernel=self.kernel, ends_near_exact=True)
            sparse.run(task, partial(report, method_=way))

    def way(self, task: Task) -> str:
        """Of "cholesky", "iterative" and "sparse", that which the estimator takes."""
        X, y = (torch.tensor(values, device=task.device) for values in (task.X_train, task.y_train))
        kernel = as_kernel(named_kernel(self.kernel), X.shape[1])
        return best_method(kernel, X, y, task.budget_seconds, task.memory_limit)

    def at(self, task: Task, kernel: Kernel, noise_variance: float, m: int | None) -> SparsePosterior | ExactPosterior:
        """The approximation at given hyperparameters with m points chosen for them; the exact GP has no m."""
        if m is None:
            return ExactObjective(kernel, noise_variance, task.X_train, task.y_train).factorise(kernel, noise_variance)
        return SGPR().at(task, kernel, noise_variance, m)
