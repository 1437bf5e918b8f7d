"""The paper's experiment on training SVGP (Ober et al., appendix C): a grid of settings, the best one, ablations.

Every combination is a run of the harness in a folder of its own, so that the grid can be stopped and continued. Next to
them is Algorithm 1 at the same M: the mean over splits, by the time since it began with this M.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from nearexact import files
from nearexact.bench import store
from nearexact.bench.running.experiment import Experiment
from nearexact.bench.running.sweep import run_sweep
from nearexact.bench.running.watcher import Event
from nearexact.bench.store import RunFolder
from nearexact.typing import FloatArray


@dataclass(frozen=True)
class Setting:
    """One combination of the grid."""

    batch_size: int
    learning_rate: float
    beta_1: float
    beta_2: float
    scheduler: bool

    @property
    def name(self) -> str:
        schedule = "scheduler" if self.scheduler else "constant"
        return f"batch-{self.batch_size}_rate-{self.learning_rate:g}_betas-{self.beta_1:g}-{self.beta_2:g}_{schedule}"


GRID: Mapping[str, Sequence[Any]] = {
    "batch_size": (100, 1000, 10_000),
    "learning_rate": (0.1, 0.01, 0.001, 0.0001),
    "beta_1": (0.5, 0.9),
    "beta_2": (0.5, 0.999),
    "scheduler": (False, True),
}
PUBLISHED_BEST = Setting(10_000, 0.1, 0.9, 0.999, True)
# Panels of the figure: what is changed together, and how a value of it is written.
ABLATIONS: Mapping[str, tuple[tuple[str, ...], Callable[[Setting], str]]] = {
    "minibatch size": (("batch_size",), lambda s: f"{s.batch_size}"),
    "learning rate": (("learning_rate",), lambda s: f"{s.learning_rate:g}"),
    "(β₁, β₂)": (("beta_1", "beta_2"), lambda s: f"({s.beta_1:g}, {s.beta_2:g})"),
    "learning rate scheduler": (("scheduler",), lambda s: "on" if s.scheduler else "off"),
}
REFERENCE = "sgpr-paper"  # what the grid is compared with, and its folder
SCALES: Mapping[str, Mapping[str, Any]] = {
    "full": {},
    "laptop": {
        "dataset": "kin8nm", "ablation_only": True, "steps": 1000, "inducing": 200, "budget_seconds": 1800.0,
        "reference_seeds": 3,
    },
    "smoke": {
        "dataset": "conformance", "ablation_only": True, "steps": 50, "inducing": 20, "budget_seconds": 30.0,
        "reference_seeds": 2,
    },
}  # fmt: skip


@dataclass(frozen=True)
class SVGPExperiment:
    """What to run. `grid` may be any part of `GRID`; steps and M may be smaller on a small machine."""

    out: Path
    dataset: str = "keggundirected"
    grid: Mapping[str, Sequence[Any]] = field(default_factory=lambda: GRID)
    ablation_only: bool = False  # not the whole grid, only what differs from the published best in one setting
    steps: int = 20_000
    inducing: int = 1000
    budget_seconds: float = 8 * 3600.0
    seed: int = 0
    reference_seeds: int = 5  # splits that SGPR's mean is over
    threads: int | None = None

    def settings(self) -> list[Setting]:
        """The combinations to run."""
        grid = {part.name: self.grid.get(part.name) or GRID[part.name] for part in fields(Setting)}
        settings = [Setting(*values) for values in itertools.product(*grid.values())]
        if not self.ablation_only:
            return settings
        around = {setting for group in ablations(settings, PUBLISHED_BEST).values() for setting in group}
        return [setting for setting in settings if setting in around] or [PUBLISHED_BEST]

    @cached_property
    def experiments(self) -> dict[str, Experiment]:
        """One sweep of one run for each combination, by name, and one for SGPR with as many points."""
        common = {
            "datasets": [self.dataset],
            "budget_seconds": self.budget_seconds,
            "threads": self.threads,
        }
        reference = Experiment(
            methods=[REFERENCE],
            out=self.out / REFERENCE,
            seeds=range(self.seed, self.seed + self.reference_seeds),
            options={REFERENCE: {"inducing": [self.inducing]}},
            **common,  # type: ignore[arg-type]
        )
        size = {"num_inducing": self.inducing, "max_steps": self.steps}
        grid = {
            setting.name: Experiment(
                methods=["svgp"],
                out=self.out / setting.name,
                seeds=(self.seed,),
                options={"svgp": {**asdict(setting), **size}},
                **common,  # type: ignore[arg-type]
            )
            for setting in self.settings()
        }
        return {REFERENCE: reference, **grid}

    @property
    def total(self) -> int:
        """How many runs there are."""
        return sum(len(experiment.specs()) for experiment in self.experiments.values())

    def run(self, on_event: Callable[[Event], None] = lambda _: None) -> None:
        """Make the runs that have not ended yet."""
        for experiment in self.experiments.values():
            experiment.check()  # all of them, before hours are spent on the first
        for name, experiment in self.experiments.items():
            run_sweep(experiment, on_event=lambda event, name=name: on_event(_named(event, name)))  # type: ignore[misc]

    def results(self) -> pd.DataFrame:
        """The last point of each combination, the best bound first; failed ones last."""
        rows = []
        for setting in self.settings():
            (folder,) = self._folders(setting.name)
            points, _ = folder.points()
            last = points[-1] if points else {}
            figures = {key: last.get(key) for key in ("elbo", "rmse", "nlpd", "elapsed")}
            rows.append({**asdict(setting), **figures, "status": folder.status()})
        table = pd.DataFrame(rows).assign(failed=lambda frame: frame["status"].isin(store.FAILED_STATUSES))
        order = {"by": ["failed", "elbo"], "ascending": [True, False]}
        return table.sort_values(**order, na_position="last", ignore_index=True).drop(columns="failed")

    def best(self) -> Setting:
        """The combination with the highest bound at its end; ValueError if none has one."""
        table = self.results()
        table = table[~table["status"].isin(store.FAILED_STATUSES) & table["elbo"].notna()]
        if not len(table):
            raise ValueError(f"no combination of the grid has a result in {self.out}")
        return Setting(**{part.name: table[part.name].iloc[0].item() for part in fields(Setting)})

    def curve(self, name: str) -> pd.DataFrame:
        """Training seconds and −ELBO of one combination; of SGPR, which runs with this M only, the mean over splits."""
        traces = [pd.DataFrame(folder.points()[0]) for folder in self._folders(name)]
        elapsed, elbo = mean_curve([(t["elapsed"].to_numpy(), t["elbo"].to_numpy(float)) for t in traces if len(t)])
        return pd.DataFrame({"elapsed": elapsed, "negative_elbo": -elbo})

    def failures(self) -> list[str]:
        """Which runs failed, and why."""
        ended = [(name, folder.status(), folder) for name in self.experiments for folder in self._folders(name)]
        return [
            f"{name}: {status}: {folder.read().get('reason', '')}"
            for name, status, folder in ended
            if status in store.FAILED_STATUSES
        ]

    def findings(self) -> list[str]:
        """The best combination next to the paper's, and what failed."""
        lines = [f"paper: the best setting is {PUBLISHED_BEST.name}", f"here: the best setting is {self.best().name}"]
        return [*lines, *(f"failed: {failure}" for failure in self.failures())]

    def _folders(self, name: str) -> list[RunFolder]:
        experiment = self.experiments[name]
        return [RunFolder(spec.folder(experiment.out)) for spec in experiment.specs()]

    def write(self) -> list[Path]:
        """The table and the figure; their paths."""
        table, best = self.results(), self.best()
        centre = PUBLISHED_BEST if self.ablation_only and PUBLISHED_BEST in self.settings() else best
        paths = [self.out / name for name in ("svgp.csv", "svgp.pdf", "svgp.png")]
        files.write_text(paths[0], table.to_csv(index=False))
        figure = self.figure(centre)
        for path in paths[1:]:
            with files.replacing(path) as temporary:
                figure.savefig(temporary, format=path.suffix[1:], dpi=200)
        return paths

    def figure(self, centre: Setting) -> Figure:
        """Four panels: −ELBO against training time, one setting changed at a time, and SGPR with as many points."""
        figure = Figure(figsize=(10.0, 7.0), layout="constrained")
        reference, groups = self.curve(REFERENCE), ablations(self.settings(), centre)
        # Linear around zero, so that where SGPR ends and the curves should end is in the logarithmic part.
        ends = [abs(value) for value in reference["negative_elbo"].iloc[-1:] if math.isfinite(value)]
        linear_part = 10.0 ** math.floor(math.log10(max([10.0, *ends])))
        panels: Iterable[Axes] = figure.subplots(2, 2, sharex=True, sharey=True).flat
        for axes, (title, group) in zip(panels, groups.items(), strict=True):
            for setting in group:
                curve = self.curve(setting.name)
                label, width = ABLATIONS[title][1](setting), 2.0 if setting == centre else 1.2
                axes.plot(curve["elapsed"], curve["negative_elbo"], label=label, lw=width)
            label = f"SGPR, M = {self._inducing(REFERENCE)}, mean of {self.reference_seeds}"
            axes.plot(reference["elapsed"], reference["negative_elbo"], "k--", label=label)
            axes.set(title=title, xscale="log")
            axes.set_yscale("symlog", linthresh=linear_part)
            axes.grid(alpha=0.3)
            axes.legend(fontsize="small")
        figure.supxlabel("training time (s)")
        figure.supylabel("negative ELBO (nats)")
        figure.suptitle(f"SVGP on {self.dataset}, M = {self._inducing(centre.name)}, {self.steps} steps")
        return figure

    def _inducing(self, name: str) -> str:
        """How many points a run had in the end: fewer than asked for where more would be copies."""
        return f"{self._folders(name)[0].last_point().get('m', math.nan):.0f}"


