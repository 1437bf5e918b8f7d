"""The tables of a report: all of them, those of verdicts, and those of runs. `docs/report.md` says what they mean."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from nearexact.bench.analysis import verdicts
from nearexact.bench.analysis.estimates import estimates
from nearexact.bench.analysis.points import KEY
from nearexact.bench.analysis.results import Results
from nearexact.bench.report import table_format
from nearexact.bench.report.compute_tables import area_tables, profile_table, target_table
from nearexact.bench.report.metric_tables import (
    HEADINGS,
    best_table,
    checkpoint_table,
    final_table,
    labels,
    pairwise_table,
    paper_table,
    statuses,
)
from nearexact.bench.report.table_cells import with_interval
from nearexact.bench.report.table_format import Format, ReportTable, cost, significant, whole

VERDICT_HEADINGS = HEADINGS | {
    "gap_per_point": "gap per point", "m": "M", "linear_as_good": "linear as good?", "basis": "judged by",
    "near_exact": "near-exact", "seeds_near_exact": "seeds near-exact", "not_reached": "not reached",
    "no_better_than_noise": "no better than noise", "no_result": "no result", "failed_runs": "failed runs",
}  # fmt: skip
RUN_HEADINGS = HEADINGS | {
    "status": "status", "budget_seconds": "budget s", "training_seconds": "training s", "git_commit": "commit",
    "evaluation_seconds": "evaluation s", "late_points": "points beyond the budget",
}  # fmt: skip


def all_tables(
    results: Results, *, with_published: bool = False, columns: Sequence[str] = (), methods: Sequence[str] = ()
) -> list[ReportTable]:
    """Every table, the verdicts first; with `columns` or `methods` also one of these alone, for a paper."""
    judged = verdicts.run_verdicts(results)
    near = verdicts.near_exactness(results, judged)
    final = final_table(results)
    chosen = [paper_table(results, final, near, columns, methods)] if columns or methods else []
    tables = [
        near_exact_counts(results, near, judged),
        near_exactness(results, near),
        *(checkpoint_table(results, metric, with_published=with_published) for metric in results.metrics),
        *chosen,
        final,
        best_table(results),
        pairwise_table(results),
        target_table(results),
        profile_table(results),
        *area_tables(results),
    ]
    estimated = estimates(results)
    if len(estimated):
        tables.append(estimate_table(results, estimated))
    if results.fidelity:
        tables.append(fidelity_table(results))
    if results.exchanged:
        tables.append(exchange_table(results))
    if len(results.failed):
        tables.append(failure_table(results))
    return [*tables, run_table(results)]


# ---- near-exactness --------------------------------------------------------------------------------------------------


def near_exact_counts(results: Results, near: pd.DataFrame, judged: pd.DataFrame) -> ReportTable:
    """For how many data sets each method is near-exact."""
    frame = verdicts.near_exact_counts(results, near, judged)
    failed = results.failed["method"].value_counts()
    frame.insert(len(frame.columns), "failed_runs", [int(failed.get(method, 0)) for method in frame["method"]])
    ends = [f"{name}_{end}" for name in ("near_exact", "seconds") for end in ("low", "high")]
    bounds, frame = frame[ends], frame.drop(columns=ends)
    formats = dict.fromkeys(("seconds", "flops", "peak_memory_mb"), cost) | labels(results)
    headings = VERDICT_HEADINGS | {"seconds": "median s", "flops": "median FLOPs", "peak_memory_mb": "median MB"}
    title = (
        "On how many data sets each method is near-exact, and the median of what that took;"
        " 95 % intervals over data sets and seeds"
    )
    shown = ReportTable("", "", frame, formats=formats).texts()
    for name, show in (("near_exact", whole), ("seconds", cost)):
        parts = (shown[name], bounds[f"{name}_low"], bounds[f"{name}_high"])
        shown[name] = [with_interval(text, low, high, show) for text, low, high in zip(*parts, strict=True)]
    return ReportTable("near_exact_counts", title, frame, headings, shown=shown, details=bounds)


def near_exactness(results: Results, near: pd.DataFrame) -> ReportTable:
    """The verdict on each method on each data set."""
    frame = near.copy()
    states = statuses(results)
    frame["seeds_near_exact"] = [f"{a} of {b}" for a, b in zip(near["seeds_near_exact"], near["seeds"], strict=True)]
    frame = frame.drop(columns="seeds")
    frame["status"] = [states[pair] for pair in zip(frame["dataset"], frame["method"], strict=True)]
    formats = {"n": whole, "inputs": whole, "m": whole, "gap_per_point": significant}
    formats |= dict.fromkeys(("seconds", "flops", "peak_memory_mb"), cost)
    title = "Near-exactness of each method on each data set, medians over the seeds that are near-exact"
    return ReportTable("near_exactness", title, frame, VERDICT_HEADINGS, formats | labels(results))


# ---- runs ------------------------------------------------------------------------------------------------------------


def estimate_table(results: Results, estimated: pd.DataFrame) -> ReportTable:
    """Estimates of the log marginal likelihood next to its exact value at the same hyperparameters."""
    losses = ("negative_lml_estimate", "negative_lml_exact")
    headings = HEADINGS | {
        losses[0]: "−LML, estimated", losses[1]: "−LML, exact", "excess_per_point": "LML too high by, per point",
        "largest_excess": "largest on the way", "points": "points",
    }  # fmt: skip
    formats = dict.fromkeys(losses, table_format.number(2, 1e7))
    formats |= dict.fromkeys(("excess_per_point", "largest_excess"), significant)
    title = "Estimates of −LML next to the exact value at the same hyperparameters, at the end of each run"
    return ReportTable("estimates", title, estimated, headings, formats | labels(results))


def fidelity_table(results: Results) -> ReportTable:
    """How faithful the approximations are, as `bench fidelity` has recorded."""
    return _records("fidelity", "Fidelity to the exact GP", results, results.fidelity, (*KEY, "diagnosis"))


def exchange_table(results: Results) -> ReportTable:
    """Two methods with each other's hyperparameters, as `bench fidelity --exchange` has recorded."""
    first = ("dataset", "seed", "method", "hyperparameters_of")
    return _records("exchange", "Methods with each other's hyperparameters", results, results.exchanged, first)


