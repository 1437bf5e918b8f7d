"""Sweeps of the tests' plug-ins, and the processes that they leave."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from nearexact.bench.running.experiment import Experiment
from nearexact.bench.running.sweep import run_sweep
from nearexact.bench.running.watcher import Event
from nearexact.bench.store import RunFolder

PLUGINS = Path(__file__).parents[1] / "plugins.py"


def plugin(name: str) -> str:
    return f"{PLUGINS}:{name}"


def experiment(out: Path, *methods: str, **options: Any) -> Experiment:
    fields = {"datasets": ["step"], "budget_seconds": 5.0, "threads": 1, **options}
    return Experiment(methods=list(methods), out=out, **fields)


def two_runs(out: Path, name: str) -> Experiment:
    """Of a plug-in that takes 30 steps of 20 ms; each run writes more than ten lines."""
    method = plugin(name)
    options = {method: {"seconds": 0.02, "steps": 30}}
    return experiment(out, method, seeds=range(2), budget_seconds=60.0, options=options)


def run(one: Experiment, **options: Any) -> tuple[RunFolder, list[Event]]:
    """Make the first run of an experiment."""
    events: list[Event] = []
    run_sweep(one, on_event=events.append, **options)
    return RunFolder(one.specs()[0].folder(one.out)), events


def ahead_once(done: Callable[[], bool]) -> Callable[[], float]:
    """A clock that goes forward by a day, past every limit, once something is done."""
    return lambda: time.monotonic() + (86_400.0 if done() else 0.0)


def children_of(pid: int) -> list[psutil.Process]:
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.Error:
        return []


def still_running(processes: list[psutil.Process]) -> list[psutil.Process]:
    """Those that have not ended after a while. One that was killed may wait for the system to clear it away."""

    def runs(process: psutil.Process) -> bool:
        try:
            return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
        except psutil.NoSuchProcess:
            return False

    deadline = time.monotonic() + 20.0
    while (left := [process for process in processes if runs(process)]) and time.monotonic() < deadline:
        time.sleep(0.02)
    return left
