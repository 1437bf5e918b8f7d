"""Least squares with Gaussian noise."""

from __future__ import annotations

import numpy as np

from nearexact.bench.protocol import Report, Task
from nearexact.noise_only import gaussian_log_likelihood
from nearexact.typing import FloatArray

LEAST_VARIANCE = 1e-10  # of the noise, on standardised targets
RANK_TOLERANCE = 1e-4  # singular values below this share of the largest: directions that only a few rows tell of


class Linear:
    """A linear function of the inputs, by a solver that copes with collinear columns."""

    name = "linear"

    def run(self, task: Task, report: Report) -> None:
        X, y = task.X_train, task.y_train
        n, d = X.shape
        design = np.column_stack([X, np.ones(n)])
        weights, *_ = np.linalg.lstsq(design, y, rcond=RANK_TOLERANCE)
        variance = max(float(np.mean((y - design @ weights) ** 2)), LEAST_VARIANCE)

        def predict(X: FloatArray) -> tuple[FloatArray, FloatArray]:
            return X @ weights[:-1] + weights[-1], np.full(len(X), variance)

        flops = 4.0 * n * (d + 1) ** 2 + 8.0 * (d + 1) ** 3  # of a singular value decomposition
        report(predict, elbo=gaussian_log_likelihood(variance, n), milestone=True, flops=flops)
