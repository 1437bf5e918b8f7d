"""What methods can do to their process and to the harness: each ends with a status, and nothing is lost."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from nearexact import bench
from nearexact.bench.store import RunFolder, RunStatus
from tests.bench.running.helpers import ahead_once, experiment, plugin, run


def test_a_method_that_swallows_exceptions_cannot_escape(tmp_path: Path) -> None:
    one = experiment(tmp_path, plugin("Stubborn"), budget_seconds=0.3, hard_limit_seconds=600.0)
    calls = tmp_path / "calls"
    recorded = RunFolder(one.specs()[0].folder(tmp_path))

    def went_on() -> bool:
        """Whether the method has tried to report often after the end of its budget."""
        over = any(point["elapsed"] > 0.3 for point in recorded.points()[0])
        return over and calls.exists() and calls.stat().st_size > 20

    folder, _ = run(replace(one, options={plugin("Stubborn"): {"calls": str(calls)}}), now=ahead_once(went_on))
    content = folder.read()
    assert content["status"] == RunStatus.KILLED
    assert "hard limit of 600 s" in content["reason"]
    points = folder.points()[0]
    assert sum(point["elapsed"] > 0.3 for point in points) == 1  # the last one, and nothing after it


def test_a_method_that_never_reports_is_killed_at_the_hard_limit(tmp_path: Path) -> None:
    one = experiment(tmp_path, plugin("Silent"), budget_seconds=0.1, hard_limit_seconds=600.0)
    recorded = RunFolder(one.specs()[0].folder(tmp_path))
    folder, _ = run(one, now=ahead_once(lambda: "settings" in recorded.read()))  # the method has been made
    assert folder.read()["status"] == RunStatus.KILLED
    (row,) = bench.load(tmp_path).to_dict("records")
    assert row["status"] == RunStatus.KILLED
    assert not row["milestone"]


def test_too_much_memory_is_a_status(tmp_path: Path) -> None:
    folder, _ = run(experiment(tmp_path, plugin("Hungry"), memory_limit=400_000_000, budget_seconds=60.0))
    content = folder.read()
    assert content["status"] == RunStatus.OUT_OF_MEMORY
    assert "MB resident, the limit is 400 MB" in content["reason"]
    assert len(folder.points()[0]) == 1
    folder, _ = run(experiment(tmp_path, plugin("NoMemory")))
    assert folder.read()["status"] == RunStatus.OUT_OF_MEMORY


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere, shared memory is counted for each process")
def test_memory_that_processes_share_is_counted_once(tmp_path: Path) -> None:
    folder, _ = run(experiment(tmp_path, plugin("Forks"), memory_limit=1_500_000_000, budget_seconds=60.0))
    assert folder.read()["status"] == RunStatus.FINISHED


def test_a_process_that_dies_is_a_status(tmp_path: Path) -> None:
    folder, _ = run(experiment(tmp_path, plugin("Dies")))
    content = folder.read()
    assert content["status"] == RunStatus.KILLED
    assert "signal 9" in content["reason"]


@pytest.mark.parametrize("status", [0, 74, 75, 76])
def test_a_process_may_end_with_any_status(status: int, tmp_path: Path) -> None:
    method = plugin("ExitsAtOnce")
    folder, events = run(experiment(tmp_path, method, options={method: {"status": status}}))
    content = folder.read()
    assert (content["status"], content["reason"]) == (RunStatus.KILLED, f"exit status {status}")
    assert content["points"] == 1
    assert events[-1].status == RunStatus.KILLED


def test_a_method_that_exits_or_leaves_a_thread_has_a_status_of_its_own(tmp_path: Path) -> None:
    folder, _ = run(experiment(tmp_path, plugin("Exits")))
    assert folder.read()["status"] == RunStatus.ERROR
    assert "SystemExit" in folder.read()["reason"]
    folder, _ = run(experiment(tmp_path, plugin("LeavesThread"), hard_limit_seconds=30.0))
    assert folder.read()["status"] == RunStatus.FINISHED


def test_an_interrupt_that_a_method_raises_is_its_failure(tmp_path: Path) -> None:
    one = experiment(tmp_path, plugin("Interrupts"), "mean")
    folder, _ = run(one)
    assert (folder.read()["status"], folder.read()["reason"]) == (RunStatus.ERROR, "KeyboardInterrupt: ")
    assert RunFolder(one.specs()[1].folder(tmp_path)).status() == RunStatus.FINISHED


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere, processes without a parent cannot be found")
@pytest.mark.parametrize("seconds", [0.0, 600.0])
def test_processes_that_leave_the_group_end_with_their_run(seconds: float, tmp_path: Path) -> None:
    pids, method = tmp_path / "pids", plugin("LeavesProcesses")
    pids.mkdir()
    options = {method: {"pids": str(pids), "seconds": seconds}}
    one = experiment(tmp_path / "results", method, options=options, hard_limit_seconds=600.0)
    recorded = RunFolder(one.specs()[0].folder(one.out))
    folder, _ = run(one, now=ahead_once(lambda: bool(seconds and recorded.last_point())))
    assert folder.status() == (RunStatus.KILLED if seconds else RunStatus.FINISHED)
    left = [int(path.name) for path in pids.iterdir()]
    assert len(left) == 3
    assert not any(psutil.pid_exists(pid) for pid in left)


def test_what_is_printed_is_kept_up_to_a_size(tmp_path: Path) -> None:
    folder, _ = run(experiment(tmp_path, plugin("Talkative")))
    assert folder.read()["reason"] == "exit status 3: the end"
    log = (folder.path / "log.txt").read_text()
    assert len(log) < 1_200_000
    assert "bytes are cut here]" in log
    assert log.split()[0] == "0"


def test_run_json_is_kept_up_to_a_size(tmp_path: Path) -> None:
    folder, _ = run(experiment(tmp_path, plugin("Huge")))
    assert (folder.path / "run.json").stat().st_size < 1_000_000
    content = folder.read()
    assert content["status"] == RunStatus.ERROR
    assert content["reason"].startswith("ValueError: yyy")
    assert "cut: " in content["reason"]
    assert content["settings"]["numbers"][:3] == [0, 1, 2]


def test_a_report_that_is_too_large_is_the_methods_failure(tmp_path: Path) -> None:
    folder, _ = run(experiment(tmp_path, plugin("TooMuchInformation")))
    assert folder.read()["status"] == RunStatus.ERROR
    assert "must take at most 1048576 bytes as JSON" in folder.read()["reason"]


def test_the_test_targets_are_not_in_the_process_of_a_method(tmp_path: Path) -> None:
    folder, _ = run(experiment(tmp_path, plugin("Peeks")))
    assert folder.read()["status"] == RunStatus.FINISHED
    assert folder.points()[0][0]["rmse"] > 0.5


def test_a_clock_that_a_method_stops_changes_nothing_and_is_noted(tmp_path: Path) -> None:
    folder, _ = run(experiment(tmp_path, plugin("StopsClock"), budget_seconds=1.0))
    content = folder.read()
    assert content["status"] == RunStatus.BUDGET
    assert content["clock_disagreement_seconds"] > 1.5
    assert content["training_seconds"] > 1.5
    assert folder.points()[0][0]["elapsed"] > 1.5


def test_a_method_that_writes_into_the_channel_fails(tmp_path: Path) -> None:
    folder, _ = run(experiment(tmp_path, plugin("Babbles"), hard_limit_seconds=30.0))
    assert folder.read()["status"] == RunStatus.ERROR
    assert "the run sent what is not a message" in folder.read()["reason"]
