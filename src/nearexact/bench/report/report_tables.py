"""The tables of a report: what each of them holds. `docs/report.md` says what they mean."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pandas as pd

from nearexact.bench.analysis import published, verdicts
from nearexact.bench.analysis.areas import areas
from nearexact.bench.analysis.checkpoints import FINAL
from nearexact.bench.analysis.estimates import estimates
from nearexact.bench.analysis.families import ordered
from nearexact.bench.analysis.losses import COSTS, METRICS, Metric
from nearexact.bench.analysis.points import COVERAGE, KEY
from nearexact.bench.analysis.results import Results
from nearexact.bench.analysis.targets import compute_to_target
from nearexact.bench.report import table_format
from nearexact.bench.report.method_styles import styles
from nearexact.bench.report.table_format import Format, ReportTable, cost, significant, whole
from nearexact.bench.store import FAILED_STATUSES

SECONDS = "(seconds)"  # in place of a method: the row with the times of the checkpoints
PUBLISHED_SECONDS = f"(seconds, {published.NOTE})"
TARGETS = (0.01, 0.05)
SHOWN = {"lml": table_format.number(0, 1e7), "rmse": table_format.number(3, 1e4), "nlpd": table_format.number(3, 1e4)}
HEADINGS = {
    "dataset": "data set", "method": "method", "status": "runs", "inputs": "d", "n": "n", "verdict": "verdict",
    "gap_per_point": "gap per point", "m": "M", "seconds": "seconds", "flops": "FLOPs", "peak_memory_mb": "MB",
    "linear_as_good": "linear as good?", "basis": "judged by", "near_exact": "near-exact", "datasets": "data sets",
    "lml": "−LML", "rmse": "RMSE", "nlpd": "NLPD", "coverage_50": "in 50 %", "coverage_90": "in 90 %",
    "coverage_95": "in 95 %", "elapsed": "seconds", "predict_seconds": "predict s", "metric": "metric",
    "seeds_near_exact": "seeds near-exact", "budget_seconds": "budget s", "training_seconds": "training s",
    "not_reached": "not reached", "no_better_than_noise": "no better than noise", "no_result": "no result",
    "failed_runs": "failed runs", "evaluation_seconds": "evaluation s",
}  # fmt: skip
SHORT_COSTS = {"elapsed": "time", "flops": "FLOPs", "peak_memory_mb": "memory", "predict_seconds": "prediction"}
METRIC_NAMES = {"lml": "LML", "rmse": "RMSE", "nlpd": "NLPD"}


def all_tables(results: Results, *, with_published: bool = False) -> list[ReportTable]:
    """Every table, the verdicts first."""
    near = verdicts.near_exactness(results)
    tables = [
        near_exact_counts(results, near),
        near_exactness(results, near),
        *(checkpoint_table(results, metric, with_published=with_published) for metric in METRICS),
        final_table(results),
        target_table(results),
        *area_tables(results),
    ]
    estimated = estimates(results)
    if len(estimated):
        tables.append(estimate_table(estimated))
    if results.fidelity:
        tables.append(fidelity_table(results))
    if len(results.failed):
        tables.append(failure_table(results))
    return [*tables, run_table(results)]


def pairs(results: Results) -> list[tuple[str, str]]:
    """Every data set with every method that was run on it, in the order of the tables."""
    runs = results.runs
    return [
        (dataset, method)
        for dataset in sorted(runs["dataset"].unique())
        for method in ordered(runs.loc[runs["dataset"] == dataset, "method"])
    ]


def statuses(results: Results) -> dict[tuple[str, str], str]:
    """How the runs of each data set and method ended, such as "2 finished, 1 error"."""
    groups = results.runs.groupby(["dataset", "method"])["status"]
    return {
        pair: ", ".join(f"{count} {name}" for name, count in sorted(Counter(status).items())) for pair, status in groups
    }


# ---- near-exactness --------------------------------------------------------------------------------------------------


def near_exact_counts(results: Results, near: pd.DataFrame) -> ReportTable:
    """For how many data sets each method is near-exact."""
    frame = verdicts.near_exact_counts(near)
    failed = results.failed["method"].value_counts()
    frame.insert(len(frame.columns), "failed_runs", [int(failed.get(method, 0)) for method in frame["method"]])
    formats = dict.fromkeys(("seconds", "flops", "peak_memory_mb"), cost)
    headings = HEADINGS | {"seconds": "median s", "flops": "median FLOPs", "peak_memory_mb": "median MB"}
    title = "On how many data sets each method is near-exact, and the median of what that took"
    return ReportTable("near_exact_counts", title, frame, headings, formats | _labels(frame))


def near_exactness(results: Results, near: pd.DataFrame) -> ReportTable:
    """The verdict on each method on each data set."""
    frame = near.copy()
    states = statuses(results)
    frame["seeds_near_exact"] = [f"{a} of {b}" for a, b in zip(near["seeds_near_exact"], near["seeds"], strict=True)]
    frame = frame.drop(columns="seeds")
    frame["status"] = [states[pair] for pair in zip(frame["dataset"], frame["method"], strict=True)]
    formats = {"n": whole, "inputs": whole, "m": whole, "gap_per_point": significant}
    formats |= dict.fromkeys(("seconds", "flops", "peak_memory_mb"), cost)
    title = "Near-exactness of each method on each data set"
    return ReportTable("near_exactness", title, frame, HEADINGS, formats | _labels(frame))


# ---- metrics ---------------------------------------------------------------------------------------------------------


def checkpoint_table(results: Results, metric: Metric, *, with_published: bool = False) -> ReportTable:
    """The metric at the checkpoints and at the end: means over seeds, in rows as in the paper's appendix."""
    marks = results.checkpoints
    groups = results.checkpoint_values.groupby(["dataset", "method", "checkpoint"], sort=False)[metric.name]
    means = {key: (float(v.to_numpy().mean()), len(v)) for key, v in groups}  # a nan among them shows
    times = {(row.dataset, row.m): row.seconds for row in marks.itertuples()}
    paper, published_times = published.checkpoints(metric.name, results.sizes) if with_published else ({}, {})
    columns = sorted({*marks["m"], *(m for _, _, m in paper if m != FINAL)})
    states, runs = statuses(results), results.runs.groupby(["dataset", "method"])["status"]
    has_failed = {pair: bool(status.isin(FAILED_STATUSES).all()) for pair, status in runs}
    counts = {pair: len(status) for pair, status in runs}
    label = {method: style.label for method, style in styles(results.runs["method"]).items()}
    show = SHOWN[metric.name]
    numbers: list[list[object]] = []
    texts: list[list[str]] = []

    def add(dataset: str, method: str, shown: str, status: str, cells: list[tuple[float, str]]) -> None:
        size = results.sizes[dataset]
        numbers.append([dataset, size.n, size.inputs, method, status, *(value for value, _ in cells)])
        texts.append([dataset, whole(size.n), whole(size.inputs), shown, status, *(text for _, text in cells)])

    for dataset in sorted(results.sizes):
        add(dataset, SECONDS, SECONDS, "", _moments(dataset, columns, times))
        for method in [method for name, method in pairs(results) if name == dataset]:
            missing = "failed" if has_failed[dataset, method] else table_format.NOT_AVAILABLE
            cells = []
            for m in [*columns, FINAL]:
                if m != FINAL and (dataset, m) not in times:
                    cells.append((math.nan, ""))  # no such checkpoint here
                    continue
                value, seeds = means.get((dataset, method, m), (math.nan, 0))
                text = "nan" if seeds and math.isnan(value) else show(value) if seeds else missing
                partly = f" ({seeds} of {counts[dataset, method]})" if 0 < seeds < counts[dataset, method] else ""
                cells.append((value, text + partly))
            add(dataset, method, label[method], states[dataset, method], cells)
        printed = ordered({method for name, method, _ in paper if name == dataset})
        if printed:
            add(dataset, PUBLISHED_SECONDS, PUBLISHED_SECONDS, "", _moments(dataset, columns, published_times))
        for method in printed:
            values = [paper.get((dataset, method, m)) for m in [*columns, FINAL]]
            cells = [(math.nan, "") if value is None else (value, _published_cell(show, value)) for value in values]
            name = f"({published.NOTE})"
            add(dataset, f"{method} {name}", f"{styles([method])[method].label} {name}", "", cells)
    names = ["dataset", "n", "inputs", "method", "status", *(f"M={m}" for m in columns), FINAL]
    title = f"{metric.label} at the checkpoints, mean over seeds"
    return ReportTable(
        metric.name, title, pd.DataFrame(numbers, columns=names), HEADINGS, shown=pd.DataFrame(texts, columns=names)
    )


