"""The losses that a method reaches for its costs: Pareto frontiers, and one number for a whole curve.

A frontier is made of the points that no other point beats in both cost and loss. The number is the area under the curve
of the best loss so far over the logarithm of the cost, both scaled to the data set: 0 is the best from the start, 1 is
never better than the constant predictor. `docs/report.md` defines it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd

from nearexact.bench.analysis.curves import smooth
from nearexact.bench.analysis.families import BASELINES, bounding_methods, is_lower_bound, ordered
from nearexact.bench.analysis.losses import COSTS, LML, METRICS, Metric
from nearexact.bench.analysis.points import KEY, IntArray, run_positions
from nearexact.bench.analysis.results import Results
from nearexact.bench.analysis.targets import best_losses
from nearexact.typing import FloatArray

Curve = tuple[FloatArray, FloatArray]  # costs that rise, losses that fall


def frontier(costs: FloatArray, losses: FloatArray) -> IntArray:
    """The positions of the points that are not dominated, by rising cost; of equal points the first.

    One point dominates another if it is at least as good in both and better in one. Points that are not finite are left
    out.
    """
    usable = np.flatnonzero(np.isfinite(costs) & np.isfinite(losses))
    order = usable[np.lexsort((losses[usable], costs[usable]))]
    best = np.minimum.accumulate(losses[order]) if len(order) else np.empty(0)
    better = np.concatenate([[True], losses[order][1:] < best[:-1]]) if len(order) else np.empty(0, dtype=bool)
    undominated: IntArray = order[better]
    return undominated


def median_frontier(runs: Sequence[Curve]) -> Curve:
    """The best loss at each cost in the median over runs: one that has nothing yet counts as infinitely bad."""
    steps = [(costs[best], losses[best]) for costs, losses in runs if (best := frontier(costs, losses)).size]
    if not steps:
        return np.empty(0), np.empty(0)
    grid = np.unique(np.concatenate([costs for costs, _ in steps]))
    values = np.full((len(runs), len(grid)), np.inf)
    for row, (costs, losses) in enumerate(steps):
        last = np.searchsorted(costs, grid, side="right") - 1
        values[row, last >= 0] = losses[last[last >= 0]]
    values.sort(axis=0)
    median = values[len(runs) // 2]  # the worse of two in the middle: no mean of a number and infinity
    keep = frontier(grid, median)
    return grid[keep], median[keep]


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


def frontiers(results: Results, metric: Metric, cost: str) -> dict[str, dict[str, Curve]]:
    """For each data set and method the median frontier over its seeds; runs without points count as runs.

    Of the log marginal likelihood only lower bounds have one: an estimate may be too high, another model's is another.
    """
    points = smooth(results.points)
    losses, costs = metric.loss(points).to_numpy(), points[cost].to_numpy()
    by_run = {key: (costs[rows], losses[rows]) for key, rows in run_positions(points)}
    methods = set(results.runs["method"])
    if metric is LML:
        methods = {name for name in methods if is_lower_bound(name, has_upper=False)} | bounding_methods(points)
    without_points = (np.empty(0), np.empty(0))
    seeds: dict[tuple[str, str], list[Curve]] = {}
    for dataset, method, seed in results.runs[KEY].itertuples(index=False, name=None):
        if method in methods:
            seeds.setdefault((dataset, method), []).append(by_run.get((dataset, method, seed), without_points))
    return {
        dataset: {
            method: median_frontier(seeds[dataset, method])
            for method in ordered(method for name, method in seeds if name == dataset)
        }
        for dataset in sorted(results.sizes)
    }


def overall(curves: dict[str, Curve]) -> list[tuple[float, float, str]]:
    """Cost, loss and method of the points that no method beats."""
    names = [method for method, (costs, _) in curves.items() for _ in costs]
    if not names:
        return []
    costs = np.concatenate([costs for costs, _ in curves.values()])
    losses = np.concatenate([losses for _, losses in curves.values()])
    return [(float(costs[i]), float(losses[i]), names[i]) for i in frontier(costs, losses)]


def areas(results: Results) -> pd.DataFrame:
    """Area under the curve of each method on each data set: dataset, method, metric, cost, area."""
    rows = []
    for metric in METRICS:
        best = best_losses(results.points, metric).groupby("dataset").median()
        for cost in COSTS:
            for dataset, curves in frontiers(results, metric, cost).items():
                size = results.sizes[dataset]
                limits = cost_range(curves)
                if limits is None:
                    continue
                worst = metric.constant(size.n)
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
