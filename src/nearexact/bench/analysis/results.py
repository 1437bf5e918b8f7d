"""A results folder as the analysis needs it: the points of the traces, the runs, and how large the data sets are."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from nearexact.bench import datasets, store
from nearexact.bench.metrics import COVERAGE_LEVELS

KEY = ["dataset", "method", "seed"]
COVERAGE = [f"coverage_{level}" for level in COVERAGE_LEVELS]
LOG_TWO_PI_E = math.log(2.0 * math.pi) + 1.0


@dataclass(frozen=True)
class Size:
    """Of a data set's training part; None where it is not known."""

    n: int | None
    inputs: int | None

    @property
    def noise_only(self) -> float:
        """Log likelihood of standardised targets under the constant predictor; nan if n is not known."""
        return math.nan if self.n is None else -0.5 * self.n * LOG_TWO_PI_E


@dataclass(frozen=True, eq=False)
class Results:
    """Everything in a results folder."""

    points: pd.DataFrame  # as `store.load` gives them, in the order of time; runs without points have no row
    runs: pd.DataFrame  # one row for each run, also for those that failed: KEY, status, reason, where and how
    waiting: int  # runs that were asked for and have not begun
    sizes: dict[str, Size]
    fidelity: list[dict[str, Any]]

    @property
    def failed(self) -> pd.DataFrame:
        """The runs that failed."""
        return self.runs[self.runs["status"].isin(store.FAILED_STATUSES)]


def read(folder: Path) -> Results:
    """Read a results folder; ValueError if it holds no runs."""
    points = store.load(folder)  # also says if there is no such folder
    runs = _runs(folder)
    if runs.empty:
        raise ValueError(f"{folder} holds no runs: `nearexact bench run --out {folder}` makes some")
    twice = runs[runs.duplicated(KEY)]
    if len(twice):
        one = ", ".join(f"{name} {value}" for name, value in twice.iloc[0][KEY].items())
        raise ValueError(f"{folder} holds more than one run of {one}: a report is on one results folder")
    known = set(runs[KEY].itertuples(index=False, name=None))
    waiting = sum((spec.dataset, spec.method, spec.seed) not in known for spec in store.planned(folder))
    return Results(tidy(points), runs, waiting, _sizes(runs, points), store.read_fidelity(folder))


def tidy(points: pd.DataFrame) -> pd.DataFrame:
    """Points as the analysis takes them: in the order of time, with all columns it may ask for."""
    numbers = [*COVERAGE, "scheduled_m"]
    points = points.reindex(columns=[*points.columns, *(c for c in [*numbers, "stopped"] if c not in points.columns)])
    points[numbers] = points[numbers].apply(pd.to_numeric, errors="coerce")
    points["stopped"] = ["" if reason != reason or reason is None else str(reason) for reason in points["stopped"]]
    points = points[points["elapsed"].notna()]
    return points.sort_values([*KEY, "elapsed"], kind="stable").reset_index(drop=True)


def _runs(folder: Path) -> pd.DataFrame:
    rows = []
    for run in store.runs(folder):
        content = run.read()
        spec = content.get("spec")
        if not isinstance(spec, dict) or not set(KEY) <= spec.keys():
            continue  # `store.load` has warned
        hardware = content.get("hardware") or {}
        rows.append(
            {
                **{name: spec[name] for name in KEY},
                "status": run.status(),
                "reason": str(content.get("reason") or ""),
                "points": content.get("points"),
                "training_seconds": content.get("training_seconds"),
                "peak_memory_mb": content.get("peak_memory_mb"),
                "budget_seconds": spec.get("budget_seconds"),
                "threads": spec.get("threads"),
                "device": hardware.get("gpu") or spec.get("device"),
                "processor": hardware.get("processor"),
                "system": hardware.get("system"),
                "versions": content.get("versions") or {},
                "settings": {**(spec.get("options") or {}), **(content.get("settings") or {})},
                "git_commit": content.get("git_commit"),
                "data": content.get("data") or {},
            }
        )
    return pd.DataFrame(rows)


def _sizes(runs: pd.DataFrame, points: pd.DataFrame) -> dict[str, Size]:
    return {str(name): _size(str(name), mine, points) for name, mine in runs.groupby("dataset")}


def _size(name: str, runs: pd.DataFrame, points: pd.DataFrame) -> Size:
    """As the runs have recorded it, else from the registry, else from the constant predictor's likelihood."""
    for data in runs["data"]:
        if data:
            return Size(int(data["n_train"]), int(data["inputs"]))
    if name in datasets.REGISTRY:
        dataset = datasets.REGISTRY[name]
        return Size(int(datasets.TRAINING_SHARE * dataset.rows), dataset.inputs)
    likelihoods = points.loc[(points["dataset"] == name) & (points["method"] == "mean"), "elbo"].dropna()
    return Size(round(-2.0 * likelihoods.iloc[0] / LOG_TWO_PI_E) if len(likelihoods) else None, None)
