"""`nearexact fit FOLDER --dask ADDRESS`, and `predict` with the model that it writes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import nearexact
from nearexact.cli import main
from tests.problems import regression

pytest.importorskip("dask.dataframe", reason="Dask is not installed")

X, Y = regression(90)
FRAME = pd.DataFrame(X, columns=["a", "b", "c"]).assign(y=Y, unit="m")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three Parquet files."""
    folder = tmp_path / "measurements"
    folder.mkdir()
    for number in range(3):
        FRAME[30 * number : 30 * (number + 1)].to_parquet(folder / f"part{number}.parquet")
    return folder


@pytest.mark.usefixtures("small_blocks")
def test_a_folder_gives_a_model_that_predicts_files(
    client: Any, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, predictions = tmp_path / "model.nx", tmp_path / "predictions.csv"
    address = ["--dask", client.scheduler.address]
    fit = ["fit", str(folder), "--target", "y", "-o", str(model), *address]
    assert main([*fit, "--ignore", "unit", "--time-limit", "2s", "--quiet", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["rows"], found["method"], found["target"]) == (90, "sparse", "y")
    assert main(["predict", str(model), str(folder / "part1.parquet"), "-o", str(predictions), "--quiet"]) == 0
    expected = nearexact.load(model).predict(FRAME[["a", "b", "c"]][30:60])
    np.testing.assert_allclose(pd.read_csv(predictions)["mean"], expected, rtol=1e-9)
    capsys.readouterr()
    for options, words in (
        (fit, "'unit' is"),
        ([*fit, "--target", "z"], "no column 'z'"),
        ([*fit, "--report", str(tmp_path / "fit.html")], "--report cannot be combined"),
        ([*fit, "--missing", "drop"], "--missing cannot be combined"),
        ([*fit, "--no-refit"], "--no-refit cannot be combined"),
        ([*fit, "--delimiter", ";"], "--delimiter cannot be combined"),
        (["fit", str(folder / "part0.parquet"), *fit[2:]], "a folder of Parquet files"),
        ([*fit[:-1], "local:0", "--ignore", "unit"], "must be the address of a scheduler"),
    ):
        assert main(options) == 2
        assert words in capsys.readouterr().err
