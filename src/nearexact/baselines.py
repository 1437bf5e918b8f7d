"""Predictors that every model has to beat: a constant, and a linear function of the inputs, with Gaussian noise.

Both take standardised data, and give mean and variance of a new observation on that scale.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nearexact.noise_only import gaussian_log_likelihood
from nearexact.typing import FloatArray

LEAST_VARIANCE = 1e-10  # of the noise, on standardised targets
RANK_TOLERANCE = 1e-4  # singular values below this share of the largest: directions that hardly any row has a part in


@dataclass(frozen=True, eq=False)
class Baseline:
    """A fitted baseline."""

    weights: FloatArray | None  # one per input; None for the constant
    intercept: float
    variance: float  # of the noise: the mean square of the training errors
    n: int  # training rows

    def predict(self, X: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Mean and variance [N] of a new observation at each row of X."""
        mean = np.full(len(X), self.intercept) if self.weights is None else X @ self.weights + self.intercept
        return mean, np.full(len(X), self.variance)

    @property
    def log_likelihood(self) -> float:
        """Of the training targets, in nats; the variance is the one that maximises it."""
        return gaussian_log_likelihood(self.variance, self.n)


def fit_constant(y: FloatArray) -> Baseline:
    """Mean and variance of the targets, whatever the inputs."""
    return Baseline(None, float(y.mean()), _variance(y - y.mean()), len(y))


def fit_linear(X: FloatArray, y: FloatArray) -> Baseline:
    """Least squares, by a solver that copes with collinear columns."""
    design = np.column_stack([X, np.ones(len(X))])
    weights = np.asarray(np.linalg.lstsq(design, y, rcond=RANK_TOLERANCE)[0], dtype=np.float64)
    return Baseline(weights[:-1], float(weights[-1]), _variance(y - design @ weights), len(y))


def _variance(errors: FloatArray) -> float:
    return max(float(np.mean(errors**2)), LEAST_VARIANCE)
