"""Disks that are full or cannot be written to: an error that says so, and earlier results stay."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from nearexact.bench import store
from nearexact.bench.store import RunFolder, RunStatus
from tests.bench.running.helpers import experiment, plugin, run


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
