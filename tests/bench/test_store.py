"""Run folders and the table that is made of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nearexact import bench
from nearexact.bench.store import COLUMNS, RunFolder, RunSpec, RunStatus


def spec(dataset: str = "step", method: str = "mean", seed: int = 0) -> RunSpec:
    return RunSpec(dataset, method, seed, budget_seconds=1.0, hard_limit_seconds=2.0)


def made(results: Path, points: int = 2, status: str = RunStatus.FINISHED, **key: object) -> RunFolder:
    one = spec(**key)  # type: ignore[arg-type]
    folder = RunFolder(one.folder(results))
    folder.prepare(one)
    for number in range(points):
        folder.append({"elapsed": float(number), "rmse": 0.5, "milestone": number == 0, "info": {"colour": "red"}})
    folder.update(status=status, reason="because")
    return folder


def test_a_row_for_each_point_and_one_for_a_run_without(tmp_path: Path) -> None:
    made(tmp_path, 3)
    made(tmp_path, 0, RunStatus.ERROR, method="gpr")
    frame = bench.load(tmp_path)
    assert tuple(frame.columns[: len(COLUMNS)]) == COLUMNS
    assert len(frame) == 4
    assert frame["milestone"].dtype == bool
    assert frame.loc[frame["method"] == "gpr", "status"].tolist() == ["error"]
    assert frame.loc[frame["method"] == "gpr", "milestone"].tolist() == [False]
    assert frame["milestone"].sum() == 1
    assert frame["colour"].tolist()[1:] == ["red"] * 3
    assert frame["elbo"].isna().all()


def test_labels_options_and_points_beyond_the_budget_are_columns(tmp_path: Path) -> None:
    one = RunSpec("step", "rough", 0, 1.5, 9.0, options={"kernel": "matern32"}, reference="sgpr", base_method="sgpr")
    folder = RunFolder(one.folder(tmp_path))
    folder.prepare(one)
    for elapsed in (1.0, 1.5, 1.6):
        folder.append({"elapsed": elapsed})
    made(tmp_path, 1, method="sgpr{max_inducing=5}")  # as written before there were base methods
    frame = bench.load(tmp_path)
    rough, other = (part for _, part in frame.groupby("method"))
    assert rough["over_budget"].tolist() == [False, False, True]
    assert set(rough["base_method"]) == {"sgpr"}
    assert [json.loads(text) for text in rough["options"]] == [{"kernel": "matern32"}] * 3
    assert other["base_method"].tolist() == ["sgpr"]
    assert other["options"].tolist() == ["{}"]
    assert frame["over_budget"].dtype == bool


@pytest.mark.parametrize("label", ["sgpr", "sgpr{kernel=(se+linear),max_inducing=500}"])
def test_a_label_is_the_name_of_its_folder(label: str, tmp_path: Path) -> None:
    assert spec(method=label).folder(tmp_path).parent.name == label


def test_an_empty_folder_is_an_empty_table(tmp_path: Path) -> None:
    frame = bench.load(tmp_path)
    assert len(frame) == 0
    assert tuple(frame.columns) == COLUMNS
    with pytest.raises(ValueError, match="there is no folder"):
        bench.load(tmp_path / "missing")


def test_a_torn_last_line_and_foreign_files_are_left_out_and_named(tmp_path: Path) -> None:
    folder = made(tmp_path, 2)
    with (folder.path / "trace.jsonl").open("a") as file:
        file.write('{"elapsed": 2.0, "rm')
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "run.json").write_text("not ours")
    (tmp_path / "list").mkdir()
    (tmp_path / "list" / "run.json").write_text("[1, 2]")
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.warns(UserWarning, match=r"line 3 of 3 is not complete") as caught:
        frame = bench.load(tmp_path)
    assert "foreign" in str(caught[0].message)
    assert len(frame) == 2


def test_what_an_interrupted_run_left_is_put_aside(tmp_path: Path) -> None:
    folder = made(tmp_path, 2, RunStatus.RUNNING)
    folder.save_predictions(0, *[__import__("numpy").zeros(3)] * 2)
    assert folder.status() == RunStatus.INTERRUPTED  # nobody holds the lock
    folder.prepare(spec())
    assert folder.points() == ([], [])
    assert len((folder.path / "aside-1" / "trace.jsonl").read_text().splitlines()) == 2
    assert (folder.path / "aside-1" / "predictions" / "0.npz").exists()
    folder.append({"elapsed": 0.0})
    folder.prepare(spec())
    assert (folder.path / "aside-2" / "trace.jsonl").exists()
    assert len(bench.load(tmp_path)) == 1


def test_the_lock_tells_who_is_alive(tmp_path: Path) -> None:
    folder = made(tmp_path, 1, RunStatus.RUNNING)
    with folder.lock():
        assert RunFolder(folder.path).status() == RunStatus.RUNNING
    assert folder.status() == RunStatus.INTERRUPTED


@pytest.mark.parametrize(
    "name", ["data/a b.csv:y", "../x.csv:y", "/abs/p.py:Class", "C:\\x.csv:y", "x{a=" + 300 * "y" + "}"]
)
def test_paths_become_single_names_and_stay_different(name: str, tmp_path: Path) -> None:
    folder = spec(dataset=name).folder(tmp_path)
    assert folder.parent.parent.parent == tmp_path
    assert folder != spec(dataset=name + "2").folder(tmp_path)


def test_run_json_is_changed_as_a_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = made(tmp_path)
    before = (folder.path / "run.json").read_text()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("nearexact.bench.store.os.fsync", full)
    with pytest.raises(OSError, match="No space left"):
        folder.update(status=RunStatus.ERROR)
    assert (folder.path / "run.json").read_text() == before
    assert json.loads(before)["status"] == RunStatus.FINISHED
    assert sorted(path.name for path in folder.path.iterdir()) == ["run.json", "trace.jsonl"]


def test_the_last_point_is_the_last_complete_line(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "none")
    assert folder.last_point() == {}
    folder = made(tmp_path, 0)
    for number in range(5000):  # more than is read
        folder.append({"elapsed": float(number), "note": "x" * 50})
    with (folder.path / "trace.jsonl").open("a") as file:
        file.write('{"elapsed": 9999.0, "no')
    assert folder.last_point()["elapsed"] == 4999.0


def test_a_trace_without_its_run_is_named(tmp_path: Path) -> None:
    (tmp_path / "lost").mkdir()
    (tmp_path / "lost" / "trace.jsonl").write_text('{"elapsed": 1.0}\n')
    with pytest.warns(UserWarning, match=r"there is no run\.json next to it"):
        assert len(bench.load(tmp_path)) == 0


def test_columns_of_mixed_types_can_be_exported(tmp_path: Path) -> None:
    import pandas as pd

    from nearexact.cli import main

    folder = made(tmp_path / "results", 1)
    folder.append({"elapsed": 5.0, "info": {"colour": 3, "more": {"a": 1}}})
    output = tmp_path / "all.parquet"
    assert main(["bench", "export", str(tmp_path / "results"), "-o", str(output)]) == 0
    assert pd.read_parquet(output)["colour"].tolist() == ["red", "3"]
