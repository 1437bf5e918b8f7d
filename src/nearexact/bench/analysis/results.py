"""A results folder as the analysis needs it: the points of the traces, the runs, and how large the data sets are.

What several tables and figures need of them, such as smoothed points, is computed here, and only once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from nearexact.bench import datasets, store
from nearexact.bench.analysis.checkpoints import checkpoint_values, checkpoints, milestones
from nearexact.bench.analysis.curves import smooth
from nearexact.bench.analysis.families import bounding_methods, is_lower_bound, ordered
from nearexact.bench.analysis.losses import COSTS, CRPS, LML, METRICS, Metric
from nearexact.bench.analysis.pareto import Curve, frontiers
from nearexact.bench.analysis.points import KEY, LARGEST_COUNT, tidy
from nearexact.bench.method_labels import base_name
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


Goals = Mapping[tuple[str, int, int, str], float]  # frozen losses by data set, seed, rows and metric


@dataclass(frozen=True, eq=False)
class Results:
    """Everything in a results folder. Values beyond a run's budget are left out unless `with_over_budget`."""

    points: pd.DataFrame  # as `store.load` gives them, in the order of time; runs without points have no row
    runs: pd.DataFrame  # one row for each run, also for those that failed: KEY, status, reason, where and how
    waiting: int  # planned runs that have not started
    sizes: dict[str, Size]
    fidelity: list[dict[str, Any]]
    with_over_budget: bool = False
    goals: Goals = field(default_factory=dict)  # what targets and areas measure from, where there are any
    exchanged: list[dict[str, Any]] = field(default_factory=list)  # methods with each other's hyperparameters

    @cached_property
    def bases(self) -> Mapping[str, str]:
        """The base method of each label."""
        bases = self.runs["base_method"] if "base_method" in self.runs else [None] * len(self.runs)
        pairs = zip(self.runs["method"], bases, strict=True)
        return {name: base if isinstance(base, str) else base_name(name) for name, base in pairs}

    def ordered(self, methods: Iterable[str]) -> list[str]:
        """Methods in the order of the tables' rows."""
        return ordered(methods, self.bases)

    @cached_property
    def metrics(self) -> tuple[Metric, ...]:
        """Those to compare by: CRPS only where a run has recorded it, which traces of earlier releases have not."""
        return METRICS if self.points["crps"].notna().any() else tuple(m for m in METRICS if m is not CRPS)

    @cached_property
    def counted(self) -> pd.DataFrame:
        """The points that count: those within the budget, or all of them."""
        return self.points if self.with_over_budget else self.points[~self.points["over_budget"]].reset_index(drop=True)

    @property
    def failed(self) -> pd.DataFrame:
        """The runs that failed."""
        return self.runs[self.runs["status"].isin(store.FAILED_STATUSES)]

    @cached_property
    def smoothed(self) -> pd.DataFrame:
        """The points that count, with the values of the smoothed curves."""
        return smooth(self.counted)

    @cached_property
    def final(self) -> pd.DataFrame:
        """The last smoothed point of each run that counts."""
        return self.smoothed.groupby(KEY, sort=False).tail(1)

    @cached_property
    def bounding(self) -> set[str]:
        """The methods whose `elbo` is a lower bound on, or the value of, the exact log marginal likelihood."""
        return bounding_methods(self.points)

    @cached_property
    def milestones(self) -> pd.DataFrame:
        """The ends of stages that were not cut short."""
        return milestones(self.counted)

    @cached_property
    def checkpoints(self) -> pd.DataFrame:
        """The M of the reference on each data set, and when they were finished."""
        return checkpoints(self.counted)

    @cached_property
    def checkpoint_values(self) -> pd.DataFrame:
        """The losses of each run at each checkpoint, and at its end."""
        return checkpoint_values(self.counted, self.smoothed, self.checkpoints)

    @cached_property
    def compared(self) -> dict[tuple[Metric, str], list[str]]:
        """The methods whose frontiers and areas are compared, for each metric and cost.

        Of the log marginal likelihood only lower bounds are: an estimate may be too high, and that of another model is
        not comparable.
        """
        methods = set(self.runs["method"])
        bounding = {name for name in methods if is_lower_bound(self.bases[name], has_upper=False)} | self.bounding
        shown = {metric: self.ordered(bounding if metric is LML else methods) for metric in self.metrics}
        return {(metric, cost): shown[metric] for metric in self.metrics for cost in COSTS}

    @cached_property
    def frontiers(self) -> dict[tuple[str, str], dict[str, dict[str, Curve]]]:
        """Median frontiers by name of the metric and cost, then by data set, then by method."""
        return {
            (metric.name, cost): frontiers(self.smoothed, self.runs, methods, metric, cost)
            for (metric, cost), methods in self.compared.items()
        }


def read(folder: Path, *, with_over_budget: bool = False, goals: Goals | None = None) -> Results:
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
    compared = store.read_fidelity(folder)
    exchanged = store.read_fidelity(folder, store.EXCHANGE)
    return Results(points, runs, waiting, _sizes(runs, points), compared, with_over_budget, goals or {}, exchanged)


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
                "base_method": spec.get("base_method") or base_name(spec["method"]),
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
