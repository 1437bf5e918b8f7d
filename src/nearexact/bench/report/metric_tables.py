"""Tables of losses: at the checkpoints, at the end, a choice of these for a paper, and methods against each other."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pandas as pd

from nearexact.bench.analysis import published
from nearexact.bench.analysis.checkpoints import FINAL
from nearexact.bench.analysis.comparisons import against_best, pairwise
from nearexact.bench.analysis.losses import COSTS, METRICS, Metric
from nearexact.bench.analysis.points import COVERAGE
from nearexact.bench.analysis.results import Results
from nearexact.bench.report import table_format
from nearexact.bench.report.method_styles import styles_of
from nearexact.bench.report.table_cells import LATE_NOTE, OVER_BUDGET, Cell, mean_cell, with_interval
from nearexact.bench.report.table_format import Format, ReportTable, significant, whole
from nearexact.bench.store import FAILED_STATUSES

SECONDS = "(seconds)"  # in place of a method: the row with the times of the checkpoints
PUBLISHED_SECONDS = f"(seconds, {published.NOTE})"
SHOWN: dict[str, Format] = {"negative_lml": table_format.number(0, 1e7)} | dict.fromkeys(
    ("rmse", "nlpd", "crps"), table_format.number(3, 1e4)
)
METRIC_LABELS = {metric.name: metric.label for metric in METRICS}
HEADINGS = {
    "dataset": "data set", "status": "runs", "inputs": "d", **METRIC_LABELS, "coverage_50": "in 50 %",
    "coverage_90": "in 90 %", "coverage_95": "in 95 %", "elapsed": "seconds", "flops": "FLOPs", "peak_memory_mb": "MB",
    "predict_seconds": "predict s", "datasets": "data sets",
}  # fmt: skip


def pairs(results: Results) -> list[tuple[str, str]]:
    """Every data set with every method that was run on it, in the order of the tables."""
    runs = results.runs
    return [
        (dataset, method)
        for dataset in sorted(runs["dataset"].unique())
        for method in results.ordered(runs.loc[runs["dataset"] == dataset, "method"])
    ]


def statuses(results: Results) -> dict[tuple[str, str], str]:
    """How the runs of each data set and method ended, such as "2 finished, 1 error"."""
    groups = results.runs.groupby(["dataset", "method"])["status"]
    return {
        pair: ", ".join(f"{count} {name}" for name, count in sorted(Counter(status).items())) for pair, status in groups
    }


def labels(results: Results) -> dict[str, Format]:
    """The format of columns of methods: readers see labels, CSV files keep names."""
    label = {name: style.label for name, style in styles_of(results).items()}
    return dict.fromkeys(("method", "other", "best"), lambda name: label.get(name, table_format.NOT_AVAILABLE))


def _missing(results: Results) -> dict[tuple[str, str], str]:
    """What a cell without a value says, for each data set and method."""
    failed = results.runs.groupby(["dataset", "method"])["status"].agg(lambda s: bool(s.isin(FAILED_STATUSES).all()))
    words = {pair: "failed" if has_failed else table_format.NOT_AVAILABLE for pair, has_failed in failed.items()}
    late = _pairs_of(results.points) - _pairs_of(results.counted)
    return words | dict.fromkeys(late, OVER_BUDGET)


def _pairs_of(points: pd.DataFrame) -> set[tuple[str, str]]:
    return set(zip(points["dataset"], points["method"], strict=True))


def _titled(title: str, results: Results) -> str:
    return f"{title}; {LATE_NOTE}" if results.with_over_budget and results.points["over_budget"].any() else title


# ---- at the checkpoints ----------------------------------------------------------------------------------------------


def checkpoint_table(results: Results, metric: Metric, *, with_published: bool = False) -> ReportTable:
    """The metric at the checkpoints and at the end: means over seeds, in rows as in the paper's appendix."""
    rows = _CheckpointRows(results, metric, with_published)
    for dataset in sorted(results.sizes):
        rows.add_dataset(dataset)
        rows.add_published(dataset)
    columns = [*(f"M={m}" for m in rows.columns), FINAL]
    names = ["dataset", "n", "inputs", "method", "status", *columns]
    details = pd.DataFrame(
        [[part for cell in cells for part in (cell.error, cell.runs)] for cells in rows.cells],
        columns=[f"{name}_{part}" for name in columns for part in ("standard_error", "runs")],
    )
    best = pd.DataFrame([[(*key, m) in rows.tied for m in rows.checkpoints] for key in rows.keys], columns=columns)
    return ReportTable(
        metric.name,
        _titled(f"{metric.label} at the checkpoints, mean ± standard error over seeds", results),
        pd.DataFrame([[*a, *(c.value for c in b)] for a, b in zip(rows.heads, rows.cells, strict=True)], columns=names),
        HEADINGS,
        shown=pd.DataFrame(
            [[*a, *(c.text for c in b)] for a, b in zip(rows.shown, rows.cells, strict=True)], columns=names
        ),
        details=details,
        bold=best,
    )


