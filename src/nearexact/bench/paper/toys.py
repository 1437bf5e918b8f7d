"""The paper's toy problems: bounds on the log marginal likelihood and hyperparameters against M, next to exact values.

All rows are trained on, by Algorithm 1, for each M of a list. Targets are standardised; inputs are as they come, so
that the step is where the arc-cosine kernel can have one. The paper says neither; both are ours.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from nearexact import files
from nearexact.bench import datasets
from nearexact.evidence import CERTIFIED_GAP
from nearexact.gp import ExactObjective, ExactTraining, SparsePosterior, Stage, Training
from nearexact.kernels.base import Kernel
from nearexact.kernels.names import named_kernel
from nearexact.scaling import Scaling
from nearexact.typing import FloatArray

if TYPE_CHECKING:
    from nearexact.bench.running.watcher import Event

KERNELS = ("se", "matern12", "matern32", "matern52", "arccosine")  # whose exact likelihoods are compared
GRID_POINTS, GRID_MARGIN = 400, 0.15  # of the example's curve, and how far it goes beyond the data
SEED = 0


@dataclass(frozen=True)
class Toy:
    """A data set, a kernel, the M to go through, and the M of the example."""

    dataset: str
    kernel: str
    sizes: tuple[int, ...]
    example: int
    caption: str  # what the paper says about it


TOYS = {
    "snelson": Toy(
        "snelson",
        "se",
        tuple(range(2, 31)),
        12,
        "SE has the highest likelihood; the ELBO has converged with M = 12, the upper bound with M > 16",
    ),
    "step-matern12": Toy(
        "step",
        "matern12",
        (2, 5, 10, 20, 35, 50, 75, 100, 125, 150, 175, 190, 200),
        20,
        "Matérn 1/2 has the highest likelihood of the stationary kernels; the bounds do not meet, and the"
        " hyperparameters do not converge even when M is about N",
    ),
    "step-arccosine": Toy(
        "step",
        "arccosine",
        (1, 2, 3, 4, 5, 6, 8, 10, 12),
        4,
        "the bounds converge quickly: four points are enough",
    ),
}


@dataclass(frozen=True)
class ToyStudy:
    """One of the toys; its results are three tables."""

    name: str
    out: Path
    total: int = 0

    @property
    def toy(self) -> Toy:
        return TOYS[self.name]

    def run(self, on_event: Callable[[Event], None] = lambda _: None) -> None:
        """Train for all M and for all kernels, unless the tables are there."""
        if all(path.is_file() for path in self._tables.values()):
            return
        self.out.mkdir(parents=True, exist_ok=True)
        X, y = self.data
        bounds, example = train(self.toy, X, y)
        for name, table in (("bounds", bounds), ("example", example), ("exact", exact_likelihoods(X, y, KERNELS))):
            files.write_text(self._tables[name], table.to_csv(index=False))

    def write(self) -> list[Path]:
        """The figure, next to the tables that it shows."""
        from nearexact.bench.paper.toy_figures import draw  # only here: it imports matplotlib

        figure, paths = draw(self), [self.out / f"{self.name}.{suffix}" for suffix in ("pdf", "png")]
        for path in paths:
            with files.replacing(path) as temporary:
                figure.savefig(temporary, format=path.suffix[1:], dpi=200)
        return [*paths, *self._tables.values()]

    def findings(self) -> list[str]:
        """What came of it, next to the paper's caption."""
        near = CERTIFIED_GAP * len(self.data[1])
        lines = [f"paper: {self.toy.caption}"]
        for column, what in (("elbo", "ELBO"), ("upper_bound", "upper bound")):
            m = converged_from(self.bounds, self.bounds[column] - self.exact_lml, near)
            lines.append(f"here: the {what} is within {near:.3g} nats of the exact optimum from {_m(m)} on")
        gap = self.bounds["upper_bound"] - self.bounds["elbo"]
        lines.append(f"here: the bounds meet to {near:.3g} nats from {_m(converged_from(self.bounds, gap, near))} on")
        ranked = self.exact.sort_values("log_marginal_likelihood", ascending=False)
        values = (f"{row.kernel} {row.log_marginal_likelihood:.1f}" for row in ranked.itertuples())
        return [*lines, f"here: exact log marginal likelihoods: {', '.join(values)}"]

    @cached_property
    def data(self) -> tuple[FloatArray, FloatArray]:
        """X [N, 1] and y [N] with mean 0 and variance 1."""
        X, y = datasets.find(self.toy.dataset).load()
        return X, Scaling.of(y).apply(y)

    @property
    def bounds(self) -> pd.DataFrame:
        """One row for each M: bounds, the exact likelihood at the same hyperparameters, and these."""
        return self._read("bounds")

    @property
    def example(self) -> pd.DataFrame:
        """Predictions of the example's model on a grid; its inducing points are where `inducing` is set."""
        return self._read("example")

    @property
    def exact(self) -> pd.DataFrame:
        """One row for each kernel: the exact GP at its optimum."""
        return self._read("exact")

    @property
    def exact_lml(self) -> float:
        """The exact likelihood's optimum with the kernel of this toy."""
        return float(self.exact.set_index("kernel")["log_marginal_likelihood"][self.toy.kernel])

    @property
    def _tables(self) -> dict[str, Path]:
        return {name: self.out / f"{name}.csv" for name in ("bounds", "example", "exact")}

    def _read(self, name: str) -> pd.DataFrame:
        path = self._tables[name]
        if not path.is_file():
            raise ValueError(f"there is no {path}: run the preset {self.name!r} first")
        return pd.read_csv(path)