def _moments(dataset: str, columns: list[int], times: dict[tuple[str, int], float]) -> list[tuple[float, str]]:
    seconds = [times.get((dataset, m), math.nan) for m in columns]
    return [*((s, significant(s) if math.isfinite(s) else "") for s in seconds), (math.nan, "")]


def _published_cell(show: Format, value: float) -> str:
    return "nan" if math.isnan(value) else show(value)


def final_table(results: Results) -> ReportTable:
    """What every method ended with: metrics, calibration, costs; means over seeds."""
    columns = ["elbo", "rmse", "nlpd", *COVERAGE, *COSTS]
    means = results.final.groupby(["dataset", "method"])[columns].agg(lambda v: v.to_numpy().mean())
    states = statuses(results)
    frame = pd.DataFrame(pairs(results), columns=["dataset", "method"])
    frame["status"] = [states[pair] for pair in zip(frame["dataset"], frame["method"], strict=True)]
    index = pd.MultiIndex.from_frame(frame[["dataset", "method"]])
    means = means.reindex(index) if len(means) else pd.DataFrame(math.nan, index=index, columns=columns)
    frame["lml"] = -means["elbo"].to_numpy(dtype=float)
    for column in columns[1:]:
        frame[column] = means[column].to_numpy(dtype=float)
    formats = SHOWN | {name: table_format.number(3, 10.0) for name in COVERAGE} | dict.fromkeys(COSTS, significant)
    title = "What every method ended with, mean over seeds"
    return ReportTable("final", title, frame, HEADINGS, formats | _labels(frame))


