"""The page about a fit: what it amounts to, predictions next to targets, calibration, residuals, relevance, partial
dependence, bounds.

Everything is in one file. Names come from the user's file and may be anything: the template escapes them, and `_text`
does where Plotly would read them as markup.
"""

from __future__ import annotations

import html
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import numpy as np

from nearexact import pages
from nearexact.tables.conclusions import conclusions, is_sound, nothing_learnt, whole_noise
from nearexact.tables.evaluation import Evaluation
from nearexact.tables.kernel_choice import EQUAL_LIKELIHOODS
from nearexact.tables.number_text import number, seconds
from nearexact.tables.partial_dependence import Dependence, partial_dependence
from nearexact.tables.prediction_distance import prediction_distance
from nearexact.tables.summary import Summary
from nearexact.tables.terminal import repair_line
from nearexact.tables.wording import method_words, noise_words, verdict_words
from nearexact.typing import FloatArray
from nearexact.verdict_colours import VERDICT_KINDS, Kind

if TYPE_CHECKING:
    from nearexact.tables.fitting import Fitted

MOST_POINTS = 2000  # in a chart
MOST_CURVES = 6
LEAST_RELEVANCE = 0.01  # of a column with a curve: below, it is flat
MOST_BARS, FEW_BARS = 20, 12  # the latter with names in the usual size
FEW_POINTS = 20  # which are drawn larger
BLUE, ORANGE, GREY, BAND = "#3f87c9", "#d9822b", "#8a94a0", "rgba(63,135,201,0.22)"


def fit_page(fitted: Fitted) -> str:
    """The page as HTML."""
    if fitted.evaluation is None:
        raise ValueError("a fit that was interrupted has no page")
    summary = fitted.summary
    values = np.concatenate([fitted.prepared.train, fitted.prepared.test])
    record = summary.to_json()
    answers, learnt = conclusions(record), not nothing_learnt(record)
    relevant = [e.column for e in summary.relevance[:MOST_CURVES] if e.relevance >= LEAST_RELEVANCE and learnt]
    curves = [partial_dependence(fitted.model, fitted.prepared.recipe, values, name) for name in relevant]
    is_sparse = fitted.model.method_ == "sparse"
    figures = {
        **({"bounds-m": _bounds(fitted, "m", "inducing points M", log=True)} if is_sparse else {}),
        "bounds-time": _bounds(fitted, "elapsed", "seconds of training", log=False),
        "predicted": _predicted(fitted.evaluation, summary.target),
        "calibration": _calibration(fitted.evaluation),
        "residuals": _residuals(fitted.evaluation, summary.target),
        **({"relevance": _relevance(summary)} if learnt else {}),
        **{f"curve-{i}": _curve(curve, summary.target) for i, curve in enumerate(curves)},
    }
    return pages.render(
        "fit.html",
        charts=True,
        title=f"How well {summary.target} can be predicted",
        summary=record,
        answers=answers,
        learnt=learnt,
        sound=is_sound(answers[0], answers[1]),
        number=number,
        seconds=seconds,
        method=method_words(record),
        is_sparse=is_sparse,
        noise=noise_words(record),
        whole_noise=whole_noise(record),
        verdict={"kind": _verdict_kind(summary.verdict, answers[0].kind), "words": verdict_words(record)},
        trials=_trials(summary),
        most_bars=MOST_BARS,
        equal_likelihoods=EQUAL_LIKELIHOODS,
        rows="test rows" if fitted.evaluation.tested else "rows that it was trained on: none were kept back to test",
        tested=fitted.evaluation.tested,
        distance=prediction_distance(fitted),
        columns=[
            [column.name, column.description(), ", ".join(column.inputs)] for column in fitted.prepared.recipe.columns
        ]
        + [[name, role, ""] for name, role in fitted.prepared.recipe.noise_roles.items()]
        + [[name, f"left out: {reason}", ""] for name, reason in fitted.prepared.recipe.left_out.items()],
        repaired=repair_line(record),
        curves=[curve.column for curve in curves],
        curve_rows=max((curve.rows for curve in curves), default=0),
        figures={name: pages.as_json(figure) for name, figure in figures.items()},
    )


