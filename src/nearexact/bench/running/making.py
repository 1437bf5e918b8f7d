"""One run in the results folder: whether it is to be made, the lock that it is made under, and how it ended."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

from filelock import Timeout

from nearexact.bench.running.earlier_runs import Surroundings, decide
from nearexact.bench.running.watcher import End, Event, carry_out
from nearexact.bench.store import RunFolder, RunSpec, RunStatus

WAIT_FOR_LOCK = 5.0  # seconds: somebody may just be looking whether it is held

# Makes a run, here or elsewhere, until it ends or is to be stopped, and writes what it reports into its folder.
CarryOut = Callable[[RunSpec, RunFolder, Callable[[], bool], Callable[[Event], None]], End]


def make_run(
    spec: RunSpec,
    results: Path,
    *,
    retry_failed: bool,
    stop: threading.Event,
    on_event: Callable[[Event], None],
    jobs: int = 1,
    carry_out: CarryOut = carry_out,
    lock_seconds: float = WAIT_FOR_LOCK,
) -> Event:
    """Make a run unless another sweep makes it or has made it. After `stop` it is ended, and is interrupted.

    `jobs` is how many runs are made at a time on its machine, for the record. A run that is locked is waited for
    `lock_seconds`.
    """
    folder = RunFolder(spec.folder(results).resolve())
    try:
        folder.path.mkdir(parents=True, exist_ok=True)
        with folder.lock().acquire(timeout=lock_seconds):
            return _make_run_locked(spec, folder, retry_failed, stop, on_event, jobs, carry_out)
    except Timeout:
        return Event(spec, RunStatus.ELSEWHERE, "another process is writing this run")
    except ConnectionError:  # to a cluster: not about the folder
        raise
    except OSError as error:
        raise OSError(f"results cannot be written to {folder.path}: {error}") from error


def _make_run_locked(
    spec: RunSpec,
    folder: RunFolder,
    retry_failed: bool,
    stop: threading.Event,
    on_event: Callable[[Event], None],
    jobs: int,
    carry_out: CarryOut,
) -> Event:
    content, present = folder.read(), Surroundings().of(spec)
    if not decide(content, present, retry_failed=retry_failed).make:  # another sweep has made it
        return Event(spec, RunStatus(content["status"]), content.get("reason", ""), folder.last_point())
    folder.prepare(spec)
    folder.update(status=RunStatus.RUNNING, started=time.time(), jobs=jobs)
    end = carry_out(spec, folder, stop.is_set, on_event)
    folder.sync()
    finished = {} if end.status == RunStatus.INTERRUPTED else {"finished": time.time()}
    folder.update(status=end.status, reason=end.reason, **finished, **end.details)
    return Event(spec, end.status, end.reason, folder.last_point())
