"""How good predictions are: root mean squared error, negative log predictive density, CRPS, coverage of intervals."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
from scipy.special import ndtr

from nearexact.typing import FloatArray

COVERAGE_LEVELS = (50, 90, 95)  # per cent


def rmse(y: FloatArray, mean: FloatArray) -> float:
    """Root mean squared error."""
    return float(np.sqrt(np.mean((y - mean) ** 2)))


def nlpd(y: FloatArray, mean: FloatArray, variance: FloatArray) -> float:
    """Mean negative log density of y under independent Gaussians."""
    return float(np.mean(0.5 * (np.log(2.0 * math.pi * variance) + (y - mean) ** 2 / variance)))


def coverage(y: FloatArray, mean: FloatArray, variance: FloatArray, level: float) -> float:
    """Share of y within the central intervals that should hold `level` per cent of it.

    A prediction is calibrated if that share is as large. One that is not a number covers nothing.
    """
    width = NormalDist().inv_cdf(0.5 + level / 200.0)  # standard deviations on either side
    return float(np.mean(np.abs(y - mean) <= width * np.sqrt(variance)))


def crps(y: FloatArray, mean: FloatArray, variance: FloatArray) -> float:
    """Mean continuous ranked probability score of independent Gaussians (Gneiting and Raftery 2007, section 4.2)."""
    std = np.sqrt(variance)
    z = (y - mean) / std
    density = np.exp(-0.5 * z**2) / math.sqrt(2.0 * math.pi)
    return float(np.mean(std * (z * (2.0 * ndtr(z) - 1.0) + 2.0 * density - 1.0 / math.sqrt(math.pi))))
