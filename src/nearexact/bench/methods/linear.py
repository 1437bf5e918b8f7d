"""Least squares with Gaussian noise."""

from __future__ import annotations

from nearexact.baselines import fit_linear
from nearexact.bench.protocol import Report, Task


class Linear:
    """A linear function of the inputs, by a solver that copes with collinear columns."""

    name = "linear"

    def run(self, task: Task, report: Report) -> None:
        n, d = task.X_train.shape
        baseline = fit_linear(task.X_train, task.y_train)
        flops = 4.0 * n * (d + 1) ** 2 + 8.0 * (d + 1) ** 3  # of a singular value decomposition
        report(baseline.predict, elbo=baseline.log_likelihood, milestone=True, flops=flops)
