"""The presets by name: experiments of the paper, or about its open questions, that one command runs and draws.

A results folder says in preset.json which preset at which scale it is of, so that figures can be drawn again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from nearexact import files

if TYPE_CHECKING:
    from nearexact.bench.running.watcher import Event

RECORD = "preset.json"


class Study(Protocol):
    """A preset at a scale, with a folder for its results."""

    @property
    def total(self) -> int:
        """How many runs of the harness it has; 0 if it does not need the harness."""

    def run(self, on_event: Callable[[Event], None]) -> None:
        """Do what is not done yet."""

    def write(self) -> list[Path]:
        """Tables and figures of what is there; their paths."""

    def findings(self) -> list[str]:
        """What came of it, in sentences."""


@dataclass(frozen=True)
class Preset:
    """An experiment by name. Its module has a function `study(preset, out, scale, threads)`."""

    name: str
    module: str
    description: str
    scales: Mapping[str, str] = field(default_factory=dict)  # what each means; empty where there is one size only

    def study(self, out: Path, scale: str | None, threads: int | None = None) -> Study:
        """The preset at this scale; ValueError where there is no such scale, or where one has to be chosen."""
        if scale not in self.scales and (scale is not None or self.scales):
            choice = f"{', '.join(self.scales)}: choose one with --scale" if self.scales else "none: leave it out"
            raise ValueError(f"the scales of {self.name} are {choice}, got {scale!r}")
        study: Study = import_module(f"nearexact.bench.paper.{self.module}").study(self.name, out, scale, threads)
        return study


PRESETS = {
    preset.name: preset
    for preset in (
        Preset("snelson", "toys", "figure 1: SE on Snelson's data, where the bounds meet with few points"),
        Preset("step-matern12", "toys", "figure 2: Matérn 1/2 on a step, where the bounds do not meet"),
        Preset("step-arccosine", "toys", "appendix: the arc-cosine kernel on the step, where they do"),
        Preset(
            "uci",
            "uci",
            "figures 3 and 4, the appendix's figures and tables: methods on UCI data under time budgets",
            {
                "full": "the paper's: twelve data sets, 5 splits, 8 hours a run, M to 10,000",
                "laptop": "twelve data sets, 3 splits, 10 minutes a run, M to 2000",
                "smoke": "embedded data, 1 split, 5 seconds a run: about two minutes",
            },
        ),
        Preset(
            "svgp",
            "svgp",
            "appendix C: how SVGP's settings change its training, next to SGPR",
            {
                "full": "the paper's: 96 settings, M = 1000, 20,000 steps on keggundirected; SGPR on 5 splits",
                "laptop": "the figure's 10 settings, M = 200, 1000 steps on kin8nm; SGPR on 3 splits",
                "smoke": "the figure's 10 settings, M = 20, 50 steps on generated data; SGPR on 2 splits",
            },
        ),
        Preset(
            "kernels",
            "kernels",
            "the first open question: how many points near-exactness takes, by kernel",
            {
                "full": "elevators, kin8nm, naval, power; 3 splits, 2 hours a run, M to 10,000",
                "laptop": "the same with 1 split, 10 minutes a run, M to 2000",
                "smoke": "small data sets, 1 split, 20 seconds a run",
            },
        ),
    )
}


def find(name: str) -> Preset:
    """The preset of that name."""
    if name not in PRESETS:
        raise ValueError(f"there is no preset {name!r}; there are {', '.join(PRESETS)}")
    return PRESETS[name]


def claim(out: Path, preset: Preset, scale: str | None) -> None:
    """Note in the folder what it is of; ValueError if it is of something else already."""
    record = {"preset": preset.name, "scale": scale}
    if (out / RECORD).is_file():
        earlier = _read(out)
        if earlier != record:
            raise ValueError(f"{out} has results of {earlier}, not of {record}: choose another folder")
        return
    out.mkdir(parents=True, exist_ok=True)
    files.write_text(out / RECORD, json.dumps(record) + "\n")


def recorded(out: Path) -> Study:
    """The study whose results are in a folder."""
    if not (out / RECORD).is_file():
        raise ValueError(f"{out} has no {RECORD}: make results with `nearexact paper run NAME --out {out}`")
    record = _read(out)
    return find(str(record.get("preset"))).study(out, record.get("scale"))


def _read(out: Path) -> dict[str, str | None]:
    try:
        record = json.loads((out / RECORD).read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{out / RECORD} cannot be read: {error}") from error
    if not isinstance(record, dict):
        raise ValueError(f"{out / RECORD} must say which preset and scale the results are of, got {record!r}")
    return record
