"""Real runs in real processes: what they record, which are made, and what is refused before any starts."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nearexact import bench
from nearexact.bench import store
from nearexact.bench.running.experiment import Experiment, settings
from nearexact.bench.running.making import make_run
from nearexact.bench.running.sweep import run_sweep
from nearexact.bench.store import RunFolder, RunStatus
from tests.bench.running.helpers import experiment, plugin, run


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


def test_other_options_under_one_label_are_refused(tmp_path: Path) -> None:
    method = plugin("Steps")
    run(experiment(tmp_path, method, options={method: {"steps": 2}}))
    with pytest.raises(
        ValueError, match=r"other settings \(options: \{'steps': 2\}, now \{'steps': 3\}\): give them labels"
    ):
        run(experiment(tmp_path, method, options={method: {"steps": 3}}))


def test_the_budget_ends_a_run(tmp_path: Path) -> None:
    options = {plugin("Steps"): {"steps": 10_000}}
    folder, _ = run(experiment(tmp_path, plugin("Steps"), budget_seconds=0.5, options=options))
    content = folder.read()
    assert content["status"] == RunStatus.BUDGET
    assert content["training_seconds"] < 1.0
    assert folder.points()[0][-1]["elapsed"] == pytest.approx(0.5, abs=0.2)


def test_training_past_the_budget_without_a_word_is_said(tmp_path: Path) -> None:
    method = plugin("Slow")
    folder, _ = run(experiment(tmp_path, method, budget_seconds=0.2, options={method: {"seconds": 0.5}}))
    assert folder.read()["status"] == RunStatus.BUDGET


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


def test_several_runs_at_a_time(tmp_path: Path) -> None:
    one = experiment(tmp_path, "mean", "linear", seeds=(0, 1), jobs=2)
    run(one)
    assert bench.load(tmp_path).groupby(["method", "seed"]).size().tolist() == [1, 1, 1, 1]


def test_the_plan_remembers_what_was_asked(tmp_path: Path) -> None:
    run(experiment(tmp_path, "mean"))
    run(experiment(tmp_path, "linear"))
    assert len(json.loads((tmp_path / "experiment.json").read_text())) == 2


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
