"""The paper's main experiment: methods under time budgets on UCI data, at its own scale and at smaller ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nearexact.bench import datasets, store
from nearexact.bench.running.experiment import Experiment
from nearexact.bench.running.sweep import run_sweep
from nearexact.bench.running.watcher import Event
from nearexact.bench.store import RunFolder

METHODS = ("sgpr-paper", "itergp-paper", "gpr", "linear", "mean")
SCALES: Mapping[str, Mapping[str, Any]] = {
    "full": {"datasets": datasets.PAPER, "seeds": range(5), "budget_seconds": 8 * 3600.0},
    "laptop": {
        "datasets": datasets.PAPER,
        "seeds": range(3),
        "budget_seconds": 600.0,
        "options": {"sgpr-paper": {"max_inducing": 2000}},
    },
    "smoke": {"datasets": ("diabetes", "heteroscedastic", "step"), "budget_seconds": 5.0},
}


@dataclass(frozen=True)
class SweepStudy:
    """A study that is one sweep of the harness, and its report."""

    out: Path
    experiment: Experiment
    with_published: bool = False

    @property
    def total(self) -> int:
        """How many runs there are."""
        return len(self.experiment.specs())

    def run(self, on_event: Callable[[Event], None] = lambda _: None) -> None:
        """Make the runs that have not ended yet."""
        run_sweep(self.experiment, on_event=on_event)

    def write(self) -> list[Path]:
        """The report."""
        from nearexact.bench.report.page import write_report  # only here: it imports matplotlib

        return write_report(self.experiment.out, self.out / "report", with_published=self.with_published)

    def findings(self) -> list[str]:
        """How the runs ended; the rest is in the report."""
        folders = [RunFolder(spec.folder(self.experiment.out)) for spec in self.experiment.specs()]
        failed = [folder for folder in folders if folder.status() in store.FAILED_STATUSES]
        return [
            f"{len(folders) - len(failed)} of {len(folders)} runs ended as they should",
            *(f"failed: {folder.path}: {folder.read().get('reason', folder.status())}" for folder in failed),
        ]


def study(name: str, out: Path, scale: str | None, threads: int | None) -> SweepStudy:
    """The experiment at a scale. Published results are shown next to it where the data sets are the paper's."""
    settings = SCALES[scale or "full"]
    experiment = Experiment(methods=METHODS, out=out / "results", threads=threads, **settings)
    return SweepStudy(out, experiment, with_published=settings["datasets"] == datasets.PAPER)
