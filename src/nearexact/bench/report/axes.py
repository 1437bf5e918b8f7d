"""What the axes of charts and figures span, and which methods are drawn as a level instead of a curve."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd

from nearexact.bench.analysis.families import BASELINES
from nearexact.bench.analysis.losses import LML, Metric

AT_ONCE = 0.01  # of the longest training time: faster methods with at most two points are drawn as a level


def levels(points: pd.DataFrame) -> set[str]:
    """The methods on a data set that are drawn as a level: baselines, and those that take almost no time."""
    longest = points["elapsed"].max()
    names = {name for name in points["method"].unique() if name in BASELINES}
    for name, group in points.groupby("method"):
        if group["seed"].value_counts().max() <= 2 and group["elapsed"].max() < AT_ONCE * longest:
            names.add(name)
    return names


def trained(points: pd.DataFrame) -> pd.DataFrame:
    """The points on a data set that are drawn as curves; all of them if there are none."""
    curves = points[~points["method"].isin(levels(points))]
    return curves if len(curves) else points


def limits(points: pd.DataFrame, metric: Metric, n: int | None) -> tuple[float, float]:
    """From the best loss to the constant predictor's: losses that have exploded do not set a chart's scale."""
    losses = metric.loss(points)
    losses = losses[np.isfinite(losses)]
    if losses.empty:
        return 0.0, 1.0
    best, worst = float(losses.min()), metric.constant(n)
    worst = worst if math.isfinite(worst) else float(losses.quantile(0.9))
    worst = max(worst, best + 1e-6 * max(abs(best), 1.0))
    if metric is LML and points["upper_bound"].notna().any():  # upper bounds far away are cut off
        best = max(min(best, float(-points["upper_bound"].max())), best - 0.5 * (worst - best))
    margin = 0.06 * (worst - best)
    return best - margin, worst + 2.0 * margin


def coverage_limits(points: pd.DataFrame, column: str) -> tuple[float, float]:
    """Around the level that the coverage should have, wide enough for almost all recorded coverages."""
    aim = int(column.rpartition("_")[2]) / 100.0
    shares = trained(points)[column]
    shares = shares[np.isfinite(shares)]
    low, high = (float(shares.quantile(0.02)), float(shares.quantile(0.98))) if len(shares) else (aim, aim)
    return max(min(aim - 0.1, low - 0.03), -0.02), min(max(aim + 0.1, high + 0.03), 1.02)
