"""scikit-learn's exact GP with restarts, stopped at a time limit with the best that it has by then."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.optimize
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

from nearexact.typing import FloatArray

RESTARTS = 3


class _OutOfTimeError(Exception):
    pass


def squared_exponential(n_inputs: int) -> Any:
    """One lengthscale per input, and noise."""
    variance, noise = ConstantKernel(1.0, (1e-5, 1e5)), WhiteKernel(0.01, (1e-5, 1e1))
    return variance * RBF(np.ones(n_inputs), (1e-3, 1e5)) + noise


def fit_until(
    X: FloatArray, y: FloatArray, seconds: float, clock: Callable[[], float] = time.perf_counter
) -> tuple[GaussianProcessRegressor, bool]:
    """The model, by L-BFGS from one start and three random ones, and whether time was up before their end."""
    deadline, stopped = clock() + seconds, False

    def optimise(objective: Callable[..., Any], theta: FloatArray, bounds: FloatArray) -> tuple[FloatArray, float]:
        best: tuple[FloatArray, float] = (theta, np.inf)

        def watched(at: FloatArray) -> Any:
            nonlocal best
            if clock() > deadline:
                raise _OutOfTimeError
            value, gradient = objective(at)
            if value < best[1]:
                best = (at.copy(), value)
            return value, gradient

        nonlocal stopped
        try:
            scipy.optimize.minimize(watched, theta, method="L-BFGS-B", jac=True, bounds=bounds)
        except _OutOfTimeError:
            stopped = True
        return best

    kernel = squared_exponential(X.shape[1])
    model = GaussianProcessRegressor(
        kernel, alpha=0.0, optimizer=optimise, n_restarts_optimizer=RESTARTS, random_state=0
    )
    return model.fit(X, y), stopped
