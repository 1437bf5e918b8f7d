"""The losses that a method reaches for its costs: Pareto frontiers, of one run, over seeds and over all methods.

A frontier is made of the points that no other point beats in both cost and loss.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from nearexact.bench.analysis.losses import Metric
from nearexact.bench.analysis.points import KEY, IntArray, run_positions
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


def frontiers(
    smoothed: pd.DataFrame, runs: pd.DataFrame, methods: Sequence[str], metric: Metric, cost: str
) -> dict[str, dict[str, Curve]]:
    """For each data set and each of the methods, in their order, the median frontier over seeds.

    Runs without points count as runs.
    """
    losses, costs = metric.loss(smoothed).to_numpy(), smoothed[cost].to_numpy()
    by_run = {key: (costs[rows], losses[rows]) for key, rows in run_positions(smoothed)}
    without_points = (np.empty(0), np.empty(0))
    seeds: dict[str, dict[str, list[Curve]]] = {dataset: {} for dataset in sorted(runs["dataset"].unique())}
    for dataset, method, seed in runs[KEY].itertuples(index=False, name=None):
        curve = by_run.get((dataset, method, seed), without_points)
        seeds[dataset].setdefault(method, []).append(curve)
    return {
        dataset: {method: median_frontier(curves[method]) for method in methods if method in curves}
        for dataset, curves in seeds.items()
    }


def overall(curves: dict[str, Curve]) -> list[tuple[float, float, str]]:
    """Cost, loss and method of the points that no method beats."""
    names = [method for method, (costs, _) in curves.items() for _ in costs]
    if not names:
        return []
    costs = np.concatenate([costs for costs, _ in curves.values()])
    losses = np.concatenate([losses for _, losses in curves.values()])
    return [(float(costs[i]), float(losses[i]), names[i]) for i in frontier(costs, losses)]