class _CheckpointRows:
    """The rows of a table of checkpoints, one after the other."""

    def __init__(self, results: Results, metric: Metric, with_published: bool) -> None:
        self.results, self.show = results, SHOWN[metric.name]
        marks = results.checkpoints
        self.times = {(row.dataset, row.m): row.seconds for row in marks.itertuples()}
        self.references = dict(zip(marks["dataset"], marks["reference"], strict=True))
        paper, moments = published.checkpoints(metric.name, results.sizes) if with_published else ({}, {})
        self.paper, self.published_times = paper, moments
        self.columns: list[int] = sorted({*marks["m"], *(m for _, _, m in paper if isinstance(m, int))})
        self.checkpoints: list[int | str] = [*self.columns, FINAL]
        values = results.checkpoint_values
        groups = values.groupby(["dataset", "method", "checkpoint"], sort=False)
        self.values = {key: own[metric.name].to_numpy(dtype=float) for key, own in groups}
        self.late = {key for key, own in groups if own["over_budget"].any()}
        self.tied = {
            (row.dataset, row.method, m)
            for m in self.checkpoints
            for row in against_best(results, metric, m).itertuples()
            if row.tied
        }
        self.label = {method: style.label for method, style in styles_of(results).items()}
        self.states, self.missing = statuses(results), _missing(results)
        self.counts = results.runs.groupby(["dataset", "method"]).size().to_dict()
        self.heads: list[list[object]] = []
        self.shown: list[list[str]] = []
        self.cells: list[list[Cell]] = []
        self.keys: list[tuple[str, str]] = []  # data set and method, which published rows do not have

    def add_dataset(self, dataset: str) -> None:
        reference = self.references.get(dataset)
        whose = ("", "") if reference is None else (f"M of {reference}", f"M of {self.label[reference]}")
        self._add(dataset, SECONDS, SECONDS, whose, self._moments(dataset, self.times))
        for method in [method for name, method in pairs(self.results) if name == dataset]:
            state = self.states[dataset, method]
            cells = [self._cell(dataset, method, m) for m in self.checkpoints]
            self._add(dataset, method, self.label[method], (state, state), cells)
            self.keys[-1] = (dataset, method)

    def add_published(self, dataset: str) -> None:
        printed = self.results.ordered({method for name, method, _ in self.paper if name == dataset})
        if printed:
            times = self._moments(dataset, self.published_times)
            self._add(dataset, PUBLISHED_SECONDS, PUBLISHED_SECONDS, ("", ""), times)
        for method in printed:
            values = [self.paper.get((dataset, method, m)) for m in self.checkpoints]
            cells = [Cell(math.nan, "") if value is None else self._published(value) for value in values]
            name = f"({published.NOTE})"
            self._add(dataset, f"{method} {name}", f"{self.label[method]} {name}", ("", ""), cells)

    def _add(self, dataset: str, method: str, label: str, status: tuple[str, str], cells: list[Cell]) -> None:
        size = self.results.sizes[dataset]
        self.heads.append([dataset, size.n, size.inputs, method, status[0]])
        self.shown.append([dataset, whole(size.n), whole(size.inputs), label, status[1]])
        self.cells.append(cells)
        self.keys.append(("", ""))

    def _cell(self, dataset: str, method: str, m: int | str) -> Cell:
        if m != FINAL and (dataset, m) not in self.times:
            return Cell(math.nan, "")  # no such checkpoint here
        key = (dataset, method, m)
        values, missing = self.values.get(key, np.empty(0)), self.missing[dataset, method]
        return mean_cell(values, self.counts[dataset, method], self.show, missing, is_late=key in self.late)

    def _published(self, value: float) -> Cell:
        return Cell(value, "nan" if math.isnan(value) else self.show(value))

    def _moments(self, dataset: str, times: dict[tuple[str, int], float]) -> list[Cell]:
        seconds = [times.get((dataset, m), math.nan) for m in self.columns]
        return [*(Cell(s, significant(s) if math.isfinite(s) else "") for s in seconds), Cell(math.nan, "")]


# ---- at the end ------------------------------------------------------------------------------------------------------


def final_table(results: Results) -> ReportTable:
    """What every method ended with: metrics, calibration, costs; means over seeds."""
    losses = {metric.name: metric.loss(results.final) for metric in results.metrics}
    final = results.final.assign(**losses)
    columns = [*losses, *COVERAGE, *COSTS]
    formats = SHOWN | {name: table_format.number(3, 10.0) for name in COVERAGE} | dict.fromkeys(COSTS, significant)
    groups = dict(iter(final.groupby(["dataset", "method"])))
    states, missing, keys = statuses(results), _missing(results), pairs(results)
    counts = results.runs.groupby(["dataset", "method"]).size().to_dict()
    label = labels(results)["method"]
    cells: list[list[Cell]] = []
    for pair in keys:
        own = groups.get(pair, final.iloc[:0])
        is_late = bool(own["over_budget"].any())
        recorded = [own[name].to_numpy(dtype=float) for name in columns]
        # What was never recorded is not there; a nan among numbers is a result.
        values = [
            np.empty(0) if np.isnan(one).all() and name not in losses else one
            for one, name in zip(recorded, columns, strict=True)
        ]
        cells.append([
            mean_cell(one, counts[pair], formats[name], missing[pair], is_late=is_late)
            for one, name in zip(values, columns, strict=True)
        ])  # fmt: skip
    names = ["dataset", "method", "status", *columns]
    numbers = [[*pair, states[pair], *(c.value for c in row)] for pair, row in zip(keys, cells, strict=True)]
    texts = [[p[0], label(p[1]), states[p], *(c.text for c in row)] for p, row in zip(keys, cells, strict=True)]
    details = [[part for cell in row for part in (cell.error, cell.runs)] for row in cells]
    return ReportTable(
        "final",
        _titled("What every method ended with, mean ± standard error over seeds", results),
        pd.DataFrame(numbers, columns=names),
        HEADINGS,
        shown=pd.DataFrame(texts, columns=names),
        details=pd.DataFrame(details, columns=[f"{c}_{part}" for c in columns for part in ("standard_error", "runs")]),
        bold=_best(results, keys),
    )


