"""Recorded points as the analysis takes them: one table, in the order of time, with every column it may ask for.

A point is a row of `store.load`. This module knows the names of the columns and where the points of each run are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from nearexact.bench.metrics import COVERAGE_LEVELS
from nearexact.typing import FloatArray

IntArray = NDArray[np.intp]
RunKey = tuple[str, str, int]  # the values of KEY

KEY = ["dataset", "method", "seed"]
COVERAGE = [f"coverage_{level}" for level in COVERAGE_LEVELS]


def tidy(points: pd.DataFrame) -> pd.DataFrame:
    """Sort points by run and time, and add the optional columns that no run has recorded."""
    numbers = [*COVERAGE, "scheduled_m"]
    missing = [name for name in [*numbers, "stopped"] if name not in points.columns]
    points = points.reindex(columns=[*points.columns, *missing])
    points[numbers] = points[numbers].apply(pd.to_numeric, errors="coerce")
    points["stopped"] = ["" if reason != reason or reason is None else str(reason) for reason in points["stopped"]]
    points = points[points["elapsed"].notna()]
    return points.sort_values([*KEY, "elapsed"], kind="stable").reset_index(drop=True)


def run_positions(points: pd.DataFrame) -> Iterator[tuple[RunKey, IntArray]]:
    """Data set, method, seed of each run, and the positions of its points, in the order of time."""
    for key, positions in points.groupby(KEY, sort=False).indices.items():
        yield key, np.asarray(positions)


def last_at(times: FloatArray, moments: Iterable[float]) -> IntArray:
    """The position of the last time at or before each moment; −1 where there is none. Times must not fall."""
    return np.searchsorted(times, np.asarray(list(moments), dtype=float), side="right") - 1
