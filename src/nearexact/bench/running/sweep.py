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
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import psutil

from nearexact.bench import store
from nearexact.bench.running.experiment import Experiment
from nearexact.bench.running.runner import CANNOT_WRITE, DONE_ALREADY, LOCKED
from nearexact.bench.store import RunFolder, RunSpec, RunStatus

LOOK_AGAIN_SECONDS = 0.1
MACHINE_SHARE = 0.9  # of the machine's memory, which no run may exceed even without a limit of its own


@dataclass(frozen=True)
class Event:
    """Something to show: a run and where it stands. `point` is the last line of its trace."""

    spec: RunSpec
    status: RunStatus
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
                if event.status != RunStatus.RUNNING:
                    active.remove(process)
    finally:
        for process in active:
            process.stop()


def _prepare(experiment: Experiment, retry_failed: bool, on_event: Callable[[Event], None]) -> list[RunSpec]:
    """The runs that are to be made; the others are shown as they are."""
    specs = experiment.specs()
    for spec in specs:
        _check_same(RunFolder(spec.folder(experiment.out)), spec)
    store.add_to_plan(experiment.out, specs)
    waiting = []
    for spec in specs:
        folder = RunFolder(spec.folder(experiment.out))
        status = folder.status()
        if status in store.ENDED_STATUSES and not (retry_failed and status in store.FAILED_STATUSES):
            on_event(Event(spec, status, folder.read().get("reason", "")))
        else:
            waiting.append(spec)
    return waiting


def _check_same(folder: RunFolder, spec: RunSpec) -> None:
    """ValueError if the folder holds a run that was made with other settings."""
    content = folder.read()
    if content.get("status") in store.ENDED_STATUSES and content.get("spec") != json.loads(json.dumps(asdict(spec))):
        old, new = content.get("spec") or {}, asdict(spec)
        changed = ", ".join(f"{key}: {old.get(key)!r}, now {new[key]!r}" for key in new if old.get(key) != new[key])
        raise ValueError(f"{folder.path} holds a run with other settings ({changed}): choose another output folder")


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
                return Event(self.spec, RunStatus.RUNNING, point=self.folder.last_point())
            self.stop()
            self._end_as(*verdict)
        elif code == LOCKED:
            return Event(self.spec, RunStatus.ELSEWHERE, "another process is writing this run")
        elif code == CANNOT_WRITE:
            raise OSError(f"results cannot be written to {self.folder.path}: {self.folder.read().get('reason', '')}")
        elif code != DONE_ALREADY:
            self._end_as(RunStatus.KILLED, self._last_words(code))  # unless it has told itself how it ended
        content, points = self.folder.read(), self.folder.points()[0]
        return Event(self.spec, content["status"], content.get("reason", ""), points[-1] if points else {})

    def _end_as(self, status: str, reason: str) -> None:
        """Record how a run ended that could not do it itself; its process is gone."""
        with self.folder.lock().acquire(timeout=10.0):
            if self.folder.read().get("status") == RunStatus.RUNNING:
                points = self.folder.points()[0]
                last = points[-1] if points else {}
                known = {"training_seconds": last.get("elapsed"), "peak_memory_mb": last.get("peak_memory_mb")}
                self.folder.update(status=status, reason=reason, finished=time.time(), points=len(points), **known)

    def _beyond_limits(self) -> tuple[str, str] | None:
        """Status and reason if the run has to be ended."""
        if time.monotonic() - self._started > self.spec.hard_limit_seconds:
            return (
                RunStatus.KILLED,
                f"the hard limit of {self.spec.hard_limit_seconds:g} s of wall-clock time has passed",
            )
        limit = self.spec.memory_limit or MACHINE_SHARE * psutil.virtual_memory().total
        with suppress(psutil.Error):
            process = psutil.Process(self._process.pid)
            resident = sum(p.memory_info().rss for p in [process, *process.children(recursive=True)])
            if resident > limit:
                return RunStatus.OUT_OF_MEMORY, f"{resident / 1e6:.0f} MB resident, the limit is {limit / 1e6:.0f} MB"
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