def study(name: str, out: Path, scale: str | None, threads: int | None) -> SVGPExperiment:
    """The experiment at a scale."""
    return SVGPExperiment(out, threads=threads, **SCALES[scale or "full"])


def mean_curve(curves: Sequence[tuple[FloatArray, FloatArray]]) -> tuple[FloatArray, FloatArray]:
    """The mean over runs of the last value of each, wherever one of them changes, from where all of them have one.

    A curve is costs that grow, and values. A run that has ended keeps its last value.
    """
    if not curves:
        return np.empty(0), np.empty(0)
    grid = np.unique(np.concatenate([costs for costs, _ in curves]))
    grid = grid[grid >= max(costs[0] for costs, _ in curves)]
    values = [levels[np.searchsorted(costs, grid, side="right") - 1] for costs, levels in curves]
    return grid, np.mean(values, axis=0)


def ablations(settings: Iterable[Setting], best: Setting) -> dict[str, list[Setting]]:
    """For each panel, the best combination and those of the others that differ from it in that setting only."""
    candidates = list(settings)
    return {
        title: [s for s in candidates if replace(best, **{name: getattr(s, name) for name in changed}) == s]
        for title, (changed, _) in ABLATIONS.items()
    }


def _named(event: Event, name: str) -> Event:
    """The event of a run of the grid, shown under the combination's name."""
    return replace(event, spec=replace(event.spec, method=name))
