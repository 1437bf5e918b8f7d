"""Figures of the toy problems: an example, bounds against M, hyperparameters against M; exact values as lines."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from nearexact.bench.paper.toys import ToyStudy

BLUE, ORANGE, BLACK, GREY = "#0072B2", "#D55E00", "#1A1A1A", "#8A8A8A"
COLOURS = (BLUE, ORANGE, "#008A64", "#B3508A")
LABELS = {
    "lengthscales": "lengthscale",
    "variance": "signal variance",
    "weight_variances": "weight variance",
    "bias_variance": "bias variance",
    "noise_variance": "noise variance",
}
LOWEST_SHARE = 1.5  # of the range above the constant predictor that the bounds' panel shows at most


def draw(study: ToyStudy) -> Figure:
    """The figure."""
    figure = Figure(figsize=(12.0, 3.4), layout="constrained")
    example, bounds, hyperparameters = figure.subplots(1, 3)
    _draw_example(example, study)
    _draw_bounds(bounds, study)
    _draw_hyperparameters(hyperparameters, study)
    return figure


def _draw_example(axes: Axes, study: ToyStudy) -> None:
    X, y = study.data
    curve, Z = (part for _, part in study.example.groupby("inducing"))
    axes.plot(X[:, 0], y, ".", color=GREY, markersize=3, label="data")
    axes.plot(curve["x"], curve["mean"], color=BLUE, label="mean and 95 %")
    low, high = curve["mean"] - 1.96 * curve["std"], curve["mean"] + 1.96 * curve["std"]
    axes.fill_between(curve["x"], low, high, color=BLUE, alpha=0.15, linewidth=0.0)
    axes.plot(Z["x"], Z["mean"], "o", color=ORANGE, markersize=4, label="inducing points")
    axes.set(title=f"{study.toy.kernel} on {study.toy.dataset}, M = {len(Z)}", xlabel="x", ylabel="y, standardised")
    axes.legend(fontsize="small")


def _draw_bounds(axes: Axes, study: ToyStudy) -> None:
    bounds = study.bounds
    axes.plot(bounds["m"], bounds["upper_bound"], "v-", color=ORANGE, markersize=4, label="upper bound")
    axes.plot(bounds["m"], bounds["exact_lml"], ":", color=GREY, label="exact, same hyperparameters")
    axes.plot(bounds["m"], bounds["elbo"], "^-", color=BLUE, markersize=4, label="ELBO")
    axes.axhline(study.exact_lml, color=BLACK, linewidth=1.0, label="exact optimum")
    # With the fewest points the bounds are so far off that nothing else could be seen.
    highest = float(bounds["upper_bound"].max())
    constant = -0.5 * len(study.data[1]) * (np.log(2.0 * np.pi) + 1.0)
    span = max(highest, study.exact_lml) - constant
    axes.set_ylim(max(float(bounds["elbo"].min()), highest - LOWEST_SHARE * span) - 0.05 * span, highest + 0.05 * span)
    axes.set(title="bounds", xlabel="M", ylabel="log marginal likelihood (nats)")
    axes.legend(fontsize="small", loc="lower right")


def _draw_hyperparameters(axes: Axes, study: ToyStudy) -> None:
    bounds = study.bounds
    exact = study.exact.set_index("kernel").loc[study.toy.kernel]
    names = [name for name in LABELS if name in bounds.columns]
    for colour, name in zip(COLOURS, names, strict=False):
        axes.plot(bounds["m"], bounds[name], ".-", color=colour, label=LABELS[name])
        if pd.notna(exact[name]):
            axes.axhline(float(exact[name]), color=colour, linestyle="--", linewidth=0.9)
    axes.set(title="hyperparameters; dashed: exact GP", xlabel="M", yscale="log")
    if len(names) < 4:
        axes.legend(fontsize="small", loc="upper right")
    else:  # the arc-cosine kernel's, between the weight variance and the signal variance
        axes.legend(fontsize="small", loc="center right", bbox_to_anchor=(1.0, 0.6))
