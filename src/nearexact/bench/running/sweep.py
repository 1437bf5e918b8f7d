"""Many runs, each in a process of its own, watched from outside: what is finished is skipped, what fails is recorded.

A sweep can be stopped at any moment and in any way; the same command continues it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import psutil
import torch

from nearexact.bench import datasets, methods, store
from nearexact.bench.running.runner import CANNOT_WRITE, DONE_ALREADY, LOCKED
from nearexact.bench.store import RunFolder, RunSpec
from nearexact.limits import parse_bytes, parse_seconds

PLAN = "experiment.json"  # in the results folder: the runs that were asked for, so that `status` knows what is left
LOOK_AGAIN_SECONDS = 0.1
MACHINE_SHARE = 0.9  # of the machine's memory, which no run may exceed even without a limit of its own


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
        made = [
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
        return list({spec.folder(self.out): spec for spec in made}.values())  # what is named twice is made once

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
        try:
            torch.empty(0, device=self.device)
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


@dataclass(frozen=True)
class Event:
    """Something to show: a run and where it stands. `point` is the last line of its trace."""

    spec: RunSpec
    status: str
    reason: str = ""
    point: dict[str, Any] = field(default_factory=dict)


def run_sweep(
    experiment: Experiment, *, retry_failed: bool = False, on_event: Callable[[Event], None] = lambda _: None
) -> None:
    """Make the runs that are not done yet. Ctrl-C stops the running ones, which start again next time."""
    experiment.check()
    waiting = _prepare(experiment, retry_failed, on_event)
    active: list[_Process] = []
    try:
        while waiting or active:
            while waiting and len(active) < experiment.jobs:
                active.append(_Process(waiting.pop(0), experiment.out, retry_failed))
            time.sleep(LOOK_AGAIN_SECONDS)
            for process in list(active):
                event = process.look()
                on_event(event)
                if event.status != store.RUNNING:
                    active.remove(process)
    finally:
        for process in active:
            process.stop()


def _prepare(experiment: Experiment, retry_failed: bool, on_event: Callable[[Event], None]) -> list[RunSpec]:
    """The runs that are to be made; the others are shown as they are."""
    specs = experiment.specs()
    for spec in specs:
        _check_same(RunFolder(spec.folder(experiment.out)), spec)
    _write_plan(experiment.out, specs)
    waiting = []
    for spec in specs:
        folder = RunFolder(spec.folder(experiment.out))
        status = folder.status()
        if status in store.ENDED and not (retry_failed and status in store.FAILED):
            on_event(Event(spec, status, folder.read().get("reason", "")))
        else:
            waiting.append(spec)
    return waiting


def _check_same(folder: RunFolder, spec: RunSpec) -> None:
    """ValueError if the folder holds a run that was made with other settings."""
    content = folder.read()
    if content.get("status") in store.ENDED and content.get("spec") != json.loads(json.dumps(asdict(spec))):
        old, new = content.get("spec") or {}, asdict(spec)
        changed = ", ".join(f"{key}: {old.get(key)!r}, now {new[key]!r}" for key in new if old.get(key) != new[key])
        raise ValueError(f"{folder.path} holds a run with other settings ({changed}): choose another output folder")


def _write_plan(out: Path, specs: Iterable[RunSpec]) -> None:
    try:
        out.mkdir(parents=True, exist_ok=True)
        known = {str(spec.folder(out).relative_to(out)): asdict(spec) for spec in [*planned(out), *specs]}
        store.write_whole(out / PLAN, json.dumps(known, indent=1) + "\n")
    except OSError as error:
        raise OSError(f"results cannot be written to {out}: {error}") from error


def planned(out: Path) -> list[RunSpec]:
    """The runs that earlier sweeps into this folder were asked for."""
    try:
        return [RunSpec(**spec) for spec in json.loads((out / PLAN).read_text(encoding="utf-8")).values()]
    except (OSError, ValueError, TypeError, AttributeError):
        return []


class _Process:
    """One run while it is under way."""

    def __init__(self, spec: RunSpec, out: Path, retry_failed: bool) -> None:
        self.spec, self.folder = spec, RunFolder(spec.folder(out).resolve())
        self._started = time.monotonic()
        self.folder.path.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-P", "-m", "nearexact.bench.running.runner", str(self.folder.path)]
        command += [json.dumps(asdict(spec)), *(["again"] if retry_failed else [])]
        threads = {name: str(spec.threads) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")}
        with (self.folder.path / "log.txt").open("ab") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,  # never written to: that it closes tells the run that this process has ended
                stdout=log,
                stderr=log,
                env={**os.environ, **threads},
                start_new_session=True,  # Ctrl-C is for the sweep, which then ends its runs
            )

    def look(self) -> Event:
        """Where the run stands; ends it if it has gone too far."""
        code = self._process.poll()
        if code is None:
            verdict = self._beyond_limits()
            if verdict is None:
                return Event(self.spec, store.RUNNING, point=self.folder.last_point())
            self.stop()
            self._end_as(*verdict)
        elif code == LOCKED:
            return Event(self.spec, "elsewhere", "another process is writing this run")
        elif code == CANNOT_WRITE:
            raise OSError(f"results cannot be written to {self.folder.path}: {self.folder.read().get('reason', '')}")
        elif code != DONE_ALREADY:
            self._end_as(store.KILLED, self._last_words(code))  # unless it has told itself how it ended
        content, points = self.folder.read(), self.folder.points()[0]
        return Event(self.spec, content["status"], content.get("reason", ""), points[-1] if points else {})

    def _end_as(self, status: str, reason: str) -> None:
        """Record how a run ended that could not do it itself; its process is gone."""
        with self.folder.lock().acquire(timeout=10.0):
            if self.folder.read().get("status") == store.RUNNING:
                points = self.folder.points()[0]
                last = points[-1] if points else {}
                known = {"training_seconds": last.get("elapsed"), "peak_memory_mb": last.get("peak_memory_mb")}
                self.folder.update(status=status, reason=reason, finished=time.time(), points=len(points), **known)

    def _beyond_limits(self) -> tuple[str, str] | None:
        """Status and reason if the run has to be ended."""
        if time.monotonic() - self._started > self.spec.hard_limit_seconds:
            return store.KILLED, f"the hard limit of {self.spec.hard_limit_seconds:g} s of wall-clock time has passed"
        limit = self.spec.memory_limit or MACHINE_SHARE * psutil.virtual_memory().total
        with suppress(psutil.Error):
            process = psutil.Process(self._process.pid)
            resident = sum(p.memory_info().rss for p in [process, *process.children(recursive=True)])
            if resident > limit:
                return store.OUT_OF_MEMORY, f"{resident / 1e6:.0f} MB resident, the limit is {limit / 1e6:.0f} MB"
        return None

    def _last_words(self, code: int) -> str:
        if code == -9:
            return "ended by signal 9 from outside: perhaps the system ran out of memory"
        log = (self.folder.path / "log.txt").read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return f"exit status {code}{': ' + log[-1] if log else ''}"

    def stop(self) -> None:
        """End the process, with whatever it has started, and wait until it is gone."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
