"""A results folder as the analysis needs it: the points of the traces, the runs, and how large the data sets are."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from nearexact.bench import datasets, store
from nearexact.bench.analysis.points import KEY, tidy
from nearexact.bench.fidelity import FILE as FIDELITY
from nearexact.bench.running.sweep import planned
from nearexact.noise_only import standardised_likelihood


@dataclass(frozen=True)
class Size:
    """The size of a data set's training part; None where it is not known."""

    n: int | None
    inputs: int | None

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
        return self.runs[self.runs["status"].isin(store.FAILED)]


def read(folder: Path) -> Results:
    """Read a results folder; ValueError if it holds no runs."""
    points = store.load(folder)  # also says if there is no such folder
    runs = _runs(folder)
    if runs.empty:
        raise ValueError(f"{folder} holds no runs: `nearexact bench run --out {folder}` makes some")
    repeated = runs[runs.duplicated(KEY)]
    if len(repeated):
        run = ", ".join(f"{name} {value}" for name, value in repeated.iloc[0][KEY].items())
        raise ValueError(f"{folder} holds more than one run of {run}: a report is on one results folder")
    started = set(runs[KEY].itertuples(index=False, name=None))
    waiting = sum((spec.dataset, spec.method, spec.seed) not in started for spec in planned(folder))
    return Results(tidy(points), runs, waiting, _sizes(runs, points), _fidelity(folder / FIDELITY))


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
    return {str(name): _size(str(name), group, points) for name, group in runs.groupby("dataset")}


def _size(name: str, runs: pd.DataFrame, points: pd.DataFrame) -> Size:
    """The size that the runs have recorded, else the registry's, else that of the constant predictor's likelihood."""
    for data in runs["data"]:
        if data:
            return Size(int(data["n_train"]), int(data["inputs"]))
    if name in datasets.REGISTRY:
        dataset = datasets.REGISTRY[name]
        return Size(int(datasets.TRAINING_SHARE * dataset.rows), dataset.inputs)
    likelihoods = points.loc[(points["dataset"] == name) & (points["method"] == "mean"), "elbo"].dropna()
    return Size(round(likelihoods.iloc[0] / standardised_likelihood(1)) if len(likelihoods) else None, None)


def _fidelity(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    try:
        records = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from error
    if not isinstance(records, list) or not all(isinstance(record, dict) for record in records):
        raise ValueError(f"{path} must hold a list of records, got {type(records).__name__}")
    return records
