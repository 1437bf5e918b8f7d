"""The points that the page's charts draw: those of every run, fewer of them where there are too many for a page."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from nearexact.bench.analysis import pareto, published
from nearexact.bench.analysis.curves import held_positions
from nearexact.bench.analysis.families import is_lower_bound, restarting_methods
from nearexact.bench.analysis.losses import COSTS
from nearexact.bench.analysis.points import COVERAGE, KEY, IntArray, run_positions
from nearexact.bench.analysis.results import Results
from nearexact.bench.report.axes import coverage_limits, levels, limits, span
from nearexact.bench.report.method_styles import styles_of

MOST_POINTS = 12_000  # of all runs together, about 1 MB
FEWEST, MOST = 10, 300  # of a run
FRONTIER_POINTS = 40
MOST_LATE = 20  # points of a run beyond its budget


def chart_data(results: Results, *, with_published: bool = False) -> dict[str, Any]:
    """The styles of the methods, and for each data set what its charts need: JSON-serialisable values."""
    runs = max(len(results.runs), 1)
    most = int(np.clip(MOST_POINTS // runs, FEWEST, MOST))
    restarting = restarting_methods(results.counted)
    return {
        "methods": {
            name: {
                "label": style.label, "light": style.colour, "dark": style.dark_colour, "dash": style.dash
            }
            for name, style in styles_of(results).items()
        },
        "costs": COSTS,
        "datasets": [
            _dataset(results, dataset, most, restarting)
            | {
                "frontiers": {
                    f"{metric} {cost}": {m: _thin_frontier(c) for m, c in by_dataset[dataset].items()}
                    for (metric, cost), by_dataset in results.frontiers.items()
                },
                "published": _published(results, dataset) if with_published else {},
            }
            for dataset in sorted(results.sizes)
        ],
    }  # fmt: skip


def _dataset(results: Results, dataset: str, most: int, restarting: set[str]) -> dict[str, Any]:
    every = results.points[results.points["dataset"] == dataset].reset_index(drop=True)
    points = results.counted[results.counted["dataset"] == dataset].reset_index(drop=True)
    size, bases = results.sizes[dataset], results.bases
    ends = results.milestones
    ends = ends[(ends["dataset"] == dataset) & ends["upper_bound"].notna() & (ends["upper_bound"] != ends["elbo"])]
    columns = {metric.name: metric.loss(points).to_numpy() for metric in results.metrics}
    columns |= {name: points[name].to_numpy() for name in [*COSTS, *COVERAGE, "m", "elbo", "milestone"]}
    uppers = {
        key: {cost: run[cost].to_numpy() for cost in COSTS} | {"value": -run["upper_bound"].to_numpy()}
        for key, run in ends.groupby(KEY)
    }
    return {
        "name": dataset,
        "levels": sorted(levels(points)),
        "spans": {cost: span(every, cost) for cost in COSTS},
        "limits": {metric.name: limits(points, metric, size.n, results.bounding) for metric in results.metrics}
        | {column: coverage_limits(points, column) for column in COVERAGE},
        "runs": [
            {"method": key[1], "seed": key[2], "upper": uppers.get(key)}
            | _run(bases[key[1]], {name: column[rows] for name, column in columns.items()}, most, key[1] in restarting)
            for key, rows in run_positions(points)
        ],
        "late": _late(results, every[every["over_budget"]]),
    }


def _late(results: Results, points: pd.DataFrame) -> dict[str, Any]:
    """The points beyond the budget, by method; the last of each run where there are too many."""
    shown = {}
    for method, rows in points.groupby("method"):
        last = rows.groupby("seed").tail(MOST_LATE)
        columns = {metric.name: metric.loss(last).to_numpy() for metric in results.metrics}
        shown[method] = columns | {name: last[name].to_numpy() for name in [*COSTS, *COVERAGE]}
    return shown


def _run(base: str, columns: dict[str, Any], most: int, restarts: bool) -> dict[str, Any]:
    """The columns of a run; `held` says which point's values the smoothed curve shows at each."""
    m, elbo, milestone = columns.pop("m"), columns.pop("elbo"), columns.pop("milestone")
    held = every = np.arange(len(m))
    if restarts:
        held = held_positions(m, elbo, milestone, is_bound=is_lower_bound(base, has_upper=False))
    keep = thin(len(m), np.flatnonzero(milestone), most)
    keep = np.unique(np.concatenate([keep, held[keep]]))
    shown = {name: column[keep] for name, column in columns.items() if not np.isnan(column[keep]).all()}
    return shown | {"held": np.searchsorted(keep, held[keep]) if (held != every).any() else None}


def thin(n: int, milestones_at: IntArray, most: int) -> IntArray:
    """Which of n points to keep so that they are `most`: evenly spread, with the first, the last and the milestones."""
    if n <= most:
        return np.arange(n)
    marked = milestones_at[
        np.linspace(0, len(milestones_at) - 1, min(len(milestones_at), most // 2)).round().astype(int)
    ]
    return np.unique(np.concatenate([np.linspace(0, n - 1, most - len(marked)).round().astype(int), marked]))


def _thin_frontier(curve: pareto.Curve) -> list[Any]:
    costs, losses = curve
    keep = thin(len(costs), np.empty(0, dtype=int), FRONTIER_POINTS)
    return [costs[keep], losses[keep]]


def _published(results: Results, dataset: str) -> dict[str, Any]:
    table = published.load()
    table = table[(table["dataset"] == dataset) & table["seconds"].notna()]
    return {
        metric.name: {
            method: [rows["seconds"].to_numpy(), rows["value"].to_numpy()]
            for method, rows in table[table["metric"] == metric.name].groupby("method")
        }
        for metric in results.metrics
    }