def _records(
    name: str, title: str, results: Results, records: list[dict[str, Any]], first: Sequence[str]
) -> ReportTable:
    """A table of records that other commands have kept, with these columns first."""
    frame = pd.DataFrame(records)
    first = [column for column in first if column in frame]
    frame = frame[[*first, *(column for column in frame if column not in first)]]
    capitals = {"lml": "LML", "nlpd": "NLPD", "rmse": "RMSE", "crps": "CRPS", "kl": "KL"}
    headings = {column: " ".join(capitals.get(word, word) for word in column.split("_")) for column in frame}
    headings["dataset"] = HEADINGS["dataset"]
    label, known = labels(results)["method"], set(results.runs["method"])
    formats: dict[str, Format] = {column: significant for column in frame if column not in first}
    for column in ("method", "hyperparameters_of"):
        formats[column] = lambda name: label(name) if name in known else name  # a run that is no longer there
    return ReportTable(name, title, frame, headings, formats)


def failure_table(results: Results) -> ReportTable:
    """The runs that failed, and why."""
    columns = ["status", "reason", "training_seconds", "evaluation_seconds", "points"]
    frame = results.failed[[*KEY, *columns]].reset_index(drop=True)
    formats = {"training_seconds": significant, "evaluation_seconds": significant, "points": whole}
    return ReportTable("failures", "Runs that failed", frame, RUN_HEADINGS, formats | labels(results))


def run_table(results: Results) -> ReportTable:
    """All runs, and on which machine with which versions."""
    seconds = ["training_seconds", "evaluation_seconds", "peak_memory_mb", "budget_seconds"]
    runs, late = results.runs, results.points[results.points["over_budget"]].groupby(KEY).size().to_dict()
    frame = runs[[*KEY, "status", "reason", "points", *seconds, "threads", "device", "processor", "git_commit"]].copy()
    keys = runs[KEY].itertuples(index=False, name=None)
    frame.insert(frame.columns.get_loc("points") + 1, "late_points", [late.get(key, 0) for key in keys])
    frame["versions"] = [", ".join(f"{k} {v}" for k, v in versions.items()) for versions in runs["versions"]]
    frame["settings"] = [", ".join(f"{k}={v}" for k, v in settings.items()) for settings in runs["settings"]]
    formats = {"points": whole, "threads": whole} | dict.fromkeys(seconds, significant)
    return ReportTable("runs", "All runs", frame, RUN_HEADINGS, formats | labels(results))
