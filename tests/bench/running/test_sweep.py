"""Real runs in real processes: how they end, and that nothing is lost however they end."""

from __future__ import annotations

import io
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from rich.console import Console

from nearexact import bench
from nearexact.bench import store
from nearexact.bench.running.experiment import Experiment, settings
from nearexact.bench.running.sweep import run_sweep
from nearexact.bench.running.terminal import sweep_display
from nearexact.bench.running.watcher import Event, make_run
from nearexact.bench.store import RunFolder, RunSpec, RunStatus
from tests.bench.running.helpers import ahead_once, children_of, experiment, plugin, run, still_running, two_runs


def test_a_run_records_what_was_asked_and_where(tmp_path: Path) -> None:
    folder, events = run(experiment(tmp_path, plugin("Steps"), options={plugin("Steps"): {"steps": 7}}))
    content = folder.read()
    assert content["status"] == RunStatus.FINISHED
    assert content["spec"]["options"] == {"steps": 7}
    assert content["settings"] == {"seconds": 0.01, "steps": 7, "milestones": 5}
    assert content["versions"]["torch"]
    assert content["hardware"]["cores"] >= 1
    assert content["hardware"]["processor"]
    assert content["threads"] == 1
    assert content["peak_memory_mb"] > 50.0
    assert content["finished"] >= content["started"]
    assert content["training_seconds"] >= 7 * 0.01
    assert events[-1].status == RunStatus.FINISHED
    frame = bench.load(tmp_path)
    assert frame["milestone"].sum() == 1
    assert frame["flops"].eq(1.0).all()


def test_finished_runs_are_skipped_and_failed_ones_on_request_repeated(tmp_path: Path) -> None:
    one = experiment(tmp_path, plugin("Broken"))
    folder, _ = run(one)
    first = folder.read()
    assert (first["status"], first["reason"]) == (RunStatus.ERROR, "ZeroDivisionError: what a pity")
    assert "Traceback" in first["traceback"]
    assert len(bench.load(tmp_path)) == 1  # what it reported before is kept
    run(one)
    assert folder.read()["started"] == first["started"]
    run(one, retry_failed=True)
    assert folder.read()["started"] > first["started"]
    assert (folder.path / "aside-1" / "trace.jsonl").exists()


def test_other_settings_need_another_folder(tmp_path: Path) -> None:
    run(experiment(tmp_path, "mean"))
    with pytest.raises(ValueError, match=r"other settings \(budget_seconds: 5.0, now 6.0, .*another output folder"):
        run(experiment(tmp_path, "mean", budget_seconds=6.0))


def test_the_budget_ends_a_run(tmp_path: Path) -> None:
    options = {plugin("Steps"): {"steps": 10_000}}
    folder, _ = run(experiment(tmp_path, plugin("Steps"), budget_seconds=0.5, options=options))
    content = folder.read()
    assert content["status"] == RunStatus.BUDGET
    assert content["training_seconds"] < 1.0
    assert folder.points()[0][-1]["elapsed"] == pytest.approx(0.5, abs=0.2)


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


def test_a_process_that_dies_is_a_status(tmp_path: Path) -> None:
    folder, _ = run(experiment(tmp_path, plugin("Dies")))
    content = folder.read()
    assert content["status"] == RunStatus.KILLED
    assert "signal 9" in content["reason"]


def test_predictions_that_explode_are_results(tmp_path: Path) -> None:
    folder, _ = run(experiment(tmp_path, plugin("Exploding")))
    assert folder.read()["status"] == RunStatus.FINISHED
    frame = bench.load(tmp_path)
    assert np.isnan(frame["rmse"].iloc[0])
    assert frame["rmse"].iloc[1] > 1e100
    assert np.isnan(frame["nlpd"].iloc[1])


def test_a_run_that_is_being_written_elsewhere_is_left_alone(tmp_path: Path) -> None:
    one = experiment(tmp_path, "mean")
    folder = RunFolder(one.specs()[0].folder(tmp_path))
    folder.prepare(one.specs()[0])
    with folder.lock():
        event = make_run(
            one.specs()[0],
            tmp_path,
            retry_failed=False,
            stop=threading.Event(),
            on_event=lambda _: None,
            lock_seconds=0.2,
        )
    assert event.status == "elsewhere"
    assert folder.points() == ([], [])


def test_two_sweeps_at_once_do_every_run_once(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "nearexact.cli",
        "bench",
        "run",
        "--methods",
        "mean,linear,mean",
        "--datasets",
        "step",
    ]
    command += ["--budget", "5s", "--threads", "1", "--quiet", "--out", str(tmp_path)]
    for sweep in [subprocess.Popen(command) for _ in range(2)]:
        assert sweep.wait(timeout=120) == 0
    assert [(len(folder.points()[0]), folder.status()) for folder in store.runs(tmp_path)] == [
        (1, RunStatus.FINISHED)
    ] * 2
    assert not list(tmp_path.rglob("aside-*"))


def test_a_method_that_exits_or_leaves_a_thread_has_a_status_of_its_own(tmp_path: Path) -> None:
    folder, _ = run(experiment(tmp_path, plugin("Exits")))
    assert folder.read()["status"] == RunStatus.ERROR
    assert "SystemExit" in folder.read()["reason"]
    folder, _ = run(experiment(tmp_path, plugin("LeavesThread"), hard_limit_seconds=30.0))
    assert folder.read()["status"] == RunStatus.FINISHED


def test_training_past_the_budget_without_a_word_is_said(tmp_path: Path) -> None:
    method = plugin("Slow")
    folder, _ = run(experiment(tmp_path, method, budget_seconds=0.2, options={method: {"seconds": 0.5}}))
    assert folder.read()["status"] == RunStatus.BUDGET


