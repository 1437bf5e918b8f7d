"""`--noise-column`, `--weight-column` and several targets: from a file to predictions and certificates."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import nearexact
from nearexact import tables
from nearexact.cli import main
from nearexact.tables.recipe import Split
from tests.commands.helpers import assert_refused

QUICK = ["--kernel", "se", "--time-limit", "1s", "--quiet"]


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two targets of two inputs; every second row is measured badly, and one row has no weight."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.uniform(-3.0, 3.0, size=(60, 2)), columns=["a", "b"])
    std = np.where(np.arange(60) % 2, 0.05, 1.0)
    frame["y"] = np.sin(2.0 * frame["a"]) + 0.3 * frame["b"] + std * rng.normal(size=60)
    frame["z"] = 100.0 * np.cos(frame["b"])
    frame["variance"], frame["weight"] = std**2, np.where(np.arange(60) == 7, 0.0, 1.0 + np.arange(60) % 3)
    path = tmp_path_factory.mktemp("noise") / "t.csv"
    frame.to_csv(path, index=False)
    return path


def fitted(capsys: pytest.CaptureFixture[str], table: Path, model: Path, *options: str) -> dict[str, object]:
    capsys.readouterr()
    assert main(["fit", str(table), "-o", str(model), "--json", *QUICK, *options]) == 0
    result: dict[str, object] = json.loads(capsys.readouterr().out)
    return result


def test_noise_and_weights_of_a_file_reach_the_model(
    table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, out = tmp_path / "model.nx", tmp_path / "out.csv"
    options = ("--target", "y", "--noise-column", "variance", "--weight-column", "weight", "--ignore", "z")
    result = fitted(capsys, table, model, "--no-refit", *options)
    assert result["columns"] == 2
    assert "dropped 1 rows of weight 0" in result["notes"]  # type: ignore[operator]
    frame = pd.read_csv(table).drop(index=7)
    train = frame.iloc[Split().rows(59)[0]]
    loaded = nearexact.load(model)
    noise = loaded._posterior.row_noise  # type: ignore[union-attr]
    assert np.allclose(noise.known * loaded._scaling_y.scale**2, train["variance"])
    assert np.allclose(noise.factors, train["weight"].mean() / train["weight"])
    assert main(["certify", str(model), str(table), "--quiet"]) == 0
    assert main(["predict", str(model), str(table), "-o", str(out), "--quiet"]) == 0
    mean = loaded.predict(pd.read_csv(table)[["a", "b"]])
    assert np.allclose(pd.read_csv(out)["mean"], mean)
    capsys.readouterr()
    assert main(["show", str(model)]) == 0
    shown = capsys.readouterr().out
    assert "known noise       variance" in shown
    assert "besides what is known of each row" in shown
    assert "weights           weight" in shown
    # Rows that are known to be noisy are expected to be: without that, far too few would be covered.
    coverage = tables.fit(table, "y", kernel="se", time_limit="1s", noise_column="variance", ignore=["z", "weight"])
    assert coverage.summary.coverage["0.95"] >= 0.7


def test_several_targets_have_columns_of_their_own(
    table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, out = tmp_path / "model.nx", tmp_path / "out.csv"
    result = fitted(capsys, table, model, "--target", "y, z", "--ignore", "variance", "--weight-column", "weight")
    assert result["target"] == "y, z"
    model_score, _, mean_score = result["scores"]  # type: ignore[misc]
    assert model_score["rmse"] < mean_score["rmse"] < 2.0  # in standard deviations of the targets
    assert 0.0 < result["noise_std"] < 1.0  # type: ignore[operator]
    data = [str(model), str(table)]
    assert main(["predict", *data, "-o", str(out), "--quiet", "--certify", "--training-data", str(table)]) == 0
    predictions = pd.read_csv(out)
    names = ("mean", "std", "lower", "upper", "mean_error", "std_lower", "std_upper")
    assert list(predictions) == [f"{target}_{name}" for target in "yz" for name in names]
    mean, std = nearexact.load(model).predict(pd.read_csv(table)[["a", "b"]], return_std=True)
    for number, target in enumerate("yz"):
        assert np.allclose(predictions[f"{target}_mean"], mean[:, number])
        assert np.allclose(predictions[f"{target}_std"], std[:, number])
    assert main(["certify", *data, "--quiet"]) == 0
    assert main(["show", str(model)]) == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--target", "y", "--noise-column", "nose"], "has no column 'nose'"),
        (["--target", "y,nothing"], "has no column 'nothing'"),
        (["--target", "y", "--noise-column", "y"], "must be different columns"),
        (["--target", "y,y"], "must be different columns"),
        (["--target", "y", "--noise-column", "weight", "--weight-column", "weight"], "must be different columns"),
        (["--target", "y", "--weight-column", "weight", "--ignore", "weight"], "is learnt from and cannot be ignored"),
        (["--target", "y", "--noise-column", "z"], "where a number from 0 up is expected"),
        (["--target", "y,z", "--noise-column", "variance"], "noise_variance is for one target, got 2"),
        (["--target", "y,z", "--report", "page.html"], "a report is about one target, got 2"),
    ],
)
def test_columns_that_cannot_be_meant_are_named(
    table: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    options: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["fit", str(table), "-o", "model.nx", *QUICK, *options]) != 0
    assert message in capsys.readouterr().err
    assert not Path("model.nx").exists()


def test_a_comma_in_a_name_is_a_part_of_it(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"x": rng.normal(size=20), "a,b": rng.normal(size=20)})
    frame.to_csv(tmp_path / "t.csv", index=False)
    result = tables.fit(tmp_path / "t.csv", "a,b", kernel="se", time_limit="0.2s", test_fraction=0.0)
    assert result.summary.target == "a,b"
    assert not result.prepared.recipe.several


@pytest.mark.parametrize("column", ["variance", "weight"])
@pytest.mark.parametrize(("cell", "words"), [(-0.5, "a number from 0 up is expected"), ("bad", "a finite number is")])
def test_cells_that_are_no_noise_or_weight_are_named(
    column: str,
    cell: object,
    words: str,
    table: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("nearexact.tables.model_search.ModelSearch.run", lambda *_: pytest.fail("it was trained"))
    frame = pd.read_csv(table).astype({column: object})
    frame.loc[20, column] = cell
    frame.loc[3, "y"] = np.nan  # a row that is dropped does not change the numbers of others
    frame.to_csv(tmp_path / "t.csv", index=False)
    options = [f"--{'noise' if column == 'variance' else 'weight'}-column", column, "--missing", "drop"]
    arguments = ["fit", str(tmp_path / "t.csv"), "--target", "y", "-o", str(tmp_path / "m.nx"), *options]
    assert_refused(arguments, f"column {column!r} has {cell!r} in row 21, where {words}", capsys)