# ---- compute ---------------------------------------------------------------------------------------------------------


def target_table(results: Results) -> ReportTable:
    """What it took to come within 1 % and 5 % of the best: medians over runs, those that never did included."""
    names = {"elapsed": "seconds", "flops": "flops", "peak_memory_mb": "mb"}
    states = statuses(results)
    counts = results.runs.groupby(["dataset", "method"]).size().to_dict()
    rows: dict[tuple[str, str, str], dict[str, object]] = {
        (dataset, metric.name, method): {
            "dataset": dataset, "metric": METRIC_NAMES[metric.name], "method": method, "status": states[dataset, method]
        }
        for dataset in sorted(results.sizes) for metric in METRICS for name, method in pairs(results) if name == dataset
    }  # fmt: skip
    headings = dict(HEADINGS)
    for share in TARGETS:
        percent = f"{100 * share:.0f}"
        for metric in METRICS:
            needed = compute_to_target(results, metric, share)
            groups = dict(iter(needed.groupby(["dataset", "method"])))
            for (dataset, name, method), row in rows.items():
                if name == metric.name:
                    row |= _target_cells(groups.get((dataset, method)), counts[dataset, method], percent, names)
        headings |= {f"reached_{percent}": f"within {percent} %"}
        headings |= {f"{names[c]}_{percent}": f"{HEADINGS[c]} to {percent} %" for c in names}
    frame = pd.DataFrame(rows.values())
    formats = {f"{name}_{100 * share:.0f}": cost for share in TARGETS for name in names.values()}
    title = "What it took to come within 1 % and 5 % of the best, median over seeds"
    return ReportTable("compute_to_target", title, frame, headings, formats | _labels(frame))


def _target_cells(needed: pd.DataFrame | None, runs: int, percent: str, names: dict[str, str]) -> dict[str, object]:
    reached = 0 if needed is None else int(np.isfinite(needed["elapsed"]).sum())
    cells: dict[str, object] = {f"reached_{percent}": f"{reached} of {runs}"}
    for column, name in names.items():
        values = [] if needed is None else needed[column].tolist()
        cells[f"{name}_{percent}"] = float(np.median([*values, *[math.inf] * (runs - len(values))]))
    return cells


