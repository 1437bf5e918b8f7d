"""The models that runs have kept: hyperparameters from the trace, predictions from the files beside it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from nearexact.bench import datasets, methods, store
from nearexact.bench.method_labels import base_name
from nearexact.bench.protocol import Method, Task
from nearexact.bench.store import RunFolder
from nearexact.kernels.base import Kernel
from nearexact.kernels.names import named_kernel
from nearexact.typing import FloatArray

DEFAULT_KERNEL = "se"  # of traces that do not say theirs
LEAST_VARIANCE = 1e-9  # of a latent function, relative to the kernel's: below that it is rounding noise


@dataclass(frozen=True)
class Gaussian:
    """Latent marginals at the test inputs, and the noise that observations have in addition."""

    mean: FloatArray  # [N*]
    variance: FloatArray  # [N*]
    noise_variance: float

    @property
    def of_observations(self) -> tuple[FloatArray, FloatArray]:
        """Mean and variance with noise."""
        return self.mean, self.variance + self.noise_variance

    def first(self, rows: int) -> Gaussian:
        """The same at the first test inputs."""
        return Gaussian(self.mean[:rows], self.variance[:rows], self.noise_variance)


@dataclass(frozen=True)
class KeptModel:
    """The last model that a run recorded."""

    kernel: Kernel
    kernel_name: str
    noise_variance: float
    m: int | None
    elbo: float
    milestone: bool
    predictions: Gaussian


def latent(posterior: Any, X: FloatArray) -> Gaussian:
    """What a posterior predicts of the latent function."""
    mean, variance = (np.asarray(part) for part in posterior.predict(X))
    return Gaussian(mean, at_least_rounding(posterior.kernel, X, variance), float(posterior.noise_variance))


def at_least_rounding(kernel: Kernel, X: FloatArray, variance: FloatArray) -> FloatArray:
    """Variances of the latent function, no smaller than what rounding leaves of them."""
    return np.maximum(variance, LEAST_VARIANCE * np.asarray(kernel.diag(X)))


def last_model(run: RunFolder, X_test: FloatArray) -> KeptModel | None:
    """The last milestone, or the end of the run if its likelihood is no lower: M may just have grown there."""
    models = [model for number, point in enumerate(run.points()[0]) if (model := _kept(run, number, point, X_test))]
    milestones = [model for model in models if model.milestone]
    if not milestones or models[-1].elbo >= milestones[-1].elbo:
        return models[-1] if models else None
    return milestones[-1]


def _kept(run: RunFolder, number: int, point: dict[str, Any], X_test: FloatArray) -> KeptModel | None:
    """The model of a point of the trace, if its predictions and hyperparameters were kept."""
    path, info = run.path / store.PREDICTIONS / f"{number}.npz", point.get("info", {})
    if not path.exists() or "noise_variance" not in info:
        return None
    try:
        name, noise = str(info.get("kernel", DEFAULT_KERNEL)), float(info["noise_variance"])
        kernel = named_kernel(name)
        kernel = kernel.with_parameters({part: info[part] for part in kernel.parameters})
        with np.load(path) as saved:
            mean, variance = saved["mean"], saved["variance"]
        variance = at_least_rounding(kernel.for_inputs(X_test.shape[1]), X_test, variance - noise)
    except (OSError, ValueError, TypeError, KeyError):
        return None
    m, elbo = point.get("m"), point.get("elbo")
    return KeptModel(
        kernel,
        name,
        noise,
        None if m is None else int(m),
        -math.inf if elbo is None else float(elbo),
        bool(point.get("milestone")),
        Gaussian(mean, variance, noise),
    )


@dataclass(frozen=True)
class SplitRuns:
    """The runs on one split, and the models that they have kept."""

    data: datasets.Split
    specs: dict[RunFolder, dict[str, Any]]
    models: dict[RunFolder, KeptModel]

    @staticmethod
    def of(dataset: str, seed: int, runs: list[RunFolder]) -> SplitRuns:
        """Of these runs, on this split."""
        data = datasets.load_split(dataset, seed)
        kept = {run: model for run in runs if (model := last_model(run, data.X_test)) is not None}
        return SplitRuns(data, {run: run.read()["spec"] for run in runs}, kept)

    def base(self, run: RunFolder) -> str:
        """The base method of a run."""
        return str(self.specs[run].get("base_method") or base_name(self.specs[run]["method"]))


def runs_by_split(results: Any) -> dict[tuple[str, int], list[RunFolder]]:
    """The runs below a folder that say what they are of."""
    by_split: dict[tuple[str, int], list[RunFolder]] = {}
    for run in store.runs(results):
        spec = run.read().get("spec") or {}
        if {"dataset", "seed", "method"} <= spec.keys():
            by_split.setdefault((spec["dataset"], spec["seed"]), []).append(run)
    return by_split


def method_of(spec: dict[str, Any]) -> Method | None:
    """The method of a run; None for a plug-in that is no longer there."""
    try:
        return methods.create(spec.get("reference") or spec["method"], spec.get("options"))
    except ValueError:
        return None


def rebuilt(spec: dict[str, Any], task: Task, kernel: Kernel, noise_variance: float, m: int | None) -> Any | None:
    """A method's own posterior at given hyperparameters; None if it cannot compute that."""
    method = method_of(spec)
    return method.at(task, kernel, noise_variance, m) if method is not None and hasattr(method, "at") else None
