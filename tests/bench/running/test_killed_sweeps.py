"""Sweeps that are killed or interrupted: they go on where they were, and leave no process behind."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from nearexact import bench
from nearexact.bench import store
from nearexact.bench.running.sweep import run_sweep
from nearexact.bench.store import RunStatus
from tests.bench.running.helpers import children_of, still_running, two_runs

SWEEP = """
import sys
from pathlib import Path
from nearexact.bench.running.sweep import run_sweep
from tests.bench.running.helpers import two_runs
run_sweep(two_runs(Path(sys.argv[1]), sys.argv[2]))
"""


def milestones(out: Path) -> dict[tuple[object, ...], list[float]]:
    frame = bench.load(out)
    frame = frame[frame["milestone"]]
    return {key: part["rmse"].tolist() for key, part in frame.groupby(["dataset", "method", "seed"])}


def written_lines(out: Path) -> int:
    """Of all traces, also of those that were put aside."""
    try:
        return sum(path.read_bytes().count(b"\n") for path in out.rglob("trace.jsonl"))
    except FileNotFoundError:  # a run begins again just now, and clears its folder
        return 0


def killed_and_continued(out: Path, kills: int, seed: int) -> int:
    """Start the sweep, kill it at random moments, start again; how often it was killed.

    A moment is when so many lines have been written since the start, and a little later: at most as many as one run
    writes, so that whatever the machine's speed there is something left to kill.
    """
    moments = random.Random(seed)
    command = [sys.executable, "-c", SWEEP, str(out), "Steps"]
    killed = 0
    while True:
        process = subprocess.Popen(command)
        if killed == kills:
            assert process.wait(timeout=300.0) == 0
            return killed
        goal, delay = written_lines(out) + moments.randint(0, 10), moments.uniform(0.0, 0.05)
        while process.poll() is None and written_lines(out) < goal:
            time.sleep(0.01)
        time.sleep(delay)
        if process.poll() is not None:
            assert process.returncode == 0
            return killed
        workers = children_of(process.pid)
        process.send_signal(signal.SIGKILL)
        process.wait()
        killed += 1
        assert not still_running(workers)


def check_kill_and_continue(tmp_path: Path, kills: int) -> None:
    undisturbed, disturbed = tmp_path / "undisturbed", tmp_path / "disturbed"
    run_sweep(two_runs(undisturbed, "Steps"))
    assert killed_and_continued(disturbed, kills, seed=1) >= min(kills, 2)
    assert milestones(disturbed) == milestones(undisturbed)
    for folder in store.runs(disturbed):
        assert folder.status() == RunStatus.FINISHED
        points, problems = folder.points()
        assert problems == []
        steps = [point["info"]["step"] for point in points]
        assert steps == sorted(set(steps))  # no line is doubled
        assert [step for step in steps if step % 5 == 4] == [4, 9, 14, 19, 24, 29]  # and none is lost


def test_a_sweep_that_is_killed_goes_on_where_it_was(tmp_path: Path) -> None:
    check_kill_and_continue(tmp_path, kills=2)


@pytest.mark.slow
def test_a_sweep_that_is_killed_twenty_times(tmp_path: Path) -> None:
    check_kill_and_continue(tmp_path, kills=20)


def test_ctrl_c_stops_cleanly(tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", SWEEP, str(tmp_path), "Silent"], stderr=subprocess.PIPE)
    deadline = time.monotonic() + 60.0
    while not any("settings" in folder.read() for folder in store.runs(tmp_path)):  # its method has been made
        assert time.monotonic() < deadline
        time.sleep(0.05)
    workers = children_of(process.pid)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=30)
    assert workers
    assert not still_running(workers)
    assert [folder.status() for folder in store.runs(tmp_path)] == [RunStatus.INTERRUPTED]
