"""Many runs, each in processes of its own: what is finished is skipped, what fails is recorded.

A sweep can be stopped at any moment and in any way; the same command continues it.
"""

from __future__ import annotations

import json
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from functools import partial

from nearexact.bench import store
from nearexact.bench.running.experiment import Experiment
from nearexact.bench.running.watcher import LOOK_AGAIN_SECONDS, Event, make_run
from nearexact.bench.store import RunFolder, RunSpec


def run_sweep(
    experiment: Experiment,
    *,
    retry_failed: bool = False,
    on_event: Callable[[Event], None] = lambda _: None,
    now: Callable[[], float] = time.monotonic,
) -> None:
    """Make the runs that are not done yet. Ctrl-C stops the running ones, which start again next time.

    `now` is the clock of the runs' hard limits.
    """
    experiment.check()
    waiting = _prepare(experiment, retry_failed, on_event)
    stop = threading.Event()
    events: queue.SimpleQueue[Event] = queue.SimpleQueue()
    make = partial(make_run, results=experiment.out, retry_failed=retry_failed, stop=stop, on_event=events.put, now=now)
    with ThreadPoolExecutor(max_workers=experiment.jobs) as pool:
        runs = [pool.submit(make, spec) for spec in waiting]
        try:
            while runs:
                _show(events, on_event)
                for run in [run for run in runs if run.done()]:
                    runs.remove(run)
                    on_event(run.result())
        finally:
            stop.set()
            pool.shutdown(cancel_futures=True)


def _show(events: queue.SimpleQueue[Event], on_event: Callable[[Event], None]) -> None:
    """Show what has happened, after waiting for it for a moment."""
    try:
        on_event(events.get(timeout=LOOK_AGAIN_SECONDS))
        while True:
            on_event(events.get_nowait())
    except queue.Empty:
        return


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