def _best(results: Results, keys: Sequence[tuple[str, str]], methods: Sequence[str] = ()) -> pd.DataFrame:
    """Which ends are the best of their data set, of these methods or of all: a row for each of the keys."""
    tied = {
        (row.dataset, row.method, metric.name)
        for metric in results.metrics
        for row in against_best(results, metric, methods=methods).itertuples()
        if row.tied
    }
    names = [metric.name for metric in results.metrics]
    return pd.DataFrame([[(*pair, name) in tied for name in names] for pair in keys], columns=names)


def paper_table(
    results: Results, final: ReportTable, near: pd.DataFrame, columns: Sequence[str], methods: Sequence[str]
) -> ReportTable:
    """A choice of the columns and rows of the final table, and of the verdicts; all of them where none is chosen.

    The best are those of the methods that are shown.
    """
    verdicts = dict(zip(zip(near["dataset"], near["method"], strict=True), near["verdict"], strict=True))
    keys = list(zip(final.frame["dataset"], final.frame["method"], strict=True))
    judged = [verdicts[key] for key in keys]
    frame, texts = final.frame.assign(verdict=judged), final.texts().assign(verdict=judged)
    choices = [name for name in frame if name not in ("dataset", "method")]
    _check("column", columns, choices)
    _check("method", methods, results.ordered(frame["method"]))
    keep = frame["method"].isin(methods).to_numpy() if methods else np.full(len(frame), True)
    chosen = ["dataset", "method", *(columns or [metric.name for metric in results.metrics])]
    assert final.details is not None
    parts = [f"{name}_{part}" for name in chosen for part in ("standard_error", "runs")]
    details = final.details.loc[keep, [name for name in parts if name in final.details]]
    return ReportTable(
        "paper", final.title, frame.loc[keep, chosen], HEADINGS, shown=texts.loc[keep, chosen], details=details,
        bold=_best(results, keys, methods)[keep],
    )  # fmt: skip


def _check(what: str, chosen: Sequence[str], choices: Sequence[str]) -> None:
    unknown = [name for name in chosen if name not in choices]
    if unknown:
        raise ValueError(f"there is no {what} {', '.join(map(repr, unknown))}: choose from {', '.join(choices)}")


# ---- against each other ----------------------------------------------------------------------------------------------


def best_table(results: Results) -> ReportTable:
    """Each method against the best on its data set, at the end."""
    frame = pd.concat([against_best(results, metric) for metric in results.metrics], ignore_index=True)
    formats: dict[str, Format] = {
        "difference": significant,
        "standard_error": significant,
        "p": significant,
        "metric": METRIC_LABELS.__getitem__,
    }
    headings = HEADINGS | {"standard_error": "standard error", "tied": "as good?"}
    title = "Each method against the best on its data set: mean difference over common splits, paired t-test"
    yes_no = {"tied": lambda tied: "yes" if tied else "no"}
    return ReportTable("against_best", title, frame, headings, formats | yes_no | labels(results))


def pairwise_table(results: Results) -> ReportTable:
    """Every two methods over all data sets."""
    frame = pd.concat([pairwise(results, metric) for metric in results.metrics], ignore_index=True)
    bounds = frame[["low", "high"]]
    frame = frame.drop(columns=["low", "high"])
    formats: dict[str, Format] = labels(results) | {"metric": METRIC_LABELS.__getitem__, "difference": significant}
    table = ReportTable("pairwise", "", frame, formats=formats)
    shown = table.texts()
    shown["difference"] = [
        with_interval(text, low, high, significant)
        for text, low, high in zip(shown["difference"], bounds["low"], bounds["high"], strict=True)
    ]
    headings = HEADINGS | {
        "other": "against", "wins": "splits won", "losses": "splits lost", "difference": "mean difference, %"
    }  # fmt: skip
    title = (
        "Every two methods at the end, in % of the way from the best to the constant predictor;"
        " below zero the first is better; 95 % intervals over data sets and seeds"
    )
    return ReportTable("pairwise", title, frame, headings, shown=shown, details=bounds)
