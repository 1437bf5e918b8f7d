"""Models in files: what is in them is checked before it is believed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import nearexact
from nearexact import tables
from nearexact.cli import main
from tests.model_files import altered, header_of, resigned

Words = dict[str, Any]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = np.random.default_rng(0)
    folder = tmp_path_factory.mktemp("models")
    frame = pd.DataFrame({"x": rng.normal(size=40), "k": rng.choice(["a", "b", "c"], size=40)})
    frame.assign(y=frame["x"] + 0.1 * rng.normal(size=40)).to_csv(folder / "data.csv", index=False)
    tables.fit(folder / "data.csv", "y", kernel="se", time_limit="10s").save(folder / "model.nx")
    return folder / "model.nx"


def changed(saved: Path, path: Path, change: Callable[[Words], object]) -> Path:
    """The same model with other metadata, in a file of the present version."""
    metadata = header_of(saved)["metadata"]
    change(metadata)
    return resigned(saved, path, {"metadata": metadata})


def test_a_model_predicts_frames_too(saved: Path) -> None:
    """`nearexact.load` gives the estimator, whose inputs have names."""
    model, recipe = tables.load_with_recipe(saved)
    assert recipe.inputs == ["x", "k=a", "k=b", "k=c"]
    assert model.feature_names_in_.tolist() == recipe.inputs
    assert type(nearexact.load(saved)) is nearexact.GPRegressor


def test_files_from_before_recipes_are_read(saved: Path, tmp_path: Path) -> None:
    path = changed(saved, tmp_path / "old.nx", lambda metadata: metadata.pop("recipe"))
    assert nearexact.load(path).metadata_ == {}
    assert main(["show", str(path), "--quiet"]) == 0
    with pytest.raises(ValueError, match="was not fitted to a file"):
        tables.load_with_recipe(path)


@pytest.mark.parametrize("version", [1, 2])
def test_recipes_of_earlier_versions_are_read(version: int, saved: Path, tmp_path: Path) -> None:
    """They stand in the header itself."""
    header = header_of(saved)
    change: Words = {"version": version}
    if version == 1:
        names = ("lower", "upper", "elbo", "n", "verdict")
        change["certificate"] = {name: header["certificate"][name] for name in names}
    path = altered(saved, tmp_path / "old.nx", change)
    assert "recipe" in header_of(path)
    assert "metadata" not in header_of(path)
    old, recipe = tables.load_with_recipe(path)
    new = nearexact.load(saved)
    assert old.metadata_ == new.metadata_
    assert recipe == tables.recipe_of(old) == tables.recipe_of(new)
    outputs = [tmp_path / "old.csv", tmp_path / "new.csv"]
    for model, output in zip((path, saved), outputs, strict=True):
        tables.predict(model, saved.with_name("data.csv"), output)
    assert outputs[0].read_bytes() == outputs[1].read_bytes()
    assert main(["show", str(path), "--quiet"]) == 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda metadata: metadata.update(recipe=[]), "recipe for columns is damaged"),
        (lambda metadata: metadata.update(recipe={}), "recipe for columns is damaged"),
        (lambda metadata: metadata["recipe"]["columns"].pop(), "it makes 1 inputs for a model of 4"),
        (lambda metadata: metadata["recipe"]["columns"][1].update(categories=["a"]), "inputs for a model of 4"),
        (lambda metadata: metadata["recipe"]["columns"][0].update(kind="magic"), "recipe for columns is damaged"),
        (lambda metadata: metadata["recipe"].update(missing="guess"), "recipe for columns is damaged"),
        (lambda metadata: metadata["recipe"].update(split={"test_fraction": 7}), "recipe for columns is damaged"),
        (lambda metadata: metadata["recipe"].update(summary={"scores": 3}), "the model's summary is damaged"),
        (lambda metadata: metadata["recipe"].update(summary=[1]), "the model's summary is damaged"),
    ],
)
def test_no_header_is_believed_unseen(
    change: Callable[[Words], object], message: str, saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
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
