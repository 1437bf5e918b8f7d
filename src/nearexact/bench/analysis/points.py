"""Recorded points as the analysis takes them: one table, in the order of time, with every column it may ask for.

A point is a row of `store.load`. This module knows the names of the columns and where the points of each run are.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import fields

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from nearexact.bench import store
from nearexact.bench.method_labels import base_name
from nearexact.bench.metrics import COVERAGE_LEVELS
from nearexact.evidence import Evidence
from nearexact.typing import FloatArray

IntArray = NDArray[np.intp]
RunKey = tuple[str, str, int]  # the values of KEY

KEY = ["dataset", "method", "seed"]
COVERAGE = [f"coverage_{level}" for level in COVERAGE_LEVELS]
EVIDENCE = [f"evidence_{part.name}" for part in fields(Evidence)]  # what speaks for θ
# Of an exact GP by conjugate gradients: its likelihood with a standard error, and how far means may be off, in standard
# deviations of the noise. A method whose `elbo` is the estimate need not record it again.
ESTIMATE = ["estimate", "standard_error", "mean_error"]
OPTIONAL_NUMBERS = ["crps", *COVERAGE, *EVIDENCE, *ESTIMATE, "scheduled_m", "lower_bound", "exact_lml"]
# How `stopped` starts in traces whose milestones do not say with booleans whether their stage counts.
CUT_SHORT = ("time limit", "interrupted")
NOT_COMPLETE = (*CUT_SHORT, "failed", "no better than a smaller M")
LARGEST = 1e100  # numbers beyond it have exploded and count as infinite: arithmetic with the others cannot overflow
LARGEST_COUNT = 2**53  # of rows, inducing points and the like: up to here floats hold whole numbers exactly


def tidy(points: pd.DataFrame) -> pd.DataFrame:
    """Sort points by run and time, and add the optional columns that no run has recorded.

    `complete` says whether a milestone's stage was done and led to a model of its own, and so counts as a step up in M;
    `cut_short` whether it was ended from outside. Where nothing was recorded, stages are complete. Values that are no
    numbers where numbers are expected are NaN. `base_method` is what a label's name says where it was not recorded.
    """
    optional = [*OPTIONAL_NUMBERS, "stopped", "complete", "cut_short", "base_method", "over_budget"]
    points = points.reindex(columns=[*points.columns, *(name for name in optional if name not in points.columns)])
    for name in [*store.NUMBERS, *OPTIONAL_NUMBERS]:
        points[name] = _as_numbers(points[name])
    for name in ("m", "scheduled_m"):
        points[name] = points[name].where(points[name].between(1, LARGEST_COUNT))
    reasons = [reason if isinstance(reason, str) else "" for reason in points["stopped"]]
    points["complete"] = _flags(points["complete"], [not reason.startswith(NOT_COMPLETE) for reason in reasons])
    points["cut_short"] = _flags(points["cut_short"], [reason.startswith(CUT_SHORT) for reason in reasons])
    bases = zip(points["method"], points["base_method"], strict=True)
    points["base_method"] = [base if isinstance(base, str) else base_name(name) for name, base in bases]
    points["over_budget"] = points["over_budget"].eq(True)
    points = points[np.isfinite(points["elapsed"])]
    return points.sort_values([*KEY, "elapsed"], kind="stable").reset_index(drop=True)


def _as_numbers(values: Iterable[object]) -> FloatArray:
    """Values as floats: NaN for what is no number, infinite beyond LARGEST."""
    numbers = [
        value if isinstance(value, (int, float)) and not isinstance(value, bool) else math.nan for value in values
    ]
    array = np.array(numbers, dtype=float)
    array[np.abs(array) > LARGEST] *= math.inf
    return array


def _flags(recorded: Iterable[object], derived: Iterable[bool]) -> list[bool]:
    """The recorded values that are booleans, else those derived from text."""
    return [bool(a) if isinstance(a, (bool, np.bool_)) else b for a, b in zip(recorded, derived, strict=True)]


def run_positions(points: pd.DataFrame) -> Iterator[tuple[RunKey, IntArray]]:
    """Data set, method, seed of each run, and the positions of its points, in the order of time."""
    for key, positions in points.groupby(KEY, sort=False).indices.items():
        yield key, np.asarray(positions)


def last_at(times: FloatArray, moments: Iterable[float]) -> IntArray:
    """The position of the last time at or before each moment; −1 where there is none. Times must not fall."""
    return np.searchsorted(times, np.asarray(list(moments), dtype=float), side="right") - 1
