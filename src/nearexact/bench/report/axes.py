"""What the axes of charts and figures span, and which methods are drawn as a level instead of a curve.

Values that are out of all proportion do not set a scale: the tables have them.
"""

from __future__ import annotations

import math

import numpy as np
import pandas as pd

from nearexact.bench.analysis.families import BASELINES
from nearexact.bench.analysis.losses import LML, Metric
from nearexact.bench.analysis.points import KEY
from nearexact.typing import FloatArray

AT_ONCE = 0.01  # of the longest training time: faster methods with at most two points are drawn as a level
FAR = 20.0  # times as far from the constant predictor as the median run is out of all proportion ...
FAR_COST = 1e6  # ... and so many times the median cost, or the median cost divided by it


def levels(points: pd.DataFrame) -> set[str]:
    """The methods on a data set that are drawn as a level: baselines, and those that take almost no time."""
    longest = points["elapsed"].max()
    names = set(points.loc[points["base_method"].isin(BASELINES), "method"])
    for name, group in points.groupby("method"):
        if group["seed"].value_counts().max() <= 2 and group["elapsed"].max() < AT_ONCE * longest:
            names.add(name)
    return names


def trained(points: pd.DataFrame) -> pd.DataFrame:
    """The points on a data set that are drawn as curves; all of them if there are none."""
    curves = points[~points["method"].isin(levels(points))]
    return curves if len(curves) else points


def span(points: pd.DataFrame, cost: str) -> tuple[float, float] | None:
    """From the least to the largest cost of the curves; None where none was recorded."""
    return positive_span(trained(points)[cost].to_numpy())


def positive_span(costs: FloatArray) -> tuple[float, float] | None:
    """From the least to the largest of positive costs, without those out of all proportion; None if there are none."""
    costs = costs[np.isfinite(costs) & (costs > 0.0)]
    if not len(costs):
        return None
    middle = float(np.median(costs))
    costs = costs[(costs <= FAR_COST * middle) & (costs >= middle / FAR_COST)]
    return float(costs.min()), float(costs.max())


def limits(points: pd.DataFrame, metric: Metric, n: int | None, bounding: set[str]) -> tuple[float, float]:
    """From the best loss to the constant predictor's: losses that have exploded, up or down, do not set a scale.

    `bounding` are the methods whose log marginal likelihoods are bounds, which cannot be too good.
    """
    losses = metric.loss(points)
    losses = losses[np.isfinite(losses)]
    if losses.empty:
        return 0.0, 1.0
    worst = metric.constant(n)
    worst = worst if math.isfinite(worst) else float(losses.quantile(0.9))
    best = _best(points.loc[losses.index], losses, worst, metric, bounding)
    worst = max(worst, best + 1e-6 * max(abs(best), 1.0))
    if metric is LML and points["upper_bound"].notna().any():  # upper bounds far away are cut off
        best = max(min(best, float(-points["upper_bound"].max())), best - 0.5 * (worst - best))
    margin = 0.06 * (worst - best)
    return best - margin, worst + 2.0 * margin


def _best(points: pd.DataFrame, losses: pd.Series, worst: float, metric: Metric, bounding: set[str]) -> float:
    """The best loss that is not out of all proportion.

    An estimate of the log marginal likelihood may be half as far again as the best bound; without bounds, and for other
    metrics, a run may be FAR times as far from the constant predictor as the median run that beats it.
    """
    lowest = losses.groupby([points[name] for name in KEY]).min()
    if metric is LML:
        bounds = lowest[lowest.index.get_level_values("method").isin(bounding)]
        if len(bounds) and bounds.min() < worst:
            farthest = worst - 1.5 * (worst - float(bounds.min()))
            return float(lowest[lowest >= farthest].min())
    better = lowest[lowest < worst]
    if better.empty:
        return float(lowest.min())
    return float(better[worst - better <= FAR * (worst - better).median()].min())


def coverage_limits(points: pd.DataFrame, column: str) -> tuple[float, float]:
    """Around the level that the coverage should have, wide enough for almost all recorded coverages."""
    aim = int(column.rpartition("_")[2]) / 100.0
    shares = trained(points)[column]
    shares = shares[np.isfinite(shares)]
    low, high = (float(shares.quantile(0.02)), float(shares.quantile(0.98))) if len(shares) else (aim, aim)
    return max(min(aim - 0.1, low - 0.03), -0.02), min(max(aim + 0.1, high + 0.03), 1.02)