def _verdict_kind(verdict: str, quality: Kind) -> Kind:
    """The colour of a verdict; green only where the model is good, since the exact GP may be of no use either."""
    kind = VERDICT_KINDS[verdict]
    return "plain" if kind == "good" and quality != "good" else kind


def _trials(summary: Summary) -> str:
    """How many kernels were tried."""
    tried = {trial.kernel for trial in summary.tried if trial.has_likelihood}
    others = {trial.kernel for trial in summary.tried} - tried
    return f"{len(tried)} kernels were compared" + (f", {len(others)} were not" if others else "")


def _bounds(fitted: Fitted, along: str, title: str, *, log: bool) -> dict[str, Any]:
    """Both bounds per row, stage by stage; of an exact GP they are one, after each start."""
    stages = fitted.model.history_
    x = [getattr(stage, along) for stage in stages]
    lines = [("upper bound", "upper_bound", ORANGE), ("lower bound (ELBO)", "elbo", BLUE)]
    if all(stage.lower_bound == stage.upper_bound for stage in stages):
        lines = [("log marginal likelihood", "lower_bound", BLUE)]
    traces = [
        _line(x, [getattr(stage, name) / stage.n for stage in stages], label, colour) for label, name, colour in lines
    ]
    axis: dict[str, Any] = {"title": {"text": title}, "rangemode": "tozero"}  # a single stage has no range of its own
    if log:
        axis |= {"type": "log", "tickvals": sorted(set(x)), "ticktext": [str(m) for m in sorted(set(x))]}
    return _figure(traces, axis, {"title": {"text": "nats per row"}}, legend=True)


def _predicted(evaluation: Evaluation, target: str) -> dict[str, Any]:
    rows = _some(len(evaluation.y))
    y, mean = evaluation.y[rows], evaluation.mean[rows]
    ends = [float(min(y.min(), mean.min())), float(max(y.max(), mean.max()))]
    traces = [_line(ends, ends, "equal", GREY, dash=True), _points(mean, y)]
    title = _text(target)
    return _figure(traces, {"title": {"text": f"predicted {title}"}}, {"title": {"text": f"actual {title}"}})


def _calibration(evaluation: Evaluation) -> dict[str, Any]:
    levels = np.linspace(0.05, 0.99, 20).tolist()
    traces = [
        _line([0.0, 1.0], [0.0, 1.0], "ideal", GREY, dash=True),
        _line(levels, evaluation.coverage(levels), "observed", BLUE),
    ]
    form = {"tickformat": ".0%", "range": [0, 1.03], "tickvals": [0, 0.25, 0.5, 0.75, 1]}
    return _figure(
        traces,
        {"title": {"text": "level of the predictive interval"}, **form},
        {"title": {"text": "targets inside it"}, **form},
    )


def _residuals(evaluation: Evaluation, target: str) -> dict[str, Any]:
    rows = _some(len(evaluation.y))
    mean = evaluation.mean[rows]
    residuals = (evaluation.y[rows] - mean) / evaluation.std[rows]
    ends, edge = [float(mean.min()), float(mean.max())], NormalDist().inv_cdf(0.975)
    edges = [_line(ends, [sign * edge] * 2, "95 %", GREY, dash=True) for sign in (-1, 1)]
    return _figure(
        [*edges, _points(mean, residuals)],
        {"title": {"text": f"predicted {_text(target)}"}},
        {"title": {"text": "residual / predicted std"}},
    )