def area_tables(results: Results) -> list[ReportTable]:
    """The area under the curve, for each method over all data sets and for each data set."""
    values = areas(results)
    values["column"] = values["metric"].map(METRIC_NAMES) + " over " + values["cost"].map(SHORT_COSTS)
    columns = [f"{name} over {short}" for short in SHORT_COSTS.values() for name in METRIC_NAMES.values()]
    by_pair = values.pivot_table(index=["dataset", "method"], columns="column", values="area", dropna=False)
    by_pair = by_pair.reindex(pd.MultiIndex.from_tuples(pairs(results), names=["dataset", "method"])).reindex(
        columns=columns
    )
    states = statuses(results)
    methods = ordered(results.runs["method"])
    means = by_pair.groupby("method").mean().reindex(methods).reset_index()
    means.insert(1, "datasets", [sum(method == name for _, method in pairs(results)) for name in methods])
    each = by_pair.reset_index()
    each.insert(2, "status", [states[pair] for pair in pairs(results)])
    formats = {column: table_format.number(3, 1e4) for column in columns}
    total = "Area under the curve: 0 is the best from the beginning, 1 never better than the constant predictor"
    return [
        ReportTable("area", f"{total}; mean over data sets", means, HEADINGS, formats | _labels(means)),
        ReportTable("area_by_dataset", total, each, HEADINGS, formats | _labels(each)),
    ]


# ---- runs ------------------------------------------------------------------------------------------------------------


def estimate_table(estimated: pd.DataFrame) -> ReportTable:
    """Estimates of the log marginal likelihood next to its exact value at the same hyperparameters."""
    headings = HEADINGS | {
        "estimate": "−LML, estimated", "exact": "−LML, exact", "excess_per_point": "LML too high by, per point",
        "largest_excess": "largest on the way", "points": "points",
    }  # fmt: skip
    formats = {"estimate": table_format.number(2, 1e7), "exact": table_format.number(2, 1e7)}
    formats |= dict.fromkeys(("excess_per_point", "largest_excess"), significant)
    title = "Estimates of −LML next to the exact value at the same hyperparameters, at the end of each run"
    return ReportTable("estimates", title, estimated, headings, formats | _labels(estimated))


def fidelity_table(results: Results) -> ReportTable:
    """How faithful the approximations are, as `bench fidelity` has recorded."""
    frame = pd.DataFrame(results.fidelity)
    first = [name for name in (*KEY, "diagnosis") if name in frame]
    frame = frame[[*first, *(name for name in frame if name not in first)]]
    capitals = {"lml": "LML", "nlpd": "NLPD", "rmse": "RMSE", "kl": "KL"}
    headings = {name: " ".join(capitals.get(word, word) for word in name.split("_")) for name in frame}
    headings["dataset"] = HEADINGS["dataset"]
    formats = {name: significant for name in frame if name not in first}
    return ReportTable("fidelity", "Fidelity to the exact GP", frame, headings, formats | _labels(frame))


def failure_table(results: Results) -> ReportTable:
    """The runs that failed, and why."""
    frame = results.failed[[*KEY, "status", "reason", "training_seconds", "evaluation_seconds", "points"]].reset_index(
        drop=True
    )
    headings = HEADINGS | {"status": "status"}
    formats = {"training_seconds": significant, "evaluation_seconds": significant, "points": whole}
    return ReportTable("failures", "Runs that failed", frame, headings, formats | _labels(frame))


def run_table(results: Results) -> ReportTable:
    """All runs, and on which machine with which versions."""
    columns = [
        "status",
        "reason",
        "points",
        "training_seconds",
        "evaluation_seconds",
        "peak_memory_mb",
        "budget_seconds",
        "threads",
        "device",
    ]
    frame = results.runs[[*KEY, *columns, "processor", "git_commit"]].copy()
    frame["versions"] = [", ".join(f"{k} {v}" for k, v in versions.items()) for versions in results.runs["versions"]]
    frame["settings"] = [", ".join(f"{k}={v}" for k, v in settings.items()) for settings in results.runs["settings"]]
    formats = {"points": whole, "threads": whole}
    formats |= dict.fromkeys(
        ("training_seconds", "evaluation_seconds", "peak_memory_mb", "budget_seconds"), significant
    )
    headings = HEADINGS | {"status": "status", "git_commit": "commit"}
    return ReportTable("runs", "All runs", frame, headings, formats | _labels(frame))


def _labels(frame: pd.DataFrame) -> dict[str, Format]:
    """The format of the column of methods: readers see labels, CSV files keep names."""
    label = styles(frame["method"]) if "method" in frame else {}
    return {"method": lambda name: label[name].label}
