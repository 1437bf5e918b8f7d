"""How sure a number is: standard errors over seeds, paired differences, bootstrap intervals over data sets and seeds.

Methods on the same split share its luck, so differences are taken on each split first. Data sets are a sample too: what
is said of all of them is drawn again from data sets, and from the seeds of each.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from nearexact.typing import FloatArray

DRAWS = 1000
TAIL = 0.025  # on either side of an interval
Reduce = Callable[[FloatArray], FloatArray]  # the last axis away; NaN are values that are not there


def mean(values: FloatArray) -> FloatArray:
    """Over the last axis; NaN where there is no value."""
    present = ~np.isnan(values)
    count = present.sum(-1)
    total = np.where(present, values, 0.0).sum(-1)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


def median(values: FloatArray) -> FloatArray:
    """Over the last axis; NaN where there is no value."""
    low, high = _ranked(values, lambda count: (count - 1) // 2), _ranked(values, lambda count: count // 2)
    return np.where(low == high, low, 0.5 * (low + high))  # also where both are infinite


def lower_middle(values: FloatArray) -> FloatArray:
    """The one in the middle of the last axis, the lower of two; NaN where there is no value."""
    return _ranked(values, lambda count: (count - 1) // 2)


def _ranked(values: FloatArray, position: Callable[[FloatArray], FloatArray]) -> FloatArray:
    ranked = np.sort(values, axis=-1)  # NaN last
    at = np.maximum(position((~np.isnan(values)).sum(-1)), 0)
    chosen: FloatArray = np.take_along_axis(ranked, at[..., None].astype(int), axis=-1)[..., 0]
    return chosen


def standard_error(values: FloatArray) -> float:
    """Of the mean; NaN for fewer than two values, or values that are not finite."""
    if len(values) < 2 or not np.isfinite(values).all():
        return math.nan
    return float(np.std(values, ddof=1) / math.sqrt(len(values)))


@dataclass(frozen=True)
class Difference:
    """Of two methods, over the splits that both have a value on."""

    splits: int
    mean: float  # the first minus the second
    standard_error: float
    p: float  # two-sided paired t-test; NaN for fewer than two splits


def paired_difference(first: FloatArray, second: FloatArray) -> Difference:
    """Compare values on the same splits."""
    differences = first - second
    differences = differences[np.isfinite(differences)]
    n = len(differences)
    if n < 2:
        return Difference(n, float(differences[0]) if n else math.nan, math.nan, math.nan)
    average, error = float(differences.mean()), standard_error(differences)
    if error == 0.0:
        return Difference(n, average, error, 1.0 if average == 0.0 else 0.0)
    return Difference(n, average, error, float(2.0 * stats.t.sf(abs(average / error), n - 1)))


def bootstrap(
    groups: Sequence[FloatArray], over_seeds: Reduce, over_sets: Reduce, seed: int = 0
) -> tuple[float, float]:
    """A 95 % interval of an aggregate over data sets of aggregates over seeds; NaN where there is one value in all.

    `groups` has the values of each data set. Data sets are drawn with replacement, then the seeds of each: the
    percentiles of what comes out.
    """
    values = [group[~np.isnan(group)] for group in groups]
    values = [group for group in values if len(group)]
    counts = np.array([len(group) for group in values], dtype=int)
    if counts.sum() < 2:
        return math.nan, math.nan
    padded = np.full((len(values), counts.max()), np.nan)
    for row, group in zip(padded, values, strict=True):
        row[: len(group)] = group
    random = np.random.default_rng(seed)
    sets = random.integers(len(values), size=(DRAWS, len(values)))  # [draws, sets]
    places = np.arange(padded.shape[1])
    chosen = (random.random((*sets.shape, len(places))) * counts[sets][..., None]).astype(int)
    drawn = np.where(places < counts[sets][..., None], padded[sets[..., None], chosen], np.nan)
    aggregates = over_sets(over_seeds(drawn))
    aggregates = np.sort(aggregates[~np.isnan(aggregates)])
    if not len(aggregates):
        return math.nan, math.nan
    # Values that were drawn, with nothing in between: some may be infinite.
    at = [int(TAIL * (len(aggregates) - 1)), math.ceil((1.0 - TAIL) * (len(aggregates) - 1))]
    return float(aggregates[at[0]]), float(aggregates[at[1]])
