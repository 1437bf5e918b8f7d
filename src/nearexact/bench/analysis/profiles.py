"""Performance profiles (Dolan and Moré 2002): on which share of the splits a method is within a factor of the fastest.

A split is solved when the loss is near the best (targets.py). The profile of a method over τ is the share of its splits
that it solved in at most τ times what the fastest method needed there: at 1 how often it is the fastest, at the right
end how often it gets there at all.
"""

from __future__ import annotations

import math

import numpy as np
import pandas as pd

from nearexact.bench.analysis.families import BASELINES
from nearexact.bench.analysis.losses import Metric
from nearexact.bench.analysis.points import KEY
from nearexact.bench.analysis.results import Results
from nearexact.bench.analysis.statistics import bootstrap, mean
from nearexact.bench.analysis.targets import compute_to_target
from nearexact.typing import FloatArray

TARGET = 0.05  # of the way from the best to the constant predictor
FACTORS = (1.0, 2.0, 5.0, 10.0, math.inf)  # of the table


def ratios(results: Results, metric: Metric, cost: str = "elapsed") -> pd.DataFrame:
    """KEY and `ratio` of each run: its cost to the target over the least of all methods.

    It is infinite for a run that never came there, or has no points. Baselines take no time, and are left out.
    """
    needed = compute_to_target(results, metric, TARGET)
    table = results.runs[KEY].merge(needed[[*KEY, cost]], how="left", on=KEY)
    table = table[~table["method"].map(dict(results.bases)).isin(BASELINES)].reset_index(drop=True)
    spent = table[cost].astype(float).fillna(math.inf)
    fastest = spent.groupby([table["dataset"], table["seed"]]).transform("min")
    solved = np.isfinite(spent) & (fastest > 0.0)
    return table[KEY].assign(ratio=(spent / fastest).where(solved, math.inf))


def profile(table: pd.DataFrame, method: str, factors: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """The profile of a method at these factors, and its 95 % interval over data sets and seeds.

    Shares are those of each data set, in the mean over data sets, so that none counts more for having more splits.
    """
    own = table[table["method"] == method]
    groups = [rows.to_numpy() for _, rows in own.groupby("dataset")["ratio"]]
    shares, low, high = (np.full(len(factors), np.nan) for _ in range(3))
    for k, factor in enumerate(factors):
        solved = [np.where(np.isfinite(group) & (group <= factor), 1.0, 0.0) for group in groups]
        shares[k] = np.mean([group.mean() for group in solved])
        low[k], high[k] = bootstrap(solved, mean, mean)
    return shares, low, high
