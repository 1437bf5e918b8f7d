"""Models in files: what is in them is checked before it is believed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from safetensors import safe_open
from safetensors.torch import save_file

import nearexact
from nearexact import tables
from nearexact.cli import main

Words = dict[str, Any]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = np.random.default_rng(0)
    folder = tmp_path_factory.mktemp("models")
    frame = pd.DataFrame({"x": rng.normal(size=40), "k": rng.choice(["a", "b", "c"], size=40)})
    frame.assign(y=frame["x"] + 0.1 * rng.normal(size=40)).to_csv(folder / "data.csv", index=False)
    tables.fit(folder / "data.csv", "y", kernel="se", time_limit="10s").save(folder / "model.nx")
    return folder / "model.nx"


def changed(saved: Path, path: Path, change: Callable[[Words], None]) -> Path:
    """The same file with another header."""
    with safe_open(saved, framework="pt") as file:
        header = json.loads(file.metadata()["nearexact"])
        arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    change(header)
    save_file(arrays, path, {"nearexact": json.dumps(header)})
    return path


def test_a_model_predicts_frames_too(saved: Path) -> None:
    """`nearexact.load` gives the estimator, whose inputs have names."""
    model, recipe = tables.load_with_recipe(saved)
    assert recipe.inputs == ["x", "k=a", "k=b", "k=c"]
    assert model.feature_names_in_.tolist() == recipe.inputs
    assert type(nearexact.load(saved)) is nearexact.SGPRegressor


def test_files_from_before_recipes_are_read(saved: Path, tmp_path: Path) -> None:
    path = changed(saved, tmp_path / "old.nx", lambda header: header.pop("recipe"))
    assert not hasattr(nearexact.load(path), "recipe_")
    assert main(["show", str(path), "--quiet"]) == 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda header: header.update(recipe=[]), "is not a model file of nearexact, or is damaged"),
        (lambda header: header.update(recipe={}), "recipe for columns is damaged"),
        (lambda header: header["recipe"]["columns"].pop(), "it makes 1 inputs for a model of 4"),
        (lambda header: header["recipe"]["columns"][1].update(categories=["a"]), "inputs for a model of 4"),
        (lambda header: header["recipe"]["columns"][0].update(kind="magic"), "recipe for columns is damaged"),
        (lambda header: header["recipe"].update(missing="guess"), "recipe for columns is damaged"),
        (lambda header: header["recipe"].update(split={"test_fraction": 7}), "recipe for columns is damaged"),
        (lambda header: header["recipe"].update(summary={"scores": 3}), "the model's summary is damaged"),
        (lambda header: header["recipe"].update(summary=[1]), "the model's summary is damaged"),
    ],
)
def test_no_header_is_believed_unseen(
    change: Callable[[Words], None], message: str, saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = changed(saved, tmp_path / "model.nx", change)
    assert main(["show", str(path)]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    if "summary" not in message:
        assert main(["predict", str(path), str(saved.with_name("data.csv")), "-o", str(tmp_path / "o.csv")]) == 2


def test_a_certificate_needs_the_file_that_was_fitted(
    saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = saved.with_name("data.csv")
    certificate = tables.certify(saved, data)
    model = nearexact.load(saved)
    assert certificate.lower == pytest.approx(model.certificate_.lower, abs=0.01 * 34)
    shuffled = pd.read_csv(data).sample(frac=1.0, random_state=0)
    shuffled.to_csv(tmp_path / "other.csv", index=False)
    assert main(["certify", str(saved), str(tmp_path / "other.csv")]) == 2
    assert "these are not the data that the model was fitted to" in capsys.readouterr().err
    shuffled[:10].to_csv(tmp_path / "short.csv", index=False)
    assert main(["certify", str(saved), str(tmp_path / "short.csv")]) == 2
    assert "is not the file that the model was fitted to" in capsys.readouterr().err
