"""How many points near-exactness takes, by kernel: the first question that the paper leaves open (appendix D).

SGPR grows M to the end of its schedule or of its budget; the kernels are variants of one method.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from nearexact import files
from nearexact.bench import datasets, method_labels
from nearexact.bench.paper.uci import SweepStudy
from nearexact.bench.running.experiment import Experiment
from nearexact.bench.store import load
from nearexact.evidence import CERTIFIED_GAP

KERNELS = ("se", "matern52", "matern32", "matern12", "arccosine")
COLOURS = ("#0072B2", "#008A64", "#D55E00", "#B3508A", "#1A1A1A")
LARGE = ("elevators", "kin8nm", "naval", "power")
SMALL = ("conformance", "diabetes", "heteroscedastic", "step")
SCALES: Mapping[str, Mapping[str, Any]] = {
    "full": {"datasets": LARGE, "seeds": range(3), "budget_seconds": 2 * 3600.0, "max_inducing": 10_000},
    "laptop": {"datasets": LARGE, "seeds": (0,), "budget_seconds": 600.0, "max_inducing": 2000},
    "smoke": {"datasets": SMALL, "seeds": (0,), "budget_seconds": 20.0, "max_inducing": 500},
}


@dataclass(frozen=True)
class KernelStudy(SweepStudy):
    """The sweep, with a table and a figure of its own besides the report."""

    def write(self) -> list[Path]:
        """The table, the figure, and the report."""
        paths = [self.out / f"kernels.{suffix}" for suffix in ("csv", "pdf", "png")]
        files.write_text(paths[0], self.table.to_csv(index=False))
        figure = self.figure()
        for path in paths[1:]:
            with files.replacing(path) as temporary:
                figure.savefig(temporary, format=path.suffix[1:], dpi=200)
        return [*paths, *super().write()]

    def findings(self) -> list[str]:
        """By data set, the points that each kernel took."""
        lines = super().findings()
        for name, rows in self.table.groupby("dataset", sort=False):
            taken = [f"{row.kernel} {_taken(row)}" for row in rows.itertuples()]
            taken += [f"{kernel} no M done" for kernel in KERNELS if kernel not in set(rows["kernel"])]
            lines.append(f"{name}: M at which the bounds meet to {CERTIFIED_GAP:g} nats per point: {', '.join(taken)}")
        return lines

    @cached_property
    def stages(self) -> pd.DataFrame:
        """One row for each M that was done: data set, kernel, seed, m, gap per training point, elbo, rmse, nlpd."""
        frame = load(self.experiment.out)
        frame = frame[frame["milestone"] & frame["m"].notna()].copy()
        if not len(frame):
            raise ValueError(f"no M has been done in {self.experiment.out}")
        n = frame["dataset"].map(lambda name: int(datasets.TRAINING_SHARE * datasets.find(name).rows))
        frame["kernel"] = [json.loads(options)["kernel"] for options in frame["options"]]
        frame["gap_per_point"] = (frame["upper_bound"] - frame["lower_bound"]) / n
        columns = ["dataset", "kernel", "seed", "m", "gap_per_point", "elbo", "rmse", "nlpd"]
        return frame[columns].reset_index(drop=True)

    @cached_property
    def table(self) -> pd.DataFrame:
        """For each data set, kernel and seed the least M with a small gap, and the last M with its figures."""
        rows = []
        for (dataset, kernel, seed), stages in self.stages.groupby(["dataset", "kernel", "seed"], sort=False):
            near = stages.loc[stages["gap_per_point"] <= CERTIFIED_GAP, "m"]
            last = stages.iloc[-1]
            figures = {name: last[name] for name in ("gap_per_point", "elbo", "rmse", "nlpd")}
            least = near.min() if len(near) else None
            rows.append(
                {"dataset": dataset, "kernel": kernel, "seed": seed, "near_exact_m": least, "last_m": last["m"]}
                | figures
            )
        table = pd.DataFrame(rows).astype({"near_exact_m": "Int64", "last_m": "Int64"})
        order = {name: position for position, name in enumerate([*self.experiment.datasets, *KERNELS])}
        return table.sort_values(["dataset", "kernel", "seed"], key=lambda c: c.map(order).fillna(c), ignore_index=True)

    def figure(self) -> Figure:
        """A panel for each data set: the gap between the bounds against M, a line for each kernel and seed."""
        names = [name for name in self.experiment.datasets if name in set(self.stages["dataset"])]
        figure = Figure(figsize=(3.2 * len(names), 3.4), layout="constrained")
        panels = figure.subplots(1, len(names), sharey=True, squeeze=False)[0]
        for axes, name in zip(panels, names, strict=True):
            self._draw(axes, name)
        panels[0].set_ylabel("gap between bounds (nats per point)")
        handles = [Line2D([], [], color=c, marker=".", label=name) for c, name in zip(COLOURS, KERNELS, strict=True)]
        figure.legend(handles=handles, fontsize="small", loc="outside right center")
        return figure

    def _draw(self, axes: Axes, dataset: str) -> None:
        stages = self.stages[self.stages["dataset"] == dataset]
        for colour, kernel in zip(COLOURS, KERNELS, strict=True):
            for _, run in stages[stages["kernel"] == kernel].groupby("seed"):
                gaps = run["gap_per_point"].clip(lower=CERTIFIED_GAP / 100.0)  # below, it is nothing but rounding
                axes.plot(run["m"], gaps, ".-", color=colour)
        axes.axhline(CERTIFIED_GAP, color="#8A8A8A", linestyle="--", linewidth=0.9)
        axes.set(title=dataset, xlabel="M", xscale="log", yscale="log")


def _taken(row: Any) -> str:
    if pd.isna(row.near_exact_m):
        return f"more than {row.last_m} (gap {row.gap_per_point:.2g})"
    return str(row.near_exact_m)


def study(name: str, out: Path, scale: str | None, threads: int | None) -> KernelStudy:
    """The experiment at a scale."""
    settings = dict(SCALES[scale or "full"])
    options = {"sgpr": {"max_inducing": settings.pop("max_inducing")}}
    labels = [method_labels.label("sgpr", {"kernel": kernel}) for kernel in KERNELS]
    return KernelStudy(
        out, Experiment(methods=labels, out=out / "results", threads=threads, options=options, **settings)
    )
