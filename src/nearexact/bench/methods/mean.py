"""The constant predictor: what every other method has to beat."""

from __future__ import annotations

from nearexact.baselines import fit_constant
from nearexact.bench.protocol import Report, Task


class Mean:
    """Mean and variance of the training targets, whatever the inputs."""

    name = "mean"

    def run(self, task: Task, report: Report) -> None:
        baseline = fit_constant(task.y_train)
        report(baseline.predict, elbo=baseline.log_likelihood, milestone=True, flops=4.0 * len(task.y_train))
