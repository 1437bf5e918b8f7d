"""What to run: methods, data sets, seeds and limits, as users write them in a file or on the command line."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any

import psutil

from nearexact.bench import datasets, method_labels, methods
from nearexact.bench.store import RunSpec
from nearexact.limits import parse_bytes, parse_seconds

LEAST_HARD_LIMIT = 600.0  # seconds, unless another is given: importing and evaluating take long whatever the budget is
SETTINGS = (
    "methods", "datasets", "out", "seeds", "budget", "hard_limit", "memory_limit", "device", "threads", "jobs",
    "evaluate_every", "kernel", "options", "variants",
)  # fmt: skip


@dataclass(frozen=True)
class LabelledMethod:
    """A method with options, and what it is called."""

    label: str
    reference: str  # a name or file.py:Class
    base_method: str  # its name
    options: dict[str, Any]


@dataclass(frozen=True)
class Experiment:
    """Which runs to make, and under which limits.

    Methods are labels (see `method_labels`) of methods, of `file.py:Class` or of variants. A variant is a name for a
    method with options. `options` are for a method in all its forms and are no part of a label; `kernel` is an option
    for every method that takes one.
    """

    methods: Sequence[str]
    datasets: Sequence[str]
    out: Path
    seeds: Sequence[int] = (0,)
    budget_seconds: float = 600.0
    # Wall-clock, evaluation included; by default five budgets and 2 minutes, and LEAST_HARD_LIMIT at least.
    hard_limit_seconds: float | None = None
    memory_limit: int | None = None
    device: str = "cpu"
    threads: int | None = None  # of a run; all cores, divided by the jobs, by default
    jobs: int = 1
    evaluate_every: int | None = None  # steps; by default an evaluation comes after 15 % more training than the last
    kernel: str | None = None
    options: dict[str, dict[str, Any]] = field(default_factory=dict)  # by method
    variants: dict[str, dict[str, Any]] = field(default_factory=dict)  # by name: {"method": …, "options": {…}}

    def __post_init__(self) -> None:
        for name in ("jobs", "threads", "evaluate_every"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")

    def specs(self) -> list[RunSpec]:
        """The runs, data set by data set, so that a sweep that is stopped early has whole comparisons."""
        hard_limit = self.hard_limit_seconds or max(5.0 * self.budget_seconds + 120.0, LEAST_HARD_LIMIT)
        threads = self.threads or max((psutil.cpu_count(logical=False) or 1) // self.jobs, 1)
        specs = [
            RunSpec(
                dataset=dataset,
                method=method.label,
                seed=seed,
                budget_seconds=self.budget_seconds,
                hard_limit_seconds=hard_limit,
                memory_limit=self.memory_limit,
                device=self.device,
                threads=threads,
                options=method.options,
                reference=method.reference,
                base_method=method.base_method,
                evaluate_every=self.evaluate_every,
            )
            for dataset in self.datasets
            for seed in self.seeds
            for method in self.labelled_methods
        ]
        return list({spec.folder(self.out): spec for spec in specs}.values())  # a run that is named twice is made once

    @cached_property
    def labelled_methods(self) -> list[LabelledMethod]:
        """The methods with their options and labels; ValueError for names that do not exist or mean two things."""
        for name in self.variants:
            if name in methods.names() or not methods.NAME.fullmatch(name):
                raise ValueError(f"a variant needs a name of letters, digits and any of _.+-, not {name!r}, of its own")
        labelled = [self._labelled(text) for text in self.methods]
        for one in labelled:
            for other in labelled:
                if one.base_method == other.base_method and one.reference != other.reference:
                    raise ValueError(f"{one.reference!r} and {other.reference!r} are both called {one.base_method!r}")
                if one.label == other.label and one != other:
                    raise ValueError(f"{one.label!r} is both a variant and the name of {other.reference!r}")
        return labelled

    def kernel_is_not_for(self) -> list[str]:
        """Labels of the methods that have no option `kernel`."""
        return [one.label for one in self.labelled_methods if not methods.takes(one.reference, "kernel")]

    def _labelled(self, text: str) -> LabelledMethod:
        name, own = method_labels.parse(text)
        reference, options = name, dict[str, Any]()
        if name in self.variants:
            variant = self.variants[name]
            reference, options = method_labels.parse(variant["method"])
            options |= variant.get("options", {})
        if self.kernel is not None and "kernel" not in {**options, **own} and methods.takes(reference, "kernel"):
            own = {**own, "kernel": self.kernel}
        options = {**self.options.get(reference, {}), **options, **own}
        base = methods.name_of(reference, options)
        return LabelledMethod(
            method_labels.label(name if name in self.variants else base, own), reference, base, options
        )

    def check(self, *, elsewhere: bool = False) -> None:
        """ValueError for names and options that do not exist, before anything starts.

        Data are downloaded, and the device is looked for, unless the runs are made elsewhere.
        """
        for name in self.datasets:
            files = datasets.find(name).files
            for file in () if elsewhere else files:
                datasets.fetch(file, progress=True)
        for method in self.labelled_methods:
            methods.create(method.reference, method.options)
        references = [method.reference for method in self.labelled_methods]
        unknown = sorted(set(self.options) - set(references))
        if unknown:
            raise ValueError(f"there are options for {unknown}, which are not among the methods {list(self.methods)}")
        if self.kernel is not None and len(self.kernel_is_not_for()) == len(references):
            raise ValueError(f"none of the methods {list(self.methods)} has an option kernel, got {self.kernel!r}")
        if self.device == "cpu" or elsewhere:
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
    """Settings as users write them ("10m", "4GB", a number of seeds) as the fields of an Experiment.

    Variants without methods are all meant.
    """
    unknown = sorted(set(given) - set(SETTINGS))
    if unknown:
        raise ValueError(f"an experiment has the settings {sorted(SETTINGS)}, got {unknown}")
    plain = ("device", "threads", "jobs", "evaluate_every", "kernel", "options", "variants")
    fields: dict[str, Any] = {key: given[key] for key in plain if key in given}
    for key in ("methods", "datasets"):
        if key in given:
            fields[key] = _names(key, given[key])
    if "datasets" in fields:
        fields["datasets"] = datasets.expand(fields["datasets"])
    if "seeds" in given:
        fields["seeds"] = _seeds(given["seeds"])
    for key in ("threads", "jobs", "evaluate_every"):
        if key in given and type(given[key]) is not int:
            raise ValueError(f"{key} must be a whole number, got {given[key]!r}")
    for key in ("device", "kernel"):
        if key in given and not isinstance(given[key], str):
            raise ValueError(f"{key} must be a name, got {given[key]!r}")
    options = given.get("options", {})
    if not isinstance(options, dict) or not all(isinstance(value, dict) for value in options.values()):
        raise ValueError(f"options must be a table for each method, got {options!r}")
    if "variants" in given:
        _check_variants(given["variants"])
        fields.setdefault("methods", list(given["variants"]))
    if "out" in given:
        fields["out"] = Path(str(given["out"]))
    for key in ("budget", "hard_limit"):
        if key in given:
            fields[f"{key}_seconds"] = parse_seconds(given[key])
    if "memory_limit" in given:
        fields["memory_limit"] = parse_bytes(given["memory_limit"])
    return fields


def _names(key: str, given: Any) -> list[str]:
    names = method_labels.split(given) if isinstance(given, str) else given
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValueError(f"{key} must be names, as a list or with commas between, got {given!r}")
    return [name.strip() for name in names]


def _seeds(given: Any) -> tuple[int, ...]:
    """A number of seeds, a list, or on the command line seeds with commas between; "7," is the seed 7 alone."""
    seeds = given
    if isinstance(given, str) and re.fullmatch(r"\s*\d+(\s*,\s*\d+)*\s*,?\s*", given):
        seeds = [int(part) for part in given.split(",") if part.strip()] if "," in given else int(given)
    seeds = list(range(seeds)) if type(seeds) is int else seeds
    if not isinstance(seeds, list) or not seeds or not all(type(seed) is int and seed >= 0 for seed in seeds):
        raise ValueError(f"seeds must be a number of at least 1 or a list of whole numbers, got {given!r}")
    return tuple(seeds)


def _check_variants(given: Any) -> None:
    if not isinstance(given, Mapping):
        raise ValueError(f"variants must be a table for each name, got {given!r}")
    for name, variant in given.items():
        is_right = isinstance(variant, dict) and isinstance(variant.get("method"), str)
        if not is_right or set(variant) - {"method", "options"} or not isinstance(variant.get("options", {}), dict):
            raise ValueError(
                f"the variant {name!r} must have a method, and may have a table of options, got {variant!r}"
            )
