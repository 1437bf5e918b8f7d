"""The area under a curve: one number for what a run reaches for its costs.

It is the mean of the best loss so far over the logarithm of the cost, scaled to the split: 0 is the best from the
start, 1 is never better than the constant predictor. `docs/report.md` defines it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
import pandas as pd

from nearexact.bench.analysis.families import BASELINES
from nearexact.bench.analysis.pareto import Curve, frontier
from nearexact.bench.analysis.points import KEY, RunKey, run_positions
from nearexact.bench.analysis.results import Results
from nearexact.bench.analysis.targets import best_losses


def area(curve: Curve, cost_range: tuple[float, float], best: float, worst: float) -> float:
    """The mean over the logarithm of cost of the best loss so far, scaled from 0 at `best` to 1 at `worst` and clipped.

    Before its first point a run counts as 1. With a range of one cost only, it is the value there.
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
    """Area under the curve of each run: KEY, metric, cost, area.

    NaN where a run has losses but has not recorded the cost, such as a plug-in that counts no operations: that is no
    merit and no fault. A run without losses has an area of 1.
    """
    rows = []
    positions = dict(run_positions(results.smoothed))
    by_dataset = {name: list(runs[KEY].itertuples(index=False)) for name, runs in results.runs.groupby("dataset")}
    for (metric, cost), methods in results.compared.items():
        losses, costs = metric.loss(results.smoothed).to_numpy(), results.smoothed[cost].to_numpy()
        best = best_losses(results, metric)
        for dataset, keys in by_dataset.items():
            curves: dict[RunKey, Curve] = {}
            unknown: set[RunKey] = set()
            for key in [tuple(key) for key in keys if key.method in methods]:
                run = positions.get(key, np.empty(0, dtype=int))
                on = run[frontier(costs[run], losses[run])]
                curves[key] = costs[on], losses[on]
                if np.isfinite(losses[run]).any() and not np.isfinite(costs[run]).any():
                    unknown.add(key)
            limits = cost_range((results.bases[key[1]] in BASELINES, curve) for key, curve in curves.items())
            worst = metric.constant(results.sizes[dataset].n)
            for key, curve in curves.items():
                goal = best.get((dataset, key[2]), math.nan)
                known = limits is not None and key not in unknown
                value = area(_positive(curve), limits, goal, worst) if known and limits else math.nan
                rows.append((*key, metric.name, cost, value))
    return pd.DataFrame(rows, columns=[*KEY, "metric", "cost", "area"])


def cost_range(curves: Iterable[tuple[bool, Curve]]) -> tuple[float, float] | None:
    """The least and the largest cost of frontiers, None where no cost was recorded.

    Baselines, which are marked, cost almost nothing, so theirs count only where there is no other method.
    """
    spent: dict[bool, list[float]] = {False: [], True: []}
    for is_baseline, (costs, _) in curves:
        spent[is_baseline] += costs[costs > 0.0].tolist()
    counted = spent[False] or spent[True]
    return (min(counted), max(counted)) if counted else None


def _positive(curve: Curve) -> Curve:
    """The curve with costs that have a logarithm: a cost of zero becomes the smallest positive number."""
    costs, losses = curve
    return np.maximum(costs, np.finfo(float).tiny), losses