def test_several_runs_at_a_time(tmp_path: Path) -> None:
    one = experiment(tmp_path, "mean", "linear", seeds=(0, 1), jobs=2)
    run(one)
    assert bench.load(tmp_path).groupby(["method", "seed"]).size().tolist() == [1, 1, 1, 1]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"methods": ["nosuch"]}, "there is no method 'nosuch'; there are sgpr, sgpr-paper, sgpr-tight, gpr, "),
        ({"methods": ["missing.py:Class"]}, "there is no file 'missing.py'"),
        ({"methods": [plugin("Missing")]}, "has no class 'Missing'"),
        ({"datasets": ["nosuch"]}, "there is no data set 'nosuch'"),
        ({"options": {"gpr": {}}}, "options for \\['gpr'\\], which are not among the methods"),
        ({"options": {"mean": {"colour": 1}}}, "does not take the options {'colour': 1}"),
        ({"jobs": 0}, "jobs must be at least 1, got 0"),
        ({"device": "nosuch"}, "there is no device 'nosuch'"),
    ],
)
def test_what_does_not_exist_is_said_before_anything_starts(
    given: dict[str, Any], message: str, tmp_path: Path
) -> None:
    fields = {"methods": ["mean"], "datasets": ["step"], "out": tmp_path / "results", **given}
    with pytest.raises(ValueError, match=message):
        run_sweep(Experiment(**fields))
    assert not (tmp_path / "results").exists()


def test_settings_as_users_write_them() -> None:
    fields = settings(methods="sgpr,gpr", datasets=["step"], seeds=3, budget="10m", memory_limit="4GB", out="results")
    assert fields == {
        "methods": ["sgpr", "gpr"],
        "datasets": ["step"],
        "seeds": (0, 1, 2),
        "budget_seconds": 600.0,
        "memory_limit": 4_000_000_000,
        "out": Path("results"),
    }
    with pytest.raises(ValueError, match=r"an experiment has the settings .* got \['colour'\]"):
        settings(colour="red")


# ---- being killed ----------------------------------------------------------------------------------------------------

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


# ---- what methods can do to their process ----------------------------------------------------------------------------


@pytest.mark.parametrize("status", [0, 74, 75, 76])
def test_a_process_may_end_with_any_status(status: int, tmp_path: Path) -> None:
    method = plugin("ExitsAtOnce")
    folder, events = run(experiment(tmp_path, method, options={method: {"status": status}}))
    content = folder.read()
    assert (content["status"], content["reason"]) == (RunStatus.KILLED, f"exit status {status}")
    assert content["points"] == 1
    assert events[-1].status == RunStatus.KILLED


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


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere, shared memory is counted for each process")
def test_memory_that_processes_share_is_counted_once(tmp_path: Path) -> None:
    folder, _ = run(experiment(tmp_path, plugin("Forks"), memory_limit=1_500_000_000, budget_seconds=60.0))
    assert folder.read()["status"] == RunStatus.FINISHED


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


# ---- disks -----------------------------------------------------------------------------------------------------------


def test_a_full_disk_is_an_error_that_says_so_and_earlier_results_stay(tmp_path: Path) -> None:
    """A limit on the size of files stands for the full disk."""
    run(experiment(tmp_path, "mean"))
    before = (RunFolder(experiment(tmp_path, "mean").specs()[0].folder(tmp_path)).path / "trace.jsonl").read_bytes()
    code = f"""
import resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (300, 300))
from nearexact.cli import main
sys.exit(main(["bench", "run", "--methods", "mean,linear", "--datasets", "step", "--budget", "5s", "--threads", "1",
               "--out", {str(tmp_path)!r}, "--quiet"]))
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 2
    assert result.stderr.startswith("nearexact: results cannot be written to ")
    assert "Traceback" not in result.stderr
    folder = RunFolder(experiment(tmp_path, "mean").specs()[0].folder(tmp_path))
    assert (folder.path / "trace.jsonl").read_bytes() == before
    assert folder.status() == RunStatus.FINISHED


def test_a_disk_that_fills_up_during_a_run_is_an_error_that_says_so(tmp_path: Path) -> None:
    code = f"""
import resource
from pathlib import Path
from nearexact.bench.running.experiment import Experiment
from nearexact.bench.running.sweep import run_sweep
method = {plugin("Steps")!r}
resource.setrlimit(resource.RLIMIT_FSIZE, (7000, 7000))
run_sweep(Experiment(methods=[method], datasets=["step"], out=Path({str(tmp_path)!r}), threads=1,
                     options={{method: {{"steps": 10_000, "milestones": 1}}}}, budget_seconds=60.0))
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "OSError: results cannot be written to " in result.stderr.splitlines()[-1]
    (folder,) = store.runs(tmp_path)
    points, problems = folder.points()
    assert (len(points) > 5, problems) == (True, [])
    assert folder.status() == RunStatus.INTERRUPTED


def test_a_folder_that_cannot_be_written_is_an_error_that_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(OSError, match="results cannot be written to"):
        run(experiment(tmp_path / "file" / "results", "mean"))
    if os.geteuid() != 0:
        (tmp_path / "readonly").mkdir(mode=0o500)
        with pytest.raises(OSError, match="results cannot be written to"):
            run(experiment(tmp_path / "readonly", "mean"))


def test_the_plan_remembers_what_was_asked(tmp_path: Path) -> None:
    run(experiment(tmp_path, "mean"))
    run(experiment(tmp_path, "linear"))
    assert len(json.loads((tmp_path / "experiment.json").read_text())) == 2


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
