"""The page of a report, and all files that `nearexact bench report` writes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pandas as pd

from nearexact import files, pages
from nearexact.bench.analysis import published, references, verdicts
from nearexact.bench.analysis.families import BASELINES
from nearexact.bench.analysis.losses import LML
from nearexact.bench.analysis.results import Results, read
from nearexact.bench.report import report_tables
from nearexact.bench.report.chart_data import chart_data
from nearexact.bench.report.figures import write_figures
from nearexact.bench.report.method_styles import styles_of
from nearexact.bench.report.metric_tables import SECONDS
from nearexact.bench.report.table_format import ReportTable, significant
from nearexact.bench.store import FAILED_STATUSES
from nearexact.certificate import CONVERGED_CHANGE, CONVERGED_STEPS, NEAR_EXACT, SUBSET_CAUTION
from nearexact.evidence import CERTIFIED_GAP, FEWEST_AGREEING, MOST_LIKELY_MISSED
from nearexact.verdict_colours import Kind

PAGE = "report.html"
KINDS: dict[str, Kind] = {**verdicts.KINDS, **dict.fromkeys(map(str, FAILED_STATUSES), "bad")}  # of tags
TAGGED = ("verdict", "status")
WIDE = ("reason", "hyperparameters", "basis", "diagnosis")
NOT_ON_PAGE = (
    "versions",
    "processor",
    "git_commit",
    "settings",
)  # columns of the table of runs that the page shows once for all runs of a kind


def write_report(
    folder: Path,
    out: Path,
    *,
    with_published: bool = False,
    with_figures: bool = True,
    with_over_budget: bool = False,
    x: str = "elapsed",
    columns: Sequence[str] = (),
    methods: Sequence[str] = (),
    frozen: Path | None = None,
) -> list[Path]:
    """Write report.html, tables/ and, unless they are not wanted, figures/ over the cost `x`; the paths written.

    `columns` and `methods` choose what the table `paper` has, which is not written without them. `frozen` is a file of
    references, the package's own by default.
    """
    results = read(folder, with_over_budget=with_over_budget, goals=references.goals(references.load(frozen)))
    tables = report_tables.all_tables(results, with_published=with_published, columns=columns, methods=methods)
    out.mkdir(parents=True, exist_ok=True)
    for table in tables:
        table.write(out / "tables")
    page = out / PAGE
    files.write_text(page, render(results, tables, folder.resolve().name, with_published=with_published))
    paths = [page, out / "tables"]
    if with_figures:
        near = next(table for table in tables if table.name == "near_exactness").frame
        write_figures(results, near, out / "figures", x=x, with_published=with_published)
        paths.append(out / "figures")
    return paths


def render(results: Results, tables: list[ReportTable], name: str, *, with_published: bool = False) -> str:
    """The page."""
    by_name = {table.name: table for table in tables}
    near = by_name["near_exactness"].frame
    at_checkpoints = [metric.name for metric in results.metrics]
    downloads = [(table.title, _downloads(table)) for table in tables]
    now = datetime.now(UTC)
    return pages.render(
        "report.html",
        scripts=("report.js",),
        charts=True,
        title=f"Benchmark report: {name}",
        written=f"{now.day} {now:%B %Y, %H:%M} UTC",
        facts=_facts(results, near),
        conclusions=_conclusions(by_name["near_exact_counts"].frame, results),
        matrix=_matrix(results, near, _linear(results, near, by_name["final"].frame)),
        methods=_methods(results),
        tables={
            table.name: _as_html(table, drop=NOT_ON_PAGE if table.name == "runs" else ())
            for table in tables
            if table.name not in at_checkpoints
        },
        metrics=[(m.name, m.label, "nLB, and nUB dotted" if m is LML else m.label) for m in results.metrics],
        datasets=[_section(position, dataset, results, near, by_name) for position, dataset in _numbered(results)],
        surroundings=_surroundings(results),
        with_published=with_published,
        published_note=published.NOTE,
        kinds=KINDS,
        certified_gap=f"{CERTIFIED_GAP:g}",
        converged_change=f"{100.0 * CONVERGED_CHANGE:g} %",
        converged_steps=CONVERGED_STEPS,
        fewest_agreeing=FEWEST_AGREEING,
        most_likely_missed=f"{100.0 * MOST_LIKELY_MISSED:g}",
        subset_gain=f"{CERTIFIED_GAP / SUBSET_CAUTION:g}",
        files=pages.as_json({name: text for _, texts in downloads for name, text in texts.items()}),
        file_names=[(title, list(texts)) for title, texts in downloads],
        chart_data=pages.as_json(chart_data(results, with_published=with_published)),
    )


def _downloads(table: ReportTable) -> dict[str, str]:
    """The files of a table that can be downloaded; the list of runs is not meant for print."""
    csv = {f"{table.name}.csv": table.to_csv()}
    return csv if table.name == "runs" else csv | {f"{table.name}.tex": table.to_latex()}


def _numbered(results: Results) -> list[tuple[int, str]]:
    return list(enumerate(sorted(results.sizes)))


def _facts(results: Results, near: pd.DataFrame) -> list[tuple[str, str]]:
    """The numbers at the top."""
    runs = results.runs
    facts = [
        (str(runs["dataset"].nunique()), "data sets"),
        (str(runs["method"].nunique()), "methods"),
        (str(len(runs)), "runs"),
        (str(len(results.failed)), "failed"),
        (
            str(near.loc[near["verdict"].isin(NEAR_EXACT), "dataset"].nunique()),
            "data sets with a near-exact model",
        ),
    ]
    return [*facts, (str(results.waiting), "not made yet")] if results.waiting else facts


def _conclusions(counts: pd.DataFrame, results: Results) -> list[str]:
    """A sentence for each method: on how many data sets it is near-exact."""
    style_of = styles_of(results)
    sentences = []
    for row in counts.itertuples():
        duration = (
            f", after {significant(row.seconds)} s in the median"
            if row.near_exact and math.isfinite(row.seconds)
            else ""
        )
        sets = "data set" if row.datasets == 1 else "data sets"
        sentences.append(
            f"{style_of[row.method].label} is near-exact on {row.near_exact} of {row.datasets} {sets}{duration}."
        )
    return sentences


def _linear(results: Results, near: pd.DataFrame, final: pd.DataFrame) -> dict[str, str]:
    """Whether the linear model does as well as the best GP, for each data set."""
    losses = dict(zip(zip(final["dataset"], final["method"], strict=True), final[LML.name], strict=True))
    return verdicts.linear_by_dataset(near, losses, results.bounding)


def _matrix(results: Results, near: pd.DataFrame, linear: dict[str, str]) -> dict[str, Any]:
    """Verdicts, data sets down and methods across."""
    judged = _judged(results, near)
    methods, style_of = results.ordered(judged["method"]), styles_of(results)
    cells = {(row.dataset, row.method): row for row in judged.itertuples()}
    rows = []
    for position, dataset in enumerate(sorted(near["dataset"].unique())):
        line: list[dict[str, Any]] = [{"text": dataset, "link": f"#data-{position}"}]
        for method in methods:
            row = cells.get((dataset, method))
            text = row.verdict if row else "not run"
            if row and math.isfinite(row.m):
                text += f", M = {row.m:.0f}"
            line.append({"text": text, "kind": KINDS[row.verdict] if row else "plain"})
        line.append({"text": linear[dataset] or "n/a"})
        rows.append(line)
    return {"columns": ["data set", *(style_of[method].label for method in methods), "linear as good?"], "rows": rows}


def _judged(results: Results, near: pd.DataFrame) -> pd.DataFrame:
    """The verdicts on methods that are no baselines."""
    return near[~near["method"].map(dict(results.bases)).isin(BASELINES)]


def _methods(results: Results) -> list[dict[str, str]]:
    style_of = styles_of(results)
    shown = [(name, style_of[name]) for name in results.ordered(results.runs["method"])]
    return [{"name": m, "label": s.label, "light": s.colour, "dark": s.dark_colour} for m, s in shown]


def _section(
    position: int, dataset: str, results: Results, near: pd.DataFrame, by_name: dict[str, ReportTable]
) -> dict[str, Any]:
    """The section on a data set, without its charts."""
    size, style_of = results.sizes[dataset], styles_of(results)
    judged = _judged(results, near[near["dataset"] == dataset])
    return {
        "id": f"data-{position}",
        "name": dataset,
        "size": ", ".join(f"{k} = {v}" for k, v in (("n", size.n), ("d", size.inputs)) if v is not None),
        "verdicts": [(style_of[row.method].label, row.verdict, KINDS[row.verdict]) for row in judged.itertuples()],
        "tables": [
            _checkpoints(by_name[name], dataset, f"{name}-{position}")
            for name in (metric.name for metric in results.metrics)
        ],
        "has_points": bool((results.points["dataset"] == dataset).any()),
    }


def _checkpoints(table: ReportTable, dataset: str, name: str) -> dict[str, Any]:
    """The rows of a data set in a table of checkpoints; their times are in the headings."""
    here = (table.frame["dataset"] == dataset).to_numpy()
    frame, texts = table.frame[here], table.texts()[here]
    is_time = frame["method"].str.startswith("(seconds").to_numpy()
    times = texts[(frame["method"] == SECONDS).to_numpy()].iloc[0]
    columns = [c for c in frame if c.startswith("M=") and (times[c] or (texts[c][~is_time] != "").any())]
    headings = {c: f"{c} ({times[c]} s)" if times[c] else c for c in columns}
    shown = ["method", "status", *columns, "final"]
    assert table.bold is not None
    part = ReportTable(
        name,
        f"{table.title}; {times['status']}" if times["status"] else table.title,
        frame.loc[~is_time, shown],
        {**table.headings, **headings},
        shown=texts.loc[~is_time, shown],
        bold=table.bold[here][~is_time],
    )
    return _as_html(part)


def _as_html(table: ReportTable, drop: tuple[str, ...] = ()) -> dict[str, Any]:
    """A table in the form that the macro in parts.html takes."""
    texts = table.texts()
    columns = [column for column in table.frame if column not in drop]
    values = {column: table.frame[column].tolist() for column in columns}
    shown = {column: texts[column].tolist() for column in columns}
    places = {column: position for position, column in enumerate(table.frame)}
    rows = [
        [_cell(c, values[c][k], shown[c][k], is_best=table.is_bold(k, places[c])) for c in columns]
        for k in range(len(texts))
    ]
    numeric = [k for k, column in enumerate(columns) if pd.api.types.is_numeric_dtype(table.frame[column])]
    return {
        "name": table.name,
        "caption": table.title,
        "columns": [table.heading(column).replace(" %", "\u00a0%") for column in columns],
        "rows": rows,
        "numeric": numeric,
        "wide": [k for k, column in enumerate(columns) if column in WIDE],
    }


def _cell(column: str, value: Any, text: str, *, is_best: bool) -> dict[str, Any] | str:
    if column in TAGGED and value in KINDS:
        return {"text": text, "kind": KINDS[value]}
    if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
        shown = {"text": text.replace("-", "−"), "value": f"{value:.12g}"}
        return shown | ({"best": True} if is_best else {})
    return text


def _surroundings(results: Results) -> list[dict[str, Any]]:
    """Machines and versions: each combination once, with its number of runs."""
    counts: dict[tuple[str, ...], int] = {}
    for row in results.runs.itertuples():
        versions = ", ".join(f"{name} {number}" for name, number in row.versions.items() if number)
        where = (row.processor, row.device, row.system, row.threads, versions, row.git_commit)
        key = tuple("not known" if part is None or part != part or part == "" else str(part) for part in where)
        counts[key] = counts.get(key, 0) + 1
    names = ("processor", "device", "system", "threads", "versions", "commit")
    return [{"runs": count, "parts": list(zip(names, key, strict=True))} for key, count in counts.items()]
