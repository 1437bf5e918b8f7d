"""How figures look: axes, logarithmic scales, legends, and the lines of a method's runs and of their median."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, NullFormatter

from nearexact.bench.analysis import published
from nearexact.bench.analysis.curves import median_curve
from nearexact.bench.analysis.losses import COSTS
from nearexact.bench.analysis.points import run_positions
from nearexact.bench.report.method_styles import Style
from nearexact.bench.report.table_format import significant
from nearexact.typing import FloatArray

Dash = tuple[float, Sequence[float]] | None  # None is solid
Lines = list[tuple[FloatArray, FloatArray]]

DASHES: dict[str, Dash] = {
    "solid": None, "dash": (0, (5, 2)), "dot": (0, (1, 1.5)), "dashdot": (0, (5, 1.5, 1, 1.5)), "longdash": (0, (8, 2)),
    "longdashdot": (0, (8, 2, 1, 2)),
}  # fmt: skip
UPPER_DASH: Dash = (0, (2, 1.2))
TEXT, QUIET, GRID, BAND = "#1c2128", "#59626e", "#e6e8eb", "#c3c9d1"
SIZE = 8.0  # points, of text
LEGEND_SIZE = SIZE - 0.5
LETTER, ENTRY = 0.56, 4.6  # widths in a legend, in sizes of its text: of a letter, of a line with the space around it


def plain(text: str) -> str:
    """Text that matplotlib does not take for mathematics."""
    return text.replace("$", r"\$")


def heading(figure: Figure, text: str) -> None:
    """The title of a figure."""
    figure.suptitle(plain(text), fontsize=SIZE + 1.5, fontweight="bold", color=TEXT)


def panel(ax: Axes, label: str, x: str) -> None:
    """Axes with a title and a grid, without a frame."""
    ax.set_title(label, fontsize=SIZE, loc="left", color=TEXT, pad=4)
    ax.set_xlabel(COSTS[x], fontsize=SIZE - 0.5, color=QUIET)
    ax.tick_params(labelsize=SIZE - 1, colors=QUIET, length=2.5, width=0.6)
    ax.grid(color=GRID, linewidth=0.6)
    ax.set_axisbelow(True)
    ax.spines[["top", "right"]].set_visible(False)
    ax.spines[["left", "bottom"]].set_color("#9aa2ad")
    ax.spines[["left", "bottom"]].set_linewidth(0.6)
    ax.yaxis.get_offset_text().set_fontsize(SIZE - 1.5)


def log_axis(ax: Axes, span: tuple[float, float] | None) -> None:
    """A logarithmic x-axis over this span, with labelled ticks even where it is less than a decade."""
    if span is None:
        return
    low, high = span
    ax.set_xscale("log")
    spread = max(math.log10(high / low), 0.3)
    ax.set_xlim(low / 10 ** (0.03 * spread), high * 10 ** (0.04 * spread))
    ax.tick_params(axis="x", which="minor", labelsize=SIZE - 1, colors=QUIET, length=2.5 if spread < 1.0 else 0)
    if spread < 1.0:
        ax.xaxis.set_major_formatter(lambda value, _: significant(float(value)))
        ax.xaxis.set_minor_formatter(lambda value, _: significant(float(value)))
        ax.xaxis.set_minor_locator(
            LogLocator(base=10.0, subs=(2.0, 4.0, 7.0) if spread > 0.5 else (2.0, 3.0, 4.0, 6.0))
        )
    else:
        ax.xaxis.set_major_locator(LogLocator(base=10.0, numticks=6))
        ax.xaxis.set_minor_formatter(NullFormatter())


def run_lines(points: pd.DataFrame, x: str, values: pd.Series) -> Lines:
    """Costs and values of each run, where both were recorded."""
    costs, losses = points[x].to_numpy(), values.to_numpy(dtype=float)
    keep = [rows[np.isfinite(losses[rows]) & (costs[rows] > 0.0)] for _, rows in run_positions(points)]
    return [(costs[rows], losses[rows]) for rows in keep if len(rows)]


def draw_runs(ax: Axes, lines: Lines, style: Style) -> None:
    """All runs thin, their median thick; as points if the cost goes up and down, as prediction time does."""
    if not all((np.diff(costs) >= 0.0).all() for costs, _ in lines):
        for costs, values in lines:
            ax.plot(costs, values, style.marker, color=style.colour, markersize=2.5, alpha=0.5)
        return
    for costs, values in lines:
        ax.plot(costs, values, color=style.colour, linewidth=0.5, alpha=0.4, zorder=2)
    costs, values = median_curve(lines)
    marker = style.marker if len(costs) == 1 else ""
    ax.plot(costs, values, color=style.colour, linestyle=DASHES[style.dash], linewidth=1.7, marker=marker, zorder=3)


def draw_level(ax: Axes, lines: Lines, style: Style) -> None:
    """A model that takes no time as a level: the median over its runs."""
    if lines:
        level = float(np.median([values[-1] for _, values in lines]))
        ax.axhline(level, color=style.colour, linestyle=DASHES[style.dash], linewidth=1.1, zorder=1.5)


def draw_beyond(ax: Axes, lines: Lines, style: Style) -> None:
    """Values that came after the budget: small and hollow."""
    for costs, values in lines:
        ax.plot(
            costs, values, style.marker, color=style.colour, markersize=2.6, markerfacecolor="white",
            markeredgewidth=0.6, alpha=0.8, zorder=2.5,
        )  # fmt: skip


def handles(styles: Iterable[Style], *, markers: bool = False) -> list[Line2D]:
    """The entries of methods in a legend."""
    return [
        Line2D(
            [], [], color=style.colour, linestyle=DASHES[style.dash], linewidth=1.2 if markers else 1.7,
            marker=style.marker if markers else "", markersize=3, label=plain(style.label),
        )
        for style in styles
    ]  # fmt: skip


def upper_handle() -> Line2D:
    """The entry of upper bounds in a legend."""
    return Line2D([], [], color=QUIET, linestyle=UPPER_DASH, linewidth=1.0, marker="o", markersize=2.2, label="nUB")


def published_handle() -> Line2D:
    """The entry of published results in a legend."""
    return Line2D(
        [], [], color=QUIET, linestyle="", marker="o", markerfacecolor="white", markersize=4, label=published.NOTE
    )


def beyond_handle() -> Line2D:
    """The entry of values beyond the budget in a legend."""
    return Line2D(
        [],
        [],
        color=QUIET,
        linestyle="",
        marker="o",
        markerfacecolor="white",
        markersize=2.6,
        label="beyond the budget",
    )


def legend(figure: Figure, entries: Sequence[Line2D]) -> None:
    """One legend for the whole figure, below it; the figure grows by as many lines as it takes after the first."""
    width = 72.0 * figure.get_figwidth() / LEGEND_SIZE  # in sizes of the text
    labels = [str(entry.get_label()) for entry in entries]
    counts = range(1, len(labels) + 1)
    lines = min((count for count in counts if _legend_width(labels, count) <= width), default=len(labels))
    columns = math.ceil(len(labels) / max(lines, 1))
    figure.set_figheight(figure.get_figheight() + 1.6 * (lines - 1) * LEGEND_SIZE / 72.0)
    figure.legend(
        handles=entries, loc="outside lower center", ncols=columns, fontsize=LEGEND_SIZE, frameon=False,
        labelcolor=TEXT, handlelength=2.4, columnspacing=1.6,
    )  # fmt: skip


def _legend_width(labels: Sequence[str], lines: int) -> float:
    """Of a legend with so many lines, in sizes of its text. Matplotlib fills columns from top to bottom, evenly."""
    parts = np.array_split(np.array([len(label) for label in labels]), math.ceil(len(labels) / lines))
    return sum(LETTER * float(part.max()) + ENTRY for part in parts)