def study(name: str, out: Path, scale: str | None, threads: int | None) -> ToyStudy:
    """The toy of that name; it has one scale, and a problem so small needs no choice of threads."""
    return ToyStudy(name, out)


def train(toy: Toy, X: FloatArray, y: FloatArray) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Bounds and hyperparameters for each M, and the example's predictions."""
    rows: list[dict[str, Any]] = []
    examples: list[pd.DataFrame] = []

    def after_stage(stage: Stage, posterior: SparsePosterior) -> None:
        exact = ExactObjective(stage.kernel, stage.noise_variance, X, y)
        rows.append(
            {
                "m": stage.m,
                "elbo": stage.objective,
                "upper_bound": stage.upper_bound,
                "exact_lml": exact.factorise(stage.kernel, stage.noise_variance).lml,
                **_hyperparameters(stage.kernel, stage.noise_variance),
            }
        )
        if stage.scheduled_m == toy.example:
            examples.append(_example(posterior, X))

    training = Training(
        named_kernel(toy.kernel), X, y, procedure="paper", inducing=toy.sizes, seed=SEED, on_stage=after_stage
    )
    training.run()
    return pd.DataFrame(rows), pd.concat(examples)


def exact_likelihoods(X: FloatArray, y: FloatArray, kernels: Sequence[str]) -> pd.DataFrame:
    """The exact GP's optimum with each kernel."""
    rows = []
    for name in kernels:
        training = ExactTraining(named_kernel(name), X, y, seed=SEED)
        training.run()
        values = _hyperparameters(*training.layout.unpack(training.best_theta))
        rows.append({"kernel": name, "log_marginal_likelihood": training.best_lml, **values})
    return pd.DataFrame(rows)


def converged_from(bounds: pd.DataFrame, difference: pd.Series, tolerance: float) -> int | None:
    """The first M from which on a difference stays within the tolerance; None if it does not even at the last M."""
    within = difference.abs().to_numpy() <= tolerance
    outside = np.flatnonzero(~within)
    first = 0 if not len(outside) else int(outside[-1]) + 1
    return None if first == len(within) else int(bounds["m"].iloc[first])


def _m(m: int | None) -> str:
    return "no M" if m is None else f"M = {m}"


def _hyperparameters(kernel: Kernel, noise_variance: float) -> dict[str, float]:
    """By name; there is one input, so each is one number."""
    return {**{name: float(np.ravel(v)[0]) for name, v in kernel.parameters.items()}, "noise_variance": noise_variance}


def _example(posterior: SparsePosterior, X: FloatArray) -> pd.DataFrame:
    margin = GRID_MARGIN * np.ptp(X)
    grid = np.linspace(X.min() - margin, X.max() + margin, GRID_POINTS)
    Z = posterior.inducing_points[:, 0].numpy()
    x = np.concatenate([grid, Z])
    mean, variance = (part.numpy() for part in posterior.predict(x[:, None]))
    std = np.sqrt(variance + posterior.noise_variance)
    return pd.DataFrame({"x": x, "mean": mean, "std": std, "inducing": [False] * len(grid) + [True] * len(Z)})
