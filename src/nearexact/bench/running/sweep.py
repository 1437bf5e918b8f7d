"""Many runs, each in processes of its own: what is finished is skipped, what fails is recorded.

A sweep can be stopped at any moment and in any way; the same command continues it.
"""

from __future__ import annotations

import queue
import threading
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from nearexact.bench import store
from nearexact.bench.running.earlier_runs import Surroundings, decide, summarised
from nearexact.bench.running.experiment import Experiment
from nearexact.bench.running.making import make_run
from nearexact.bench.running.watcher import LOOK_AGAIN_SECONDS, Event, carry_out
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
    waiting = prepare(experiment, retry_failed, on_event)
    stop = threading.Event()
    events: queue.SimpleQueue[Event] = queue.SimpleQueue()
    make = partial(
        make_run,
        results=experiment.out,
        retry_failed=retry_failed,
        stop=stop,
        on_event=events.put,
        jobs=experiment.jobs,
        carry_out=partial(carry_out, now=now),
    )
    with ThreadPoolExecutor(max_workers=experiment.jobs) as pool:
        runs = [pool.submit(make, spec) for spec in waiting]
        try:
            while runs:
                show(events, on_event)
                for run in [run for run in runs if run.done()]:
                    runs.remove(run)
                    on_event(run.result())
        finally:
            stop.set()
            pool.shutdown(cancel_futures=True)


def show(events: queue.SimpleQueue[Event], on_event: Callable[[Event], None]) -> None:
    """Show what has happened, after waiting for it for a moment."""
    try:
        on_event(events.get(timeout=LOOK_AGAIN_SECONDS))
        while True:
            on_event(events.get_nowait())
    except queue.Empty:
        return


def prepare(experiment: Experiment, retry_failed: bool, on_event: Callable[[Event], None]) -> list[RunSpec]:
    """The runs that are to be made; the others are shown as they are, and what is remarkable is warned of."""
    specs, present = experiment.specs(), Surroundings()
    folders = [RunFolder(spec.folder(experiment.out)) for spec in specs]
    contents = [folder.read() for folder in folders]
    decisions = [
        decide(content, present.of(spec), retry_failed=retry_failed)
        for spec, content in zip(specs, contents, strict=True)
    ]
    store.add_to_plan(experiment.out, specs)
    notes = summarised((spec, decision.note) for spec, decision in zip(specs, decisions, strict=True))
    if experiment.kernel is not None and (others := experiment.kernel_is_not_for()):
        notes.append(f"{', '.join(others)}: without the kernel {experiment.kernel}, since there is no such option")
    if notes:
        warnings.warn("\n".join(notes), stacklevel=3)
    waiting = []
    for spec, folder, content, decision in zip(specs, folders, contents, decisions, strict=True):
        if decision.make:
            waiting.append(spec)
        else:
            on_event(Event(spec, folder.status(), content.get("reason", "")))
    return waiting
