"""What a sweep prints."""

from __future__ import annotations

import io
from contextlib import suppress

import pytest
from rich.console import Console

from nearexact.bench.running.terminal import sweep_display
from nearexact.bench.running.watcher import Event
from nearexact.bench.store import RunSpec, RunStatus


@pytest.mark.parametrize("interrupted", [False, True])
def test_a_log_of_a_sweep_ends_its_last_line(interrupted: bool) -> None:
    written = io.StringIO()
    with suppress(KeyboardInterrupt), sweep_display(3, console=Console(file=written, width=80)) as display:
        display.show(Event(RunSpec("a_rather_long_name_of_a_data_set_" * 3, "mean", 0, 1.0, 2.0), RunStatus.FINISHED))
        if interrupted:
            raise KeyboardInterrupt
    lines = written.getvalue().splitlines(keepends=True)
    assert "seed 0: finished" in lines[0]  # not broken at 80 characters
    assert "1 of 3 runs done" in lines[-1]
    assert lines[-1].endswith("\n")


def test_a_run_that_waits_for_another_worker_is_not_done() -> None:
    written, spec = io.StringIO(), RunSpec("step", "mean", 0, 1.0, 2.0)
    with sweep_display(1, console=Console(file=written, width=80)) as display:
        for status in (RunStatus.RUNNING, RunStatus.WAITING, RunStatus.RUNNING, RunStatus.FINISHED):
            display.show(Event(spec, status, "its worker was lost" if status == RunStatus.WAITING else ""))
    lines = written.getvalue().splitlines()
    assert "step mean seed 0: waiting: its worker was lost" in lines
    assert "1 of 1 runs done: 1 finished" in lines[-1]
