"""Figures for print, as PDF and PNG: curves of each data set, Pareto frontiers, and all verdicts on one page.

Every method has the same colour, line and marker everywhere; all seeds are thin lines and their median is a thick one.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import FancyBboxPatch

from nearexact import files
from nearexact.bench.analysis import pareto, profiles, published
from nearexact.bench.analysis.checkpoints import milestones
from nearexact.bench.analysis.families import BASELINES
from nearexact.bench.analysis.losses import COSTS, LML, Metric
from nearexact.bench.analysis.points import COVERAGE
from nearexact.bench.analysis.results import Results
from nearexact.bench.analysis.verdicts import KINDS
from nearexact.bench.report.axes import coverage_limits, levels, limits, positive_span, span
from nearexact.bench.report.figure_style import (
    BAND,
    DASHES,
    QUIET,
    SIZE,
    TEXT,
    UPPER_DASH,
    beyond_handle,
    draw_beyond,
    draw_level,
    draw_runs,
    handles,
    heading,
    legend,
    log_axis,
    panel,
    plain,
    published_handle,
    run_lines,
    upper_handle,
)  # fmt: skip
from nearexact.bench.report.method_styles import Style, styles_of
from nearexact.bench.report.table_format import significant
from nearexact.bench.store import as_name
from nearexact.verdict_colours import PALETTES

LONGEST_FACTOR = 100.0  # times the fastest, of performance profiles


def write_figures(
    results: Results, near: pd.DataFrame, folder: Path, *, x: str = "elapsed", with_published: bool = False
) -> list[Path]:
    """All figures of a report, over the cost `x`; the paths of their files."""
    paths: list[Path] = []
    folder.mkdir(parents=True, exist_ok=True)
    for name, figure in all_figures(results, near, x, with_published):
        for suffix in (".pdf", ".png"):
            paths.append(folder / f"{name}{suffix}")
            with mpl.rc_context({"pdf.fonttype": 42}), files.replacing(paths[-1]) as path:  # fonts that publishers take
                figure.savefig(path, format=suffix[1:], dpi=200, facecolor="white")
            figure.set_layout_engine("none")  # the second file takes the layout of the first
    return paths


def all_figures(
    results: Results, near: pd.DataFrame, x: str = "elapsed", with_published: bool = False
) -> Iterator[tuple[str, Figure]]:
    """The figures of a report one after the other, with the names of their files."""
    style_of = styles_of(results)  # one for all figures: a method looks the same everywhere
    judged = near[~near["method"].map(dict(results.bases)).isin(BASELINES)]
    if len(judged):
        yield "near_exactness", overview(judged, style_of)
        yield "performance_profiles", profile_panels(results, style_of)
    for dataset in sorted(results.points["dataset"].unique()):
        points = results.smoothed[results.smoothed["dataset"] == dataset].reset_index(drop=True)
        name = as_name(dataset)
        yield f"{name}_curves", curves(results, dataset, points, x, with_published)
        if points[COVERAGE].notna().any(axis=None):
            yield f"{name}_calibration", calibration(results, dataset, points, x)
        frontiers = {key: by_dataset[dataset] for key, by_dataset in results.frontiers.items()}
        shown = {m: limits(points, m, results.sizes[dataset].n, results.bounding) for m in results.metrics}
        yield f"{name}_frontiers", frontier_grid(dataset, frontiers, shown, style_of)


# ---- curves ----------------------------------------------------------------------------------------------------------


def curves(results: Results, dataset: str, points: pd.DataFrame, x: str, with_published: bool = False) -> Figure:
    """The paper's row of panels: bounds on the log marginal likelihood, RMSE, NLPD; and CRPS if it was recorded."""
    style_of, methods = styles_of(results), results.ordered(points["method"])
    figure = Figure(figsize=(0.2 + 2.4 * len(results.metrics), 2.75), layout="constrained")
    heading(figure, title(results, dataset))
    printed = _published_methods(dataset) if with_published and x == "elapsed" else set()
    entries = handles(style for method, style in style_of.items() if method in printed.union(methods))
    has_upper = False
    late = _beyond(results, dataset)
    for ax, metric in zip(figure.subplots(1, len(results.metrics)), results.metrics, strict=True):
        panel(ax, metric.label if metric is not LML else "nLB and nUB", x)
        _draw_methods(ax, points, x, {m: metric.loss(rows) for m, rows in points.groupby("method")}, style_of)
        for method in methods if metric is LML else []:
            has_upper |= _draw_upper(ax, points[points["method"] == method], x, style_of[method])
        if printed:
            _draw_published(ax, dataset, metric, style_of)
        _draw_late(ax, late, x, metric.loss(late), style_of)
        log_axis(ax, span(pd.concat([points, late], ignore_index=True), x))
        ax.set_ylim(*limits(points, metric, results.sizes[dataset].n, results.bounding))
    further = [(has_upper, upper_handle()), (len(printed) > 0, published_handle()), (len(late) > 0, beyond_handle())]
    legend(figure, [*entries, *(handle for is_drawn, handle in further if is_drawn)])
    return figure


