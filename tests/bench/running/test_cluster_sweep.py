"""Sweeps over a real cluster of two worker processes: nothing is lost or doubled, whichever of them is killed."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from nearexact import bench
from nearexact.bench.datasets import load_split
from nearexact.bench.running.experiment import Experiment
from nearexact.bench.running.watcher import Event
from nearexact.bench.store import RunFolder, RunStatus
from nearexact.cli import main
from tests.bench.running.helpers import children_of, experiment, plugin, still_running, two_runs

distributed = pytest.importorskip("distributed", reason="Dask is not installed")

from nearexact.bench.running import cluster_sweep  # noqa: E402
from nearexact.bench.running.cluster_sweep import run_cluster_sweep  # noqa: E402
from nearexact.bench.running.remote_run import Listener  # noqa: E402


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    with (
        distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster,
        distributed.Client(cluster, set_as_default=False) as client,
    ):
        yield client


def run_folders(one: Experiment) -> list[RunFolder]:
    return [RunFolder(spec.folder(one.out)) for spec in one.specs()]


def check_complete(folder: RunFolder, seed: int) -> None:
    """All milestones of 30 steps of the plug-in `Steps` are there once, with the errors of what it predicts."""
    assert folder.status() == RunStatus.FINISHED
    points, problems = folder.points()
    steps = [point["info"]["step"] for point in points]
    assert problems == []
    assert steps == sorted(set(steps))
    assert [step for step in steps if step % 5 == 4] == [4, 9, 14, 19, 24, 29]
    predicted, y_test = np.random.default_rng(seed).normal(size=30), load_split("step", seed).y_test
    for number, (step, point) in enumerate(zip(steps, points, strict=True)):
        assert point["rmse"] == pytest.approx(np.sqrt(np.mean((y_test - predicted[step]) ** 2)), rel=1e-12)
        kept = folder.path / "predictions" / f"{number}.npz"
        assert kept.exists() == (step % 5 == 4)
        if kept.exists():
            np.testing.assert_array_equal(np.load(kept)["mean"], np.full(len(y_test), predicted[step]))


def test_a_sweep_is_complete_though_a_worker_is_killed(client: Any, tmp_path: Path) -> None:
    one = two_runs(tmp_path, "Steps")
    folders, pids = run_folders(one), client.run(os.getpid)
    lost: list[str] = []
    orphans: list[psutil.Process] = []
    waited: list[Event] = []

    def kill_worker(event: Event) -> None:
        """Of the first run that has a point in its trace, before it has ended."""
        if event.point and not lost:
            lost.append(RunFolder(event.spec.folder(tmp_path)).read()["worker"])
            orphans.extend(children_of(pids[lost[0]]))
            os.kill(pids[lost[0]], signal.SIGKILL)
        if event.status == RunStatus.WAITING:
            waited.append(event)

    run_cluster_sweep(one, client, on_event=kill_worker)
    assert [event.reason for event in waited] == [f"the worker {lost[0]} was lost"]
    assert orphans
    assert not still_running(orphans)
    for seed, folder in enumerate(folders):
        check_complete(folder, seed)
        content = folder.read()
        assert content["worker"] != lost[0] or seed != waited[0].spec.seed
        assert content["hardware"]["cores"] == os.cpu_count()
        assert content["threads"] == 1
    aside = [RunFolder(path) for path in tmp_path.rglob("aside-*")]
    assert [(one.read()["spec"]["seed"], one.read()["worker"]) for one in aside] == [(waited[0].spec.seed, lost[0])]
    assert aside[0].points()[0]
    before = [folder.read() for folder in folders]
    run_cluster_sweep(one, client)  # nothing is left to do
    assert [folder.read() for folder in folders] == before


def test_ctrl_c_ends_the_runs_on_the_workers(client: Any, tmp_path: Path) -> None:
    one = experiment(tmp_path, plugin("Silent"))
    folder, processes = run_folders(one)[0], list[psutil.Process]()

    def interrupt(_: Event) -> None:
        if "settings" in folder.read():  # its method has been made
            processes.extend(children_of(client.run(os.getpid)[folder.read()["worker"]]))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_cluster_sweep(one, client, on_event=interrupt)
    assert processes
    assert not still_running(processes)
    assert (folder.status(), folder.read()["reason"]) == (RunStatus.INTERRUPTED, "the sweep was stopped")


def test_a_run_that_kills_workers_is_given_up(client: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_sweep, "MOST_TRIES", 2)  # each takes a new worker some seconds
    one = experiment(tmp_path, plugin("KillsWatcher"))
    run_cluster_sweep(one, client)
    content = run_folders(one)[0].read()
    assert content["status"] == RunStatus.KILLED
    assert content["reason"] == f"given up after the last try: the worker {content['worker']} was lost"
    traces = [len(RunFolder(path.parent).points()[0]) for path in tmp_path.rglob("trace.jsonl")]
    assert traces == [1, 1]  # of the try that was put aside, and of the last


def test_the_command_runs_own_tables_and_brings_logs_back(
    client: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # where the workers are not
    Path("t.csv").write_text("x,y\n" + "\n".join(f"{k},{k % 7}" for k in range(40)))
    command = ["bench", "run", "--datasets", "t.csv:y", "--methods", plugin("Talkative"), "--out", "results"]
    assert main([*command, "--dask", client.scheduler.address, "--budget", "5s", "--quiet"]) == 0
    runs = bench.load("results")[["dataset", "method", "status"]].to_numpy().tolist()
    assert runs == [["t.csv:y", "talkative", RunStatus.KILLED]]
    log = next(Path("results").rglob("log.txt")).read_bytes()
    assert 10**6 < len(log) < 2 * 10**6
    assert log.endswith(b"the end\n")


def test_several_jobs_at_a_time_are_for_one_machine(client: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="each worker makes one run at a time: jobs must be 1, got 2"):
        run_cluster_sweep(experiment(tmp_path / "results", "mean", jobs=2), client)
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        ([("a", 0), ("a", 1), ("a", 2)], [True, True, True]),
        ([("a", 0), ("a", 2)], [True, False]),  # one is missing
        ([("a", 0), ("a", 0)], [True, False]),  # doubled
        ([("a", 0), ("b", 0)], [True, False]),  # the task has been started again
        ([("a", 0), ("b", 1)], [True, False]),
    ],
)
def test_only_the_next_message_of_one_sender_is_expected(
    messages: list[tuple[str, int]], expected: list[bool], tmp_path: Path
) -> None:
    listener = Listener(RunFolder(tmp_path))
    assert [listener.expects([*message, "{}", b""]) for message in messages] == expected
