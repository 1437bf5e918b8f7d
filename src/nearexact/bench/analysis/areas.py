"""The area under a curve: one number for what a method reaches for its costs.

It is the mean of the best loss so far over the logarithm of the cost, scaled to the data set: 0 is the best from the
start, 1 is never better than the constant predictor. `docs/report.md` defines it.
"""

from __future__ import annotations

import math

import numpy as np
import pandas as pd

from nearexact.bench.analysis.families import BASELINES
from nearexact.bench.analysis.losses import COSTS, METRICS
from nearexact.bench.analysis.pareto import Curve
from nearexact.bench.analysis.results import Results
from nearexact.bench.analysis.targets import best_losses


def area(curve: Curve, cost_range: tuple[float, float], best: float, worst: float) -> float:
    """The mean over the logarithm of cost of the best loss so far, scaled from 0 at `best` to 1 at `worst` and clipped.

    Before its first point a method counts as 1. With a range of one cost only, it is the value there.
    """
    costs, losses = curve
    low, high = (math.log(cost) for cost in cost_range)
    if not len(costs) or not worst > best:
        return 1.0 if not len(costs) else math.nan
    scaled = np.clip((losses - best) / (worst - best), 0.0, 1.0)
    if high <= low:
        return float(scaled[-1])
    edges = np.clip(np.log(costs), low, high)
    widths = np.diff(np.append(edges, high))
    return float(((edges[0] - low) + widths @ scaled) / (high - low))


def areas(results: Results) -> pd.DataFrame:
    """Area under the curve of each method on each data set: dataset, method, metric, cost, area."""
    rows = []
    for metric in METRICS:
        best = best_losses(results, metric).groupby("dataset").median()
        for cost in COSTS:
            for dataset, curves in results.frontiers[metric.name, cost].items():
                limits = cost_range(curves)
                if limits is None:
                    continue
                worst = metric.constant(results.sizes[dataset].n)
                for method, curve in curves.items():
                    value = area(_positive(curve), limits, best.get(dataset, math.nan), worst)
                    rows.append((dataset, method, metric.name, cost, value))
    return pd.DataFrame(rows, columns=["dataset", "method", "metric", "cost", "area"])


def cost_range(curves: dict[str, Curve]) -> tuple[float, float] | None:
    """The least and the largest cost of the frontiers, None where no cost was recorded.

    Baselines cost almost nothing, so theirs count only where there is no other method.
    """
    for names in (set(curves) - set(BASELINES), set(curves)):
        spent = np.concatenate([np.empty(0), *(curves[name][0] for name in sorted(names))])
        spent = spent[spent > 0.0]
        if len(spent):
            return float(spent.min()), float(spent.max())
    return None


def _positive(curve: Curve) -> Curve:
    """The curve with costs that have a logarithm: a cost of zero becomes the smallest positive number."""
    costs, losses = curve
    return np.maximum(costs, np.finfo(float).tiny), losses