def calibration(results: Results, dataset: str, points: pd.DataFrame, x: str) -> Figure:
    """Coverage of the predictive intervals against what it should be."""
    style_of, late = styles_of(results), _beyond(results, dataset)
    figure = Figure(figsize=(7.4, 2.75), layout="constrained")
    heading(figure, title(results, dataset))
    for ax, column in zip(figure.subplots(1, 3), COVERAGE, strict=True):
        level = int(column.rpartition("_")[2])
        panel(ax, f"share within {level} % intervals", x)
        ax.axhline(level / 100.0, color=BAND, linewidth=3, zorder=1)
        _draw_methods(ax, points, x, {m: rows[column] for m, rows in points.groupby("method")}, style_of)
        _draw_late(ax, late, x, late[column], style_of)
        log_axis(ax, span(pd.concat([points, late], ignore_index=True), x))
        ax.set_ylim(*coverage_limits(points, column))
    aim = Line2D([], [], color=BAND, linewidth=3, label="as it should be")
    entries = handles(style_of[method] for method in results.ordered(points["method"]))
    legend(figure, [*entries, aim, *([beyond_handle()] if len(late) else [])])
    return figure


def title(results: Results, dataset: str) -> str:
    """The data set's name and size."""
    size = results.sizes[dataset]
    parts = [f"{name} = {number}" for name, number in (("n", size.n), ("d", size.inputs)) if number]
    return f"{dataset} ({', '.join(parts)})" if parts else dataset


def _draw_methods(
    ax: Axes, points: pd.DataFrame, x: str, values: dict[str, pd.Series], style_of: dict[str, Style]
) -> None:
    level_methods = levels(points)
    for method in [name for name in style_of if name in values]:
        lines = run_lines(points.loc[values[method].index].reset_index(drop=True), x, values[method])
        (draw_level if method in level_methods else draw_runs)(ax, lines, style_of[method])


def _draw_upper(ax: Axes, points: pd.DataFrame, x: str, style: Style) -> bool:
    """Draw upper bounds at the milestones, and their median; False if there are none but the value itself."""
    ends = milestones(points)
    ends = ends[ends["upper_bound"].notna() & (ends["upper_bound"] != ends["elbo"])].reset_index(drop=True)
    for costs, values in run_lines(ends, x, -ends["upper_bound"]):
        ax.plot(costs, values, color=style.colour, linewidth=0.5, alpha=0.4, zorder=2)
    medians = ends.groupby("scheduled_m")[[x, "upper_bound"]].median()
    ax.plot(
        medians[x], -medians["upper_bound"], color=style.colour, linestyle=UPPER_DASH, linewidth=1.0, marker="o",
        markersize=2.2, zorder=3,
    )  # fmt: skip
    return len(ends) > 0


def _beyond(results: Results, dataset: str) -> pd.DataFrame:
    """The points of a data set that came after the budget of their run."""
    points = results.points
    return points[(points["dataset"] == dataset) & points["over_budget"]].reset_index(drop=True)


def _draw_late(ax: Axes, late: pd.DataFrame, x: str, values: pd.Series, style_of: dict[str, Style]) -> None:
    for method, rows in late.groupby("method"):
        draw_beyond(ax, run_lines(rows.reset_index(drop=True), x, values[rows.index]), style_of[method])


def _published_methods(dataset: str) -> set[str]:
    """The methods whose published results on a data set have times, and so a place in its figures."""
    table = published.load()
    return set(table.loc[(table["dataset"] == dataset) & table["seconds"].notna(), "method"])


def _draw_published(ax: Axes, dataset: str, metric: Metric, style_of: dict[str, Style]) -> None:
    table = published.load()
    table = table[(table["dataset"] == dataset) & (table["metric"] == metric.name) & table["seconds"].notna()]
    for method, rows in table.groupby("method"):
        style = style_of[method]
        ax.plot(
            rows["seconds"], rows["value"], style.marker, color=style.colour, markersize=4, markerfacecolor="white",
            markeredgewidth=0.9, zorder=4,
        )  # fmt: skip


# ---- frontiers -------------------------------------------------------------------------------------------------------


