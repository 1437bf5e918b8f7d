"""Methods against each other, split by split: at the end of each run, on each data set and over all of them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection

import numpy as np
import pandas as pd

from nearexact.bench.analysis.checkpoints import FINAL
from nearexact.bench.analysis.families import BASELINES
from nearexact.bench.analysis.losses import LML, Metric
from nearexact.bench.analysis.results import Results
from nearexact.bench.analysis.statistics import bootstrap, mean, paired_difference
from nearexact.typing import FloatArray

NO_DIFFERENCE = 0.001  # of the way from the best to the constant predictor: hardly ever a digit of a table


def losses_by_split(results: Results, metric: Metric, checkpoint: int | str = FINAL) -> dict[str, pd.DataFrame]:
    """For each data set the losses at a checkpoint: a row for each seed, a column for each method in their order.

    For the log marginal likelihood only methods that bound it: an estimate that is too high is no merit.
    """
    values = results.checkpoint_values
    values = values[values["checkpoint"] == checkpoint]
    if metric is LML:
        values = values[values["method"].isin(results.bounding)]
    wide = values.set_index(["dataset", "seed", "method"])[metric.name].unstack("method")
    methods = {name: results.ordered(own["method"]) for name, own in values.groupby("dataset")}
    return {name: wide.loc[name, methods[name]] for name in sorted(methods)}


def best_method(losses: pd.DataFrame, runs: pd.Series) -> str | None:
    """The method with the lowest mean loss, of those with a finite one for each of their runs, which `runs` counts."""
    finite = np.isfinite(losses).sum()
    whole = [method for method in losses if finite[method] == runs[method]]
    return min(whole, key=lambda method: float(losses[method].mean())) if whole else None


def against_best(
    results: Results, metric: Metric, checkpoint: int | str = FINAL, methods: Collection[str] = ()
) -> pd.DataFrame:
    """Each method against the best on its data set: the mean difference over common splits, and how sure it is.

    `tied` is whether the difference is no larger than its standard error, or nothing that one would want to be better
    by; the best is tied with itself. With few splits a t-test hardly tells anything apart, so it does not decide. A
    method without values has no splits. Only `methods` compete, or all of them if there are none.
    """
    rows = []
    tables = losses_by_split(results, metric, checkpoint)
    competing = results.runs[results.runs["method"].isin(methods)] if methods else results.runs
    for dataset, own in competing.groupby("dataset"):
        losses, runs = tables.get(dataset, pd.DataFrame()), own.groupby("method").size()
        losses = losses[[name for name in losses if name in runs.index]]
        best = best_method(losses, runs)
        for method in results.ordered(own["method"]):
            if best is None or method not in losses:
                rows.append((dataset, metric.name, method, best, 0, math.nan, math.nan, math.nan, False))
                continue
            compared = paired_difference(losses[method].to_numpy(), losses[best].to_numpy())
            is_whole = bool(np.isfinite(losses[method]).sum() == runs[method])
            visible = NO_DIFFERENCE * (metric.constant(results.sizes[dataset].n) - losses[best].mean())
            is_close = compared.mean <= compared.standard_error or compared.mean <= visible
            tied = method == best or (is_whole and is_close)
            figures = (compared.splits, compared.mean, compared.standard_error, compared.p)
            rows.append((dataset, metric.name, method, best, *figures, tied))
    names = ["dataset", "metric", "method", "best", "splits", "difference", "standard_error", "p", "tied"]
    return pd.DataFrame(rows, columns=names)


def pairwise(results: Results, metric: Metric) -> pd.DataFrame:
    """Every two methods over all data sets that both were run on: who wins how many splits, and by how much.

    Differences are in per cent of the way from the best method on the split to the constant predictor, so that data
    sets can be put together; negative is in favour of the first. The interval is over data sets and seeds.
    """
    tables = losses_by_split(results, metric)
    methods = results.ordered({m for table in tables.values() for m in table if results.bases[m] not in BASELINES})
    rows = []
    for first, second in itertools.combinations(methods, 2):
        shared = {name: table for name, table in tables.items() if first in table and second in table}
        groups = [_scaled(table, first, second, metric, results.sizes[name].n) for name, table in shared.items()]
        groups = [group[np.isfinite(group)] for group in groups]
        splits = np.concatenate([np.empty(0), *groups])
        if not len(splits):
            continue
        low, high = bootstrap(groups, mean, mean)
        average = float(np.mean([group.mean() for group in groups if len(group)]))
        wins = (int((splits < 0.0).sum()), int((splits > 0.0).sum()))
        sets = sum(len(group) > 0 for group in groups)
        rows.append((metric.name, first, second, sets, len(splits), *wins, average, low, high))
    names = ["metric", "method", "other", "datasets", "splits", "wins", "losses", "difference", "low", "high"]
    return pd.DataFrame(rows, columns=names)


def _scaled(losses: pd.DataFrame, first: str, second: str, metric: Metric, n: int | None) -> FloatArray:
    """The differences on each split in per cent of what can be gained there; NaN where nothing can."""
    gain = metric.constant(n) - losses.replace([math.inf, -math.inf], math.nan).min(axis=1).to_numpy()
    difference = (losses[first] - losses[second]).to_numpy()
    scaled: FloatArray = 100.0 * difference / np.where(gain > 0.0, gain, math.nan)
    return scaled
