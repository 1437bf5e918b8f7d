"""What to run: methods, data sets, seeds and limits, as users write them in a file or on the command line."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import psutil

from nearexact.bench import datasets, methods
from nearexact.bench.store import RunSpec
from nearexact.limits import parse_bytes, parse_seconds


@dataclass(frozen=True)
class Experiment:
    """Which runs to make, and under which limits."""

    methods: Sequence[str]
    datasets: Sequence[str]
    out: Path
    seeds: Sequence[int] = (0,)
    budget_seconds: float = 600.0
    hard_limit_seconds: float | None = None  # wall-clock, evaluation included; five budgets and 2 minutes by default
    memory_limit: int | None = None
    device: str = "cpu"
    threads: int | None = None  # of a run; all cores, divided by the jobs, by default
    jobs: int = 1
    options: dict[str, dict[str, Any]] = field(default_factory=dict)  # by method

    def __post_init__(self) -> None:
        for name, value in (("jobs", self.jobs), ("threads", 1 if self.threads is None else self.threads)):
            if value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")

    def specs(self) -> list[RunSpec]:
        """The runs, data set by data set, so that a sweep that is stopped early has whole comparisons."""
        hard_limit = self.hard_limit_seconds or 5.0 * self.budget_seconds + 120.0
        threads = self.threads or max((psutil.cpu_count(logical=False) or 1) // self.jobs, 1)
        specs = [
            RunSpec(
                dataset=dataset,
                method=method,
                seed=seed,
                budget_seconds=self.budget_seconds,
                hard_limit_seconds=hard_limit,
                memory_limit=self.memory_limit,
                device=self.device,
                threads=threads,
                options=self.options.get(method, {}),
            )
            for dataset in self.datasets
            for seed in self.seeds
            for method in self.methods
        ]
        return list({spec.folder(self.out): spec for spec in specs}.values())  # a run that is named twice is made once

    def check(self) -> None:
        """ValueError for names and options that do not exist, before anything starts."""
        for name in self.datasets:
            for file in datasets.find(name).files:
                datasets.fetch(file, progress=True)
        for name in self.methods:
            methods.create(name, self.options.get(name))
        unknown = sorted(set(self.options) - set(self.methods))
        if unknown:
            raise ValueError(f"there are options for {unknown}, which are not among the methods {list(self.methods)}")
        if self.device == "cpu":
            return
        try:
            import_module("torch").empty(0, device=self.device)  # only here: it takes seconds to import
        except (RuntimeError, AssertionError) as error:  # an unknown name, or no such device here
            raise ValueError(f"there is no device {self.device!r} to run on: {str(error).splitlines()[0]}") from error


def read_experiment(path: Path) -> dict[str, Any]:
    """The settings in an experiment file, in the form of `settings`."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:  # also where it is not UTF-8
        raise ValueError(f"{path} is not an experiment that can be read: {error}") from error
    return settings(**content)


def settings(**given: Any) -> dict[str, Any]:
    """Settings as users write them ("10m", "4GB", a number of seeds) as the fields of an Experiment."""
    names = {"methods", "datasets", "out", "seeds", "budget", "hard_limit", "memory_limit", "device", "threads", "jobs"}
    unknown = sorted(set(given) - names - {"options"})
    if unknown:
        raise ValueError(f"an experiment has the settings {sorted(names | {'options'})}, got {unknown}")
    fields: dict[str, Any] = {key: given[key] for key in ("device", "threads", "jobs", "options") if key in given}
    for key in ("methods", "datasets"):
        if key in given:
            names_given = given[key].split(",") if isinstance(given[key], str) else given[key]
            if not isinstance(names_given, list) or not all(isinstance(name, str) for name in names_given):
                raise ValueError(f"{key} must be names, as a list or with commas between, got {given[key]!r}")
            fields[key] = [name.strip() for name in names_given]
    if "seeds" in given:
        seeds = list(range(given["seeds"])) if isinstance(given["seeds"], int) else given["seeds"]
        if not isinstance(seeds, list) or not seeds or not all(type(seed) is int and seed >= 0 for seed in seeds):
            raise ValueError(f"seeds must be a number of at least 1 or a list of whole numbers, got {given['seeds']!r}")
        fields["seeds"] = tuple(seeds)
    for key in ("threads", "jobs"):
        if key in given and type(given[key]) is not int:
            raise ValueError(f"{key} must be a whole number, got {given[key]!r}")
    options = given.get("options", {})
    if not isinstance(options, dict) or not all(isinstance(value, dict) for value in options.values()):
        raise ValueError(f"options must be a table for each method, got {options!r}")
    if "out" in given:
        fields["out"] = Path(str(given["out"]))
    for key in ("budget", "hard_limit"):
        if key in given:
            fields[f"{key}_seconds"] = parse_seconds(given[key])
    if "memory_limit" in given:
        fields["memory_limit"] = parse_bytes(given["memory_limit"])
    return fields