def _relevance(summary: Summary) -> dict[str, Any]:
    shown = list(reversed(summary.relevance[:MOST_BARS]))
    lengths = ["" if e.lengthscale is None else f"lengthscale {e.lengthscale:.3g}" for e in shown]
    bars = {
        "type": "bar",
        "orientation": "h",
        "x": [entry.relevance for entry in shown],
        "y": [_short(entry.column, i) for i, entry in enumerate(shown)],
        "hovertext": lengths,
        "hovertemplate": "%{x:.3f} %{hovertext}<extra></extra>",
        "marker": {"color": BLUE},
    }
    names = {"type": "category", "ticksuffix": " ", "dtick": 1}  # all of them
    if len(shown) > FEW_BARS:
        names["tickfont"] = {"size": 9}
    return _figure([bars], {"title": {"text": "relevance"}, "range": [0, 1.05]}, names)


def _curve(curve: Dependence, target: str) -> dict[str, Any]:
    upper, lower = curve.mean + 2.0 * curve.std, curve.mean - 2.0 * curve.std
    axis: dict[str, Any] = {"title": {"text": _short(curve.column)}}
    y_axis = {"title": {"text": _short(target)}}
    if curve.kind in ("category", "boolean"):
        places = [_short(str(place), i) for i, place in enumerate(curve.places)]
        points = {
            "type": "scatter",
            "mode": "markers",
            "x": places,
            "y": curve.mean,
            "error_y": {"type": "data", "array": 2.0 * curve.std, "color": BLUE},
            "marker": {"color": BLUE, "size": 9},
            "hoverinfo": "x+y",
        }
        return _figure([points], {**axis, "type": "category"}, y_axis)
    if curve.kind == "date":
        axis["type"] = "date"
    places = curve.places
    band = {
        "type": "scatter",
        "mode": "lines",
        "x": [*places, *reversed(places)],
        "y": [*upper.tolist(), *reversed(lower.tolist())],
        "fill": "toself",
        "fillcolor": BAND,
        "line": {"width": 0},
        "hoverinfo": "skip",
    }
    only_one = len(places) == 1  # a line would not be seen
    line = _line(places, curve.mean.tolist(), "average prediction", BLUE, markers=only_one)
    return _figure([band, line], axis, y_axis)


def _figure(
    traces: list[dict[str, Any]], xaxis: dict[str, Any], yaxis: dict[str, Any], *, legend: bool = False
) -> dict[str, Any]:
    layout: dict[str, Any] = {"xaxis": xaxis, "yaxis": yaxis}
    if legend:
        # Above the plot, and below the place where the toolbar comes up.
        layout |= {"showlegend": True, "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0}}
        layout |= {"margin": {"l": 56, "r": 12, "t": 64, "b": 44}}
    return {"data": traces, "layout": layout}


def _line(x: list[Any], y: list[float], name: str, colour: str, *, dash: bool = False, markers: bool = True) -> Any:
    line = {"color": colour, "width": 1.5 if dash else 2.5, **({"dash": "dash"} if dash else {})}
    mode = "lines+markers" if markers and not dash else "lines"
    return {
        "type": "scatter",
        "mode": mode,
        "x": x,
        "y": y,
        "name": name,
        "line": line,
        "marker": {"size": 10 if len(x) == 1 else 6},
        "hoverinfo": "skip" if dash else "all",
    }


def _points(x: FloatArray, y: FloatArray) -> dict[str, Any]:
    marker = {"color": BLUE, "size": 9 if len(x) <= FEW_POINTS else 5, "opacity": 0.6}
    return {"type": "scatter", "mode": "markers", "x": x, "y": y, "marker": marker, "hoverinfo": "x+y"}


def _some(n: int) -> Any:
    return np.sort(np.random.default_rng(0).permutation(n)[:MOST_POINTS])


def _text(name: str) -> str:
    """A name as Plotly shows it: what looks like markup is none."""
    return html.escape(" ".join(name.split()), quote=False)


def _short(name: str, position: int | None = None) -> str:
    """The same for an axis, cut where it would take the chart's place; the position keeps names apart."""
    text = " ".join(name.split())
    if len(text) <= 24:
        return _text(text)
    return _text(f"{text[:22]}…" if position is None else f"{text[:18]}… ({position + 1})")
