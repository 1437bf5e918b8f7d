"""Tables of what methods spend: to come near the best, over the whole curve, and next to the fastest."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd

from nearexact.bench.analysis import profiles
from nearexact.bench.analysis.areas import areas
from nearexact.bench.analysis.results import Results
from nearexact.bench.analysis.statistics import bootstrap, mean
from nearexact.bench.analysis.targets import compute_to_target, frozen_losses
from nearexact.bench.report import table_format
from nearexact.bench.report.metric_tables import HEADINGS, METRIC_LABELS, labels, pairs, statuses
from nearexact.bench.report.table_cells import LATE, mean_cell, with_interval
from nearexact.bench.report.table_format import Format, ReportTable, cost
from nearexact.typing import FloatArray

TARGETS = (0.01, 0.05)
SHORT_COSTS = {"elapsed": "time", "flops": "FLOPs", "peak_memory_mb": "memory", "predict_seconds": "prediction"}
SPENT = {"elapsed": "seconds", "flops": "flops", "peak_memory_mb": "mb"}  # what the cells of targets are called
SHARE: Format = table_format.number(3, 1e4)


def target_table(results: Results) -> ReportTable:
    """What it took to come within 1 % and 5 % of the best: medians over runs, those that never did included."""
    states = statuses(results)
    counts = results.runs.groupby(["dataset", "method"]).size().to_dict()
    keys = [
        (dataset, metric.name, method)
        for dataset in sorted(results.sizes)
        for metric in results.metrics
        for name, method in pairs(results)
        if name == dataset
    ]
    frozen = _frozen_splits(results)
    rows: dict[tuple[str, str, str], dict[str, object]] = {
        key: {
            "dataset": key[0], "metric": METRIC_LABELS[key[1]], "method": key[2], "status": states[key[0], key[2]],
            "frozen": frozen[key[0], key[1]],
        }
        for key in keys
    }  # fmt: skip
    texts = {key: dict(row) for key, row in rows.items()}
    headings = HEADINGS | {"frozen": "frozen splits"}
    for share in TARGETS:
        percent = f"{100 * share:.0f}"
        for metric in results.metrics:
            needed = compute_to_target(results, metric, share)
            groups = dict(iter(needed.groupby(["dataset", "method"])))
            for key in [key for key in keys if key[1] == metric.name]:
                pair = (key[0], key[2])
                numbers, shown = _target_cells(groups.get(pair), counts[pair], percent)
                rows[key] |= numbers
                texts[key] |= shown
        headings |= {f"reached_{percent}": f"within {percent} %"}
        headings |= {f"{SPENT[c]}_{percent}": f"{HEADINGS[c]} to {percent} %" for c in SPENT}
    shown_frame = pd.DataFrame(texts.values())
    shown_frame["method"] = shown_frame["method"].map(labels(results)["method"])
    title = "What it took to come within 1 % and 5 % of the best, median and range over seeds"
    return ReportTable("compute_to_target", title, pd.DataFrame(rows.values()), headings, shown=shown_frame)


def _frozen_splits(results: Results) -> dict[tuple[str, str], str]:
    """On how many splits the best is a frozen reference, for each data set and metric, such as "2 of 3"."""
    splits = results.runs.groupby("dataset")["seed"].nunique()
    return {
        (dataset, metric.name): f"{sum(name == dataset for name, _ in frozen_losses(results, metric))} of {count}"
        for metric in results.metrics
        for dataset, count in splits.items()
    }


def _target_cells(needed: pd.DataFrame | None, runs: int, percent: str) -> tuple[dict[str, object], dict[str, object]]:
    """The numbers and the texts of what the runs of a method needed."""
    reached = 0 if needed is None else int(np.isfinite(needed["elapsed"]).sum())
    is_late = needed is not None and bool(needed["over_budget"].any())
    numbers: dict[str, object] = {f"reached_{percent}": f"{reached} of {runs}"}
    texts = dict(numbers)
    for column, name in SPENT.items():
        values = np.full(runs, math.inf)
        if needed is not None:
            values[: len(needed)] = needed[column]
        middle = float(np.median(values))
        numbers[f"{name}_{percent}"] = middle
        text = with_interval(cost(middle), values.min(), values.max(), cost) if runs > 1 and reached else cost(middle)
        texts[f"{name}_{percent}"] = f"{text} {LATE}" if is_late else text
    return numbers, texts


def area_tables(results: Results) -> list[ReportTable]:
    """The area under the curve, for each method over all data sets and for each data set."""
    values = areas(results)
    values["column"] = values["metric"].map(METRIC_LABELS) + " over " + values["cost"].map(SHORT_COSTS)
    columns = [f"{metric.label} over {short}" for short in SHORT_COSTS.values() for metric in results.metrics]
    groups = {key: own["area"].to_numpy() for key, own in values.groupby(["dataset", "method", "column"])}
    title = "Area under the curve: 0 is the best from the beginning, 1 never better than the constant predictor"
    return [_area_by_method(results, groups, columns, title), _area_by_dataset(results, groups, columns, title)]


Groups = dict[tuple[str, str, str], FloatArray]  # by data set, method and column


def _area_by_dataset(results: Results, groups: Groups, columns: list[str], title: str) -> ReportTable:
    states, runs = statuses(results), results.runs.groupby(["dataset", "method"]).size().to_dict()
    cells = [[_known(groups, (*pair, column)) for column in columns] for pair in pairs(results)]
    made = [
        [mean_cell(one, runs[pair], SHARE, table_format.NOT_AVAILABLE) for one in row]
        for pair, row in zip(pairs(results), cells, strict=True)
    ]
    label, names = labels(results)["method"], ["dataset", "method", "status", *columns]
    numbers = [[*p, states[p], *(c.value for c in row)] for p, row in zip(pairs(results), made, strict=True)]
    texts = [
        [p[0], label(p[1]), states[p], *(c.text for c in row)] for p, row in zip(pairs(results), made, strict=True)
    ]
    errors = pd.DataFrame([[c.error for c in row] for row in made], columns=[f"{c}_standard_error" for c in columns])
    return ReportTable(
        "area_by_dataset",
        f"{title}; mean ± standard error over seeds",
        pd.DataFrame(numbers, columns=names),
        HEADINGS,
        shown=pd.DataFrame(texts, columns=names),
        details=errors,
    )


def _area_by_method(results: Results, groups: Groups, columns: list[str], title: str) -> ReportTable:
    methods = results.ordered(results.runs["method"])
    sets = {name: [dataset for dataset, method in pairs(results) if method == name] for name in methods}
    numbers, texts, bounds = [], [], []
    label = labels(results)["method"]
    for method in methods:
        row: list[object] = [method, len(sets[method])]
        shown: list[object] = [label(method), str(len(sets[method]))]
        ends: list[float] = []
        for column in columns:
            parts = [_known(groups, (dataset, method, column)) for dataset in sets[method]]
            known = [part for part in parts if len(part)]
            value = float(np.mean([part.mean() for part in known])) if known else math.nan
            low, high = bootstrap(known, mean, mean)
            fewer = f" ({len(known)} of {len(parts)})" if 0 < len(known) < len(parts) else ""
            row.append(value)
            shown.append(with_interval(SHARE(value), low, high, SHARE) + fewer)
            ends += [low, high]
        numbers.append(row)
        texts.append(shown)
        bounds.append(ends)
    names = ["method", "datasets", *columns]
    return ReportTable(
        "area",
        f"{title}; mean over data sets, 95 % intervals over data sets and seeds",
        pd.DataFrame(numbers, columns=names),
        HEADINGS,
        shown=pd.DataFrame(texts, columns=names),
        details=pd.DataFrame(bounds, columns=[f"{c}_{end}" for c in columns for end in ("low", "high")]),
    )


def _known(groups: Groups, key: tuple[str, str, str]) -> FloatArray:
    """The areas that are known."""
    values = groups.get(key, np.empty(0))
    return values[~np.isnan(values)]


def profile_table(results: Results) -> ReportTable:
    """On which share of the splits a method is within a factor of the fastest."""
    factors = np.array(profiles.FACTORS)
    names = [f"{factor:g}x" if math.isfinite(factor) else "ever" for factor in factors]
    numbers, texts, bounds = [], [], []
    label = labels(results)["method"]
    for metric in results.metrics:
        table = profiles.ratios(results, metric)
        for method in results.ordered(table["method"]):
            shares, low, high = profiles.profile(table, method, factors)
            head = [METRIC_LABELS[metric.name], method, int((table["method"] == method).sum())]
            numbers.append([*head, *shares])
            cells = [
                with_interval(f"{s:.2f}", a, b, "{:.2f}".format) for s, a, b in zip(shares, low, high, strict=True)
            ]
            texts.append([head[0], label(method), str(head[2]), *cells])
            bounds.append([end for ends in zip(low, high, strict=True) for end in ends])
    columns = ["metric", "method", "splits", *names]
    headings = HEADINGS | {name: f"≤ {name.removesuffix('x')} × the fastest" for name in names} | {"ever": "at all"}
    title = (
        "Performance profiles: share of splits on which the training time to within"
        f" {100 * profiles.TARGET:.0f} % of the best is at most so many times that of the fastest method;"
        " 95 % intervals over data sets and seeds"
    )
    return ReportTable(
        "performance_profiles",
        title,
        pd.DataFrame(numbers, columns=columns),
        headings,
        shown=pd.DataFrame(texts, columns=columns),
        details=pd.DataFrame(bounds, columns=[f"{name}_{end}" for name in names for end in ("low", "high")]),
    )
