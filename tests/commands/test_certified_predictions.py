"""`nearexact predict --certify` on real files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.stats import norm

import nearexact
from nearexact import tables
from nearexact.cli import main

COLUMNS = ["mean", "std", "lower", "upper", "mean_error", "std_lower", "std_upper"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Data, rows to predict of which one lacks a value, and a sparse model of the data."""
    folder = tmp_path_factory.mktemp("certified")
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"x": rng.uniform(0.0, 10.0, size=150), "kind": rng.choice(["a", "b"], size=150)})
    y = 100.0 + 5.0 * np.sin(frame["x"]) + 2.0 * (frame["kind"] == "a") + rng.normal(size=150)
    frame.assign(y=y).to_csv(folder / "data.csv", index=False)
    new = pd.DataFrame({"kind": ["a", "b", "a", "b"], "x": [1.0, 2.5, np.nan, 30.0]})
    new.to_csv(folder / "new.csv", index=False)
    fitted = tables.fit(folder / "data.csv", "y", kernel="se", time_limit="20s", missing="drop")
    inputs, targets = fitted.prepared.recipe.frame(fitted.prepared.train), fitted.prepared.y_train
    save_with_recipe(nearexact.SGPRegressor(random_state=0).fit(inputs, targets), fitted, folder / "model.nx")
    return folder


def save_with_recipe(model: nearexact.SGPRegressor | nearexact.GPRegressor, fitted: tables.Fitted, path: Path) -> None:
    """As if `nearexact fit` had made this model."""
    model.metadata_ = fitted.model.metadata_
    model.save(path)


def predict(folder: Path, *options: str) -> pd.DataFrame:
    line = ["predict", str(folder / "model.nx"), str(folder / "new.csv"), "-o", str(folder / "out.parquet"), "--quiet"]
    assert main([*line, *options]) == 0
    return pd.read_parquet(folder / "out.parquet")


def test_bounds_stand_next_to_what_they_bound(folder: Path) -> None:
    """The mean, and the std of a new observation, in which the noise is."""
    training = ("--training-data", str(folder / "data.csv"))
    table = predict(folder, "--certify", *training)
    assert list(table) == COLUMNS
    assert table.isna().all(axis=1).tolist() == table.isna().any(axis=1).tolist() == [False, False, True, False]
    pd.testing.assert_frame_equal(table[COLUMNS[:4]], predict(folder))
    table = table.dropna()
    model = nearexact.load(folder / "model.nx")
    noise = float(np.sqrt(model.noise_variance_) * model._scaling_y.scale)
    assert (table["std_lower"] >= 0.999 * noise).all()
    assert (table["std_upper"] - table["std_lower"] < 0.02 * table["std_lower"]).all()
    assert (table["mean_error"] < table["std"]).all()
    np.testing.assert_allclose(table["upper"] - table["mean"], norm.ppf(0.975) * table["std"])
    short = predict(folder, "--certify", *training, "--time-limit", "0.001s").dropna()
    assert (short["mean_error"] > table["mean_error"]).all()
    assert (short["std_lower"] <= table["std_upper"]).all()
    assert (short["std_upper"] >= table["std_lower"]).all()


def test_an_exact_model_needs_no_training_data(tmp_path: Path) -> None:
    y = [0.1, 1.0, 2.2, 2.9, 4.1, 5.0, 5.8, 7.1, 8.0, 8.9]
    frame = pd.DataFrame({"x": np.arange(10.0), "y": y})
    frame.to_csv(tmp_path / "data.csv", index=False)
    fitted = tables.fit(tmp_path / "data.csv", "y", kernel="se", time_limit="10s", test_fraction=0.0)
    exact = nearexact.GPRegressor(method="cholesky", random_state=0).fit(frame[["x"]], frame["y"])
    save_with_recipe(exact, fitted, tmp_path / "exact.nx")
    line = ["predict", str(tmp_path / "exact.nx"), str(tmp_path / "data.csv"), "-o", str(tmp_path / "out.csv")]
    assert main([*line, "--certify", "--quiet"]) == 0
    table = pd.read_csv(tmp_path / "out.csv")
    assert list(table) == COLUMNS
    assert (table["mean_error"] < 1e-6).all()
    assert np.allclose(table["std_lower"], table["std"])
    assert np.allclose(table["std_upper"], table["std"])


def test_wrong_use_is_one_line(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, new, data, out = (str(folder / name) for name in ("model.nx", "new.csv", "data.csv", "wrong.csv"))
    line = ["predict", model, new, "-o", out]
    for options, message in (
        (["--certify"], "pass the file that it was fitted to as training_data (--training-data)"),
        (["--time-limit", "9s"], "are for certified predictions: ask for those, too (--certify)"),
        (["--certify", "--training-data", data, "--time-limit", "soon"], "a time limit must be a positive number"),
        (["--certify", "--training-data", new], "'y'"),
        (["--certify", "--training-data", str(folder / "none.csv")], "there is no file"),
        (["--certify", "--training-data", out], "would overwrite the training data"),
    ):
        assert main([*line, *options]) == 2
        error = capsys.readouterr().err
        assert message in error
        assert error.count("\n") == 1
    assert not (folder / "wrong.csv").exists()
