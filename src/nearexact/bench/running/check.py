"""Does a method keep to the protocol? Short real runs of it, and what they show, in words."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from nearexact.bench import store
from nearexact.bench.datasets import load_split
from nearexact.bench.running.experiment import Experiment
from nearexact.bench.running.sweep import run_sweep
from nearexact.bench.store import RunFolder

SMALL, LARGER = "diabetes", "conformance"
BUDGET, SHORT_BUDGET = 20.0, 1.0  # seconds
OVERRUN = 1.0  # seconds of training by which a run may exceed its budget: one step of the method
LEAST_CALIBRATION = 0.2  # mean predicted variance as a share of the mean squared error, where most of it is noise
HIDDEN_WORK = 2.0  # seconds of a first prediction that are no matter, whatever the training took
REPEATED = 1e-6  # relative difference between two runs with one seed


@dataclass(frozen=True)
class Finding:
    """One rule, whether it was kept, and how it shows."""

    rule: str
    kept: bool
    explanation: str


def check_method(name: str, options: Mapping[str, Any] | None = None) -> list[Finding]:
    """Run a method on small data and look at what it leaves behind."""
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor() as pool:
        again = pool.submit(_run, name, options, Path(folder, "again"), SMALL, BUDGET)  # its timing does not matter
        first = _run(name, options, Path(folder, "first"), SMALL, BUDGET)
        second = again.result()
        short = _run(name, options, Path(folder, "short"), LARGER, SHORT_BUDGET)
        return list(_findings(first, second, short))


def _run(name: str, options: Mapping[str, Any] | None, out: Path, dataset: str, budget: float) -> RunFolder:
    experiment = Experiment(
        methods=[name],
        datasets=[dataset],
        out=out,
        budget_seconds=budget,
        threads=1,
        options={name: dict(options)} if options else {},
    )
    run_sweep(experiment)
    return RunFolder(experiment.specs()[0].folder(out))


def _findings(first: RunFolder, second: RunFolder, short: RunFolder) -> Iterator[Finding]:
    content = first.read()
    ended_well = content.get("status") in store.SUCCESSFUL_STATUSES
    yield Finding("runs to its end", ended_well, f"{content.get('status')}: {content.get('reason')}")
    points, problems = first.points()
    milestones = [point for point in points if point["milestone"]]
    yield Finding("reports predictions", bool(points), f"{len(points)} points on {SMALL} within {BUDGET:g} s")
    yield Finding(
        "reports a milestone",
        bool(milestones),
        f"{len(milestones)} milestones; report(..., milestone=True) marks a model worth keeping",
    )
    if not milestones:
        return
    times = [point["elapsed"] for point in points]
    ordered = not problems and all(a <= b for a, b in pairwise(times))
    yield Finding("leaves a well-formed trace", ordered, "; ".join(problems) or f"{len(times)} lines, times in order")

    last = len(points) - 1 - [point["milestone"] for point in reversed(points)].index(True)
    with np.load(first.path / store.PREDICTIONS / f"{last}.npz") as saved:
        mean, variance = saved["mean"], saved["variance"]
    finite = bool(np.isfinite(mean).all() and np.isfinite(variance).all() and (variance > 0.0).all())
    yield Finding("predicts finite means and positive variances", finite, f"at the {len(mean)} test points of {SMALL}")
    if finite:
        error = float(np.mean((mean - load_split(SMALL, 0).y_test) ** 2))
        yield Finding(
            "includes the noise in its variances",
            float(variance.mean()) > LEAST_CALIBRATION * error,
            f"mean variance {variance.mean():.3g}, mean squared error {error:.3g}; variances must be those of a new"
            " observation, not of the function without noise",
        )

    hidden = max(point["first_predict_seconds"] for point in points)
    trained = float(content.get("training_seconds") or 0.0)
    yield Finding(
        "trains while the clock runs",
        hidden <= max(HIDDEN_WORK, trained),
        f"the longest first prediction, of one row, took {hidden:.2f} s after {trained:.2f} s of training; what belongs"
        " to training must not be put off until then",
    )

    others = [point for point in second.points()[0] if point["milestone"]]
    pairs = list(zip(milestones, others, strict=False))
    same = all(np.isclose(a[key], b[key], rtol=REPEATED, equal_nan=True) for a, b in pairs for key in ("rmse", "nlpd"))
    yield Finding(
        "gives the same again with the same seed",
        bool(pairs) and same,
        f"{len(pairs)} milestones compared: " + ", ".join(f"{a['rmse']:.6g} and {b['rmse']:.6g}" for a, b in pairs[:3]),
    )

    spent = float(short.read().get("training_seconds", np.inf))
    yield Finding(
        "keeps to its budget",
        spent <= SHORT_BUDGET + OVERRUN,
        f"{spent:.2f} s of training with a budget of {SHORT_BUDGET:g} s on {LARGER}; a method that takes long steps"
        " should report in between and must let BudgetExhausted pass",
    )
