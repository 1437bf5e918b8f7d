"""Where each input, cut in two, splits the target best: origins for arc-cosine kernels."""

from __future__ import annotations

import numpy as np

from nearexact.scaling import Scaling
from nearexact.typing import FloatArray

COLUMNS_AT_ONCE = 100  # that are sorted at once
LEAST_EXPLAINED = 1e-10  # of the sum of squares of the standardised target: less is rounding


def best_splits(X: FloatArray, y: FloatArray) -> tuple[float, ...]:
    """Where to cut each input so that the target differs most between the sides, in standard deviations from the mean.

    Functions under an arc-cosine kernel change fastest near its origin. The mean, where standardised inputs have it, is
    as good a place as any, unless the target jumps: then two inducing points, one on each side, say it all.
    """
    return tuple(Scaling.of(X).apply(best_cuts(X, y)).tolist())


def best_cuts(X: FloatArray, y: FloatArray) -> FloatArray:
    """The same in the units of the inputs: [D]."""
    cuts = np.array(Scaling.of(X).shift)
    for start in range(0, X.shape[1], COLUMNS_AT_ONCE):
        columns = slice(start, start + COLUMNS_AT_ONCE)
        thresholds = _thresholds(X[:, columns], y)
        cuts[columns] = np.where(np.isnan(thresholds), cuts[columns], thresholds)
    return cuts


def _thresholds(X: FloatArray, y: FloatArray) -> FloatArray:
    """Where to cut each column so that the means of y on both sides explain most of it; NaN where nothing does: [D]."""
    n = len(y)
    order = np.argsort(X, axis=0, kind="stable")
    sorted_X = np.take_along_axis(X, order, axis=0)
    errors = Scaling.of(y).apply(y)  # mean 0: what the left side sums up to, the right side does with the other sign
    left = np.cumsum(errors[order], axis=0)[:-1]  # [N − 1, D]
    size = np.arange(1, n)[:, None]
    explained = left**2 * (1.0 / size + 1.0 / (n - size))  # sum of squares between the two sides
    explained[sorted_X[1:] <= sorted_X[:-1]] = 0.0  # there is no cut between equal values
    best = explained.argmax(0)
    columns = np.arange(X.shape[1])
    middle = 0.5 * sorted_X[best, columns] + 0.5 * sorted_X[best + 1, columns]
    return np.where(explained[best, columns] > LEAST_EXPLAINED, middle, np.nan)
