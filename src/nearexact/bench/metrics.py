"""How good predictions are: root mean squared error and negative log predictive density."""

from __future__ import annotations

import math

import numpy as np

from nearexact.kernels.base import FloatArray


def rmse(y: FloatArray, mean: FloatArray) -> float:
    """Root mean squared error."""
    return float(np.sqrt(np.mean((y - mean) ** 2)))


def nlpd(y: FloatArray, mean: FloatArray, variance: FloatArray) -> float:
    """Mean negative log density of y under independent Gaussians."""
    return float(np.mean(0.5 * (np.log(2.0 * math.pi * variance) + (y - mean) ** 2 / variance)))