def frontier_grid(
    dataset: str,
    frontiers: dict[tuple[str, str], dict[str, pareto.Curve]],
    shown: dict[Metric, tuple[float, float]],
    style_of: dict[str, Style],
) -> Figure:
    """The frontier of each method, for every metric and cost; the overall frontier in grey.

    `shown` has the metrics, and what their axes span.
    """
    metrics, methods = list(shown), {method for by_method in frontiers.values() for method in by_method}
    figure = Figure(figsize=(9.2, 2.0 * len(metrics)), layout="constrained")
    heading(figure, f"{dataset}: Pareto frontiers")
    grid = figure.subplots(len(metrics), len(COSTS), sharey="row", sharex="col")
    for row, metric in zip(grid, metrics, strict=True):
        for ax, cost in zip(row, COSTS, strict=True):
            by_method = frontiers[metric.name, cost]
            panel(ax, metric.label if cost == "elapsed" else "", cost)
            ax.set_ylim(*shown[metric])
            if metric is not metrics[-1]:
                ax.set_xlabel("")
            best = pareto.overall(by_method)
            steps = {"drawstyle": "steps-post", "solid_capstyle": "round"}
            ax.plot([p[0] for p in best], [p[1] for p in best], color=BAND, linewidth=5, zorder=1, **steps)
            for method, (costs, losses) in by_method.items():
                style = style_of[method]
                ax.plot(
                    costs, losses, drawstyle="steps-post", color=style.colour, linestyle=DASHES[style.dash],
                    linewidth=1.2, marker=style.marker, markersize=2.4, zorder=2,
                )  # fmt: skip
            shared = [costs for key in frontiers if key[1] == cost for costs, _ in frontiers[key].values()]
            log_axis(ax, positive_span(np.concatenate([np.empty(0), *shared])))
    band = Line2D([], [], color=BAND, linewidth=5, label="no method is better")
    legend(figure, [*handles((s for m, s in style_of.items() if m in methods), markers=True), band])
    return figure


# ---- profiles --------------------------------------------------------------------------------------------------------


def profile_panels(results: Results, style_of: dict[str, Style]) -> Figure:
    """Performance profiles over training time, with their 95 % intervals; the last step is who gets there at all."""
    figure = Figure(figsize=(0.2 + 2.4 * len(results.metrics), 2.6), layout="constrained")
    heading(
        figure, f"Share of splits within {100 * profiles.TARGET:.0f} % of the best, over time relative to the fastest"
    )
    factors, drawn = np.geomspace(1.0, LONGEST_FACTOR, 25), set()
    for ax, metric in zip(figure.subplots(1, len(results.metrics)), results.metrics, strict=True):
        panel(ax, metric.label, "elapsed")
        ax.set_xlabel("times the fastest", fontsize=SIZE - 0.5, color=QUIET)
        table = profiles.ratios(results, metric)
        for method in [name for name in style_of if name in set(table["method"])]:
            share, low, high = profiles.profile(table, method, factors)
            style = style_of[method]
            ax.fill_between(factors, low, high, color=style.colour, alpha=0.08, linewidth=0, step="post")
            ax.plot(
                factors, share, drawstyle="steps-post", color=style.colour, linestyle=DASHES[style.dash], linewidth=1.4
            )
            drawn.add(method)
        log_axis(ax, (1.0, LONGEST_FACTOR))
        ax.set_ylim(-0.03, 1.03)
    legend(figure, handles(style for method, style in style_of.items() if method in drawn))
    return figure


# ---- overview --------------------------------------------------------------------------------------------------------


def overview(near: pd.DataFrame, style_of: dict[str, Style]) -> Figure:
    """All verdicts on one page: data sets down, methods across."""
    datasets, judged = sorted(near["dataset"].unique()), set(near["method"])
    methods = [method for method in style_of if method in judged]
    size = (max(1.6 + 1.55 * len(methods), 4.2), 0.9 + 0.46 * len(datasets))
    figure = Figure(figsize=size, layout="constrained")
    ax = figure.subplots()
    for row in near.itertuples():
        x, y = methods.index(row.method), datasets.index(row.dataset)
        text_colour, back = PALETTES[KINDS[row.verdict]].printed
        box = FancyBboxPatch(
            (x + 0.04, y + 0.08), 0.92, 0.84, boxstyle="round,pad=0,rounding_size=0.06", fc=back, ec="none"
        )
        ax.add_patch(box)
        details = [f"M = {row.m:.0f}"] if math.isfinite(row.m) else []
        details += [f"{significant(row.seconds)} s"] if math.isfinite(row.seconds) else []
        details += ["linear as good"] if row.linear_as_good == "yes" else []
        middle: dict[str, Any] = {"ha": "center", "va": "center", "color": text_colour}
        ax.text(x + 0.5, y + (0.37 if details else 0.5), row.verdict, fontsize=SIZE - 0.5, fontweight="bold", **middle)
        ax.text(x + 0.5, y + 0.68, ", ".join(details), fontsize=SIZE - 1.5, **middle)
    sizes = dict(zip(near["dataset"], near["n"], strict=True))
    lines = {name: f"\nn = {n:.0f}" if n and n == n else "" for name, n in sizes.items()}
    names = [plain(textwrap.shorten(name, 40, placeholder="…")) + lines[name] for name in datasets]
    ax.set_yticks(np.arange(len(datasets)) + 0.5, names, fontsize=SIZE - 0.5, color=TEXT)
    labels = [plain(style_of[method].label) for method in methods]
    ax.set_xticks(np.arange(len(methods)) + 0.5, labels, fontsize=SIZE, color=TEXT, fontweight="bold")
    ax.set_xlim(0, len(methods))
    ax.set_ylim(len(datasets), 0)
    ax.xaxis.tick_top()
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    heading(figure, "Near-exactness")
    return figure
