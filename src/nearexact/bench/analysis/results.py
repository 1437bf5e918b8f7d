"""A results folder as the analysis needs it: the points of the traces, the runs, and how large the data sets are.

What several tables and figures need of them, such as smoothed points, is computed here, and only once.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from nearexact.bench import datasets, store
from nearexact.bench.analysis.checkpoints import checkpoint_values, checkpoints, milestones
from nearexact.bench.analysis.curves import smooth
from nearexact.bench.analysis.families import bounding_methods, is_lower_bound
from nearexact.bench.analysis.losses import COSTS, LML, METRICS
from nearexact.bench.analysis.pareto import Curve, frontiers
from nearexact.bench.analysis.points import KEY, LARGEST_COUNT, tidy
from nearexact.noise_only import standardised_likelihood


@dataclass(frozen=True)
class Size:
    """The size of a data set's training part; None where it is not known."""

    n: int | None
    inputs: int | None

    @property
    def parameters(self) -> int | None:
        """Of the kernel that the methods have: a lengthscale for each input, and a variance."""
        return None if self.inputs is None else self.inputs + 1

    @property
    def noise_only(self) -> float:
        """Log likelihood of standardised targets under the constant predictor; nan if n is not known."""
        return standardised_likelihood(self.n)


@dataclass(frozen=True, eq=False)
class Results:
    """Everything in a results folder."""

    points: pd.DataFrame  # as `store.load` gives them, in the order of time; runs without points have no row
    runs: pd.DataFrame  # one row for each run, also for those that failed: KEY, status, reason, where and how
    waiting: int  # planned runs that have not started
    sizes: dict[str, Size]
    fidelity: list[dict[str, Any]]

    @property
    def failed(self) -> pd.DataFrame:
        """The runs that failed."""
        return self.runs[self.runs["status"].isin(store.FAILED_STATUSES)]

    @cached_property
    def smoothed(self) -> pd.DataFrame:
        """The points with the values of the smoothed curves."""
        return smooth(self.points)

    @cached_property
    def final(self) -> pd.DataFrame:
        """The last smoothed point of each run."""
        return self.smoothed.groupby(KEY, sort=False).tail(1)

    @cached_property
    def bounding(self) -> set[str]:
        """The methods whose `elbo` is a lower bound on, or the value of, the exact log marginal likelihood."""
        return bounding_methods(self.points)

    @cached_property
    def milestones(self) -> pd.DataFrame:
        """The ends of stages that were not cut short."""
        return milestones(self.points)

    @cached_property
    def checkpoints(self) -> pd.DataFrame:
        """The M of the reference on each data set, and when they were finished."""
        return checkpoints(self.points)

    @cached_property
    def checkpoint_values(self) -> pd.DataFrame:
        """The losses of each run at each checkpoint, and at its end."""
        return checkpoint_values(self.points, self.smoothed, self.checkpoints)

    @cached_property
    def frontiers(self) -> dict[tuple[str, str], dict[str, dict[str, Curve]]]:
        """Median frontiers by name of the metric and cost, then by data set, then by method.

        Of the log marginal likelihood only lower bounds have one: an estimate may be too high, and that of another
        model is not comparable.
        """
        methods = set(self.runs["method"])
        bounding = {name for name in methods if is_lower_bound(name, has_upper=False)} | self.bounding
        return {
            (metric.name, cost): frontiers(
                self.smoothed, self.runs, bounding if metric is LML else methods, metric, cost
            )
            for metric in METRICS
            for cost in COSTS
        }


def read(folder: Path) -> Results:
    """Read a results folder; ValueError if it holds no runs."""
    recorded = store.recorded_runs(folder)
    points = store.load_runs(folder, recorded)
    runs = _runs(recorded)
    if runs.empty:
        raise ValueError(f"{folder} holds no runs: `nearexact bench run --out {folder}` makes some")
    repeated = runs[runs.duplicated(KEY)]
    if len(repeated):
        run = ", ".join(f"{name} {value}" for name, value in repeated.iloc[0][KEY].items())
        raise ValueError(f"{folder} holds more than one run of {run}: a report is on one results folder")
    started = set(runs[KEY].itertuples(index=False, name=None))
    waiting = sum((spec.dataset, spec.method, spec.seed) not in started for spec in store.planned(folder))
    points = tidy(points)
    return Results(points, runs, waiting, _sizes(runs, points), store.read_fidelity(folder))


def _runs(recorded: Iterable[store.RunFolder]) -> pd.DataFrame:
    rows = []
    for run in recorded:
        content = run.read()
        if not content:
            continue  # `store.load_runs` has warned
        spec, hardware = content["spec"], content.get("hardware") or {}
        rows.append(
            {
                **{name: spec[name] for name in KEY},
                "status": str(run.status()),
                "reason": content.get("reason") or "",
                "points": content.get("points"),
                "training_seconds": content.get("training_seconds"),
                "evaluation_seconds": content.get("evaluation_seconds"),
                "peak_memory_mb": content.get("peak_memory_mb"),
                "budget_seconds": spec.get("budget_seconds"),
                "threads": spec.get("threads"),
                "device": hardware.get("gpu") or spec.get("device"),
                "processor": hardware.get("processor"),
                "system": hardware.get("system"),
                "versions": content.get("versions") or {},
                "settings": {**(spec.get("options") or {}), **(content.get("settings") or {})},
                "git_commit": content.get("git_commit"),
                "data": content.get("data"),
            }
        )
    return pd.DataFrame(rows)


def _sizes(runs: pd.DataFrame, points: pd.DataFrame) -> dict[str, Size]:
    return {str(name): _size(str(name), group, points) for name, group in runs.groupby("dataset")}


def _size(name: str, runs: pd.DataFrame, points: pd.DataFrame) -> Size:
    """The size that the runs have recorded, else the registry's, else that of the constant predictor's likelihood."""
    for data in runs["data"]:
        if data:
            return Size(data["n_train"], data["inputs"])
    if name in datasets.REGISTRY:
        dataset = datasets.REGISTRY[name]
        return Size(int(datasets.TRAINING_SHARE * dataset.rows), dataset.inputs)
    likelihoods = points.loc[(points["dataset"] == name) & (points["method"] == "mean"), "elbo"]
    counts = (likelihoods / standardised_likelihood(1)).round()
    counts = counts[counts.between(1, LARGEST_COUNT)]
    return Size(int(counts.iloc[0]) if len(counts) else None, None)
