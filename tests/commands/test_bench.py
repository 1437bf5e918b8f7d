"""`nearexact bench export` and `report` spare what they read."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from nearexact.bench.store import RunFolder, RunSpec, RunStatus
from nearexact.cli import main


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run on the user's own data."""
    monkeypatch.chdir(tmp_path)
    Path("data.csv").write_text("x,y\n1,2\n")
    spec = RunSpec("data.csv:y", "mean", 0, budget_seconds=10.0, hard_limit_seconds=20.0)
    run = RunFolder(spec.folder(Path("results")))
    run.prepare(spec)
    run.append({"elapsed": 1.0, "rmse": 0.5, "nlpd": 1.0, "milestone": True})
    run.update(status=RunStatus.FINISHED)
    return run.path


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    before = contents(Path())
    assert main(arguments) == 2
    assert re.fullmatch(r"nearexact: the output '.*' would overwrite '.*'\n", capsys.readouterr().err)
    assert contents(Path()) == before


@pytest.mark.parametrize("name", ["run.json", "trace.jsonl"])
def test_export_spares_the_results(name: str, results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("soft.csv").symlink_to(results / name)
    Path("hard.csv").hardlink_to(results / name)
    for output in ("soft.csv", "hard.csv"):
        refused(["bench", "export", "results", "-o", output], capsys)
    for _ in range(2):  # an earlier export is no result
        assert main(["bench", "export", "results", "-o", "results/all.csv"]) == 0


def test_export_spares_the_data_that_results_came_from(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    refused(["bench", "export", "results", "-o", "data.csv"], capsys)
    refused(["bench", "export", str(results.parents[1]), "-o", "./data.csv"], capsys)


def test_report_spares_the_results(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for link in ("out/report.html", "out/tables/final.csv", "out/figures/near_exactness.pdf"):
        Path(link).parent.mkdir(parents=True, exist_ok=True)
        Path(link).hardlink_to(results / "trace.jsonl")
        refused(["bench", "report", "results", "-o", "out"], capsys)
        Path(link).unlink()
