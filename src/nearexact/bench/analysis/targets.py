"""The best loss on a split, frozen or of any method, and what each run had spent when it first came near to it."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd

from nearexact.bench.analysis.families import BASELINES
from nearexact.bench.analysis.losses import COSTS, LML, Metric
from nearexact.bench.analysis.points import KEY, run_positions
from nearexact.bench.analysis.results import Results
from nearexact.typing import FloatArray


def best_losses(results: Results, metric: Metric) -> pd.Series:
    """The best loss for each data set and seed: the frozen one if there is one, else the best final one of any method.

    For the log marginal likelihood only those that bound it count: others estimate it, or are other models. Only where
    there is no bound the estimates count, and where there is no estimate the other models.
    """
    final = results.final
    losses = metric.loss(final).replace([np.inf, -np.inf], np.nan)
    split = [final["dataset"], final["seed"]]
    if metric is LML:
        rank = final["method"].map(
            lambda name: 0 if name in results.bounding else 2 if results.bases[name] in BASELINES else 1
        )
        rank = rank.where(losses.notna())
        losses = losses.where(rank == rank.groupby(split).transform("min"))
    best = losses.groupby(split).min()
    frozen = frozen_losses(results, metric)
    return pd.Series([frozen.get(key, loss) for key, loss in best.items()], index=best.index, dtype=float)


def frozen_losses(results: Results, metric: Metric) -> dict[tuple[str, int], float]:
    """The frozen losses of the folder's splits. One of another number of rows is one of other data."""
    keys = set(zip(results.runs["dataset"], results.runs["seed"], strict=True))
    found = {key: results.goals.get((*key, results.sizes[key[0]].n or 0, metric.name)) for key in keys}
    return {key: loss for key, loss in found.items() if loss is not None}


def first_within(losses: FloatArray, low: float, high: float) -> int:
    """The position of the first loss from low to high; −1 if there is none."""
    inside = np.flatnonzero((losses >= low) & (losses <= high))
    return int(inside[0]) if len(inside) else -1


def compute_to_target(results: Results, metric: Metric, share: float) -> pd.DataFrame:
    """What each run needed to come within a share of the best: KEY, the costs, and whether that was over its budget.

    Costs are infinite where it never did. The share is of the way from the best to the constant predictor. An estimate
    of the log marginal likelihood may be off on either side; a lower bound above the best has reached it.
    """
    points, best = results.counted, best_losses(results, metric).to_dict()
    losses = metric.loss(points).to_numpy()
    costs = [column for column in COSTS if column != "predict_seconds"]
    spent, late = points[costs].to_numpy(), points["over_budget"].to_numpy()
    rows: list[tuple[object, ...]] = []
    for (dataset, method, seed), run in run_positions(points):
        goal = best.get((dataset, seed), math.nan)
        slack = share * max(metric.constant(results.sizes[dataset].n) - goal, 0.0)
        lowest = goal - slack if metric is LML and method not in results.bounding else -math.inf
        position = first_within(losses[run], lowest, goal + slack)
        needed = spent[run[position]] if position >= 0 else np.full(len(costs), np.inf)
        rows.append((dataset, method, seed, *needed, bool(position >= 0 and late[run[position]])))
    return pd.DataFrame(rows, columns=[*KEY, *costs, "over_budget"])
