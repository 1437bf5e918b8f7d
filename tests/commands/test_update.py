"""`nearexact update`: the rows of another file for a model in a file, of every method, with noise and weights."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import nearexact
from nearexact import tables
from nearexact.cli import main
from nearexact.kernels import SquaredExponential
from nearexact.tables.recipe import Recipe
from tests.commands.helpers import assert_nothing_is_overwritten, assert_refused

KERNEL = SquaredExponential([1.0, 3.0]).with_bounds(lengthscales="fixed", variance="fixed")
METHODS = ("cholesky", "iterative", "sparse")


def rows(n: int, seed: int, noise: float = 0.3) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame({"x": rng.uniform(-3.0, 3.0, size=n), "kind": rng.choice(["a", "b"], size=n)})
    y = 50.0 + np.sin(2.0 * frame["x"]) + (frame["kind"] == "a") + noise * rng.normal(size=n)
    return frame.assign(variance=np.where(np.arange(n) % 2, 0.0, 0.2), weight=1.0 + np.arange(n) % 3, y=y)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two tables, both in one, and a model of the first by each method."""
    folder = tmp_path_factory.mktemp("updates")
    first, more = rows(60, seed=0), rows(20, seed=1)
    first.to_csv(folder / "first.csv", index=False)
    more.iloc[:, ::-1].to_csv(folder / "more.csv", index=False, sep=";")  # columns are matched by name
    pd.concat([first, more]).to_csv(folder / "all.csv", index=False)
    columns = {"noise_column": "variance", "weight_column": "weight", "test_fraction": 0.0}
    fitted = tables.fit(first, "y", kernel="se", time_limit="1s", **columns)  # type: ignore[arg-type]
    inputs = fitted.prepared.recipe.frame(fitted.prepared.train)
    for method in METHODS:
        model = nearexact.GPRegressor(KERNEL, method=method, noise_bounds=0.1, random_state=0)
        model.fit(inputs, fitted.prepared.y_train, **fitted.prepared.noise_train)
        model.metadata_ = fitted.model.metadata_  # as if `nearexact fit` had made it
        model.save(folder / f"{method}.nx")
    return folder


@pytest.mark.parametrize("method", METHODS)
def test_rows_of_a_file_are_added(
    method: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before, out = folder / f"{method}.nx", tmp_path / "updated.nx"
    content = before.read_bytes()
    assert main(["update", str(before), str(folder / "more.csv"), "-o", str(out), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert before.read_bytes() == content
    assert (result["added"], result["n"], result["notes"]) == (20, 80, [])
    expected, more = nearexact.load(before), rows(20, seed=1)
    recipe = tables.recipe_of(expected)
    inputs = recipe.frame(recipe.values(more, "."))
    noise = {"noise_variance": more["variance"], "sample_weight": more["weight"]}
    expected.update(inputs, more["y"], **noise)
    updated = nearexact.load(out)
    assert np.array_equal(updated.predict(inputs), expected.predict(inputs))
    assert result["lower"] == updated.certificate_.lower == expected.certificate_.lower
    certificate = tables.certify(out, folder / "all.csv")  # the rows of both files, one after the other
    assert certificate.n == 80
    assert result["lower"] - 1e-6 <= certificate.upper
    assert main(["show", str(out)]) == 0
    shown = capsys.readouterr().out
    assert "20 rows were added later: the certificate is that of all 80" in shown
    assert "fitted to 80 rows" in shown


def test_it_says_when_to_learn_anew(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows(20, seed=2, noise=3.0).to_csv(tmp_path / "noisy.csv", index=False)
    arguments = ["update", str(folder / "cholesky.nx"), str(tmp_path / "noisy.csv"), "-o", str(tmp_path / "model.nx")]
    assert main(arguments) == 0
    shown = capsys.readouterr().out
    assert "20 rows added, 80 in all" in shown
    assert "times as far from the predictions as the model expects: fit again with all rows" in shown


def test_a_frame_is_added_to_a_model_that_is_at_hand(folder: Path, tmp_path: Path) -> None:
    model, recipe = tables.load_with_recipe(folder / "sparse.nx")
    more = rows(20, seed=1)
    more.loc[3, "weight"] = 0.0
    updated = tables.update((model, recipe), more)
    assert updated.model is model
    assert (updated.rows, updated.notes) == (19, ("dropped 1 rows of weight 0",))
    updated.save(tmp_path / "model.nx")
    assert nearexact.load(tmp_path / "model.nx").certificate_.n == 79


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda more: more.drop(columns="x"), "lacks column 'x'"),
        (lambda more: more.drop(columns=["y", "weight"]), "lacks columns 'y', 'weight'"),
        (lambda more: more.assign(kind="c"), "'c'"),
        (lambda more: more.assign(variance=-1.0), "where a number from 0 up is expected"),
        (lambda more: more.assign(weight=0.0), "has no rows to learn from"),
        (lambda more: more.assign(x=np.nan), "missing values in 'x' (20)"),
    ],
)  # fmt: skip
def test_rows_that_do_not_go_with_the_model_are_refused(
    change: object, message: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    change(rows(20, seed=1)).to_csv(tmp_path / "more.csv", index=False)  # type: ignore[operator]
    out = tmp_path / "out.nx"
    arguments = ["update", str(folder / "cholesky.nx"), str(tmp_path / "more.csv"), "-o", str(out)]
    assert_refused(arguments, message, capsys)
    assert not out.exists()


@pytest.mark.parametrize("output", ["model.nx", "t.csv", "hard.csv"])
@pytest.mark.usefixtures("linked_files")
def test_no_input_is_overwritten(output: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert_nothing_is_overwritten(["update", "model.nx", "t.csv", "-o", output], capsys)


@pytest.mark.filterwarnings("ignore:the new rows are")
def test_targets_have_the_sign_that_they_had_at_the_fit(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=30), rng.normal(size=30)

    def table(name: str, form: str) -> Path:
        pd.DataFrame({"x": x, "y": [form.format(value) for value in y]}).to_csv(tmp_path / name, index=False)
        return tmp_path / name

    shares, plain = table("shares.csv", "{:.2f}%"), table("plain.csv", "{:.4f}")
    of_shares, of_plain = (
        tables.fit(path, "y", kernel="se", time_limit="0.5s", test_fraction=0.0) for path in (shares, plain)
    )
    recipes = of_shares.prepared.recipe, of_plain.prepared.recipe
    assert [recipe.target_signs for recipe in recipes] == [("%",), ("",)]
    assert [Recipe.from_json(json.loads(json.dumps(recipe.to_json()))) for recipe in recipes] == list(recipes)
    with pytest.raises(ValueError, match=r"column 'y' has '.*' in row 1, where a finite number with % is expected"):
        tables.update((of_shares.model, recipes[0]), plain)
    with pytest.raises(ValueError, match=r"column 'y' has .*% is understood only where all cells"):
        tables.update((of_plain.model, recipes[1]), shares)
    assert tables.update((of_shares.model, recipes[0]), shares).rows == 30
    words = recipes[1].to_json()
    words.pop("target_signs")  # as in models of earlier releases
    assert tables.update((of_plain.model, Recipe.from_json(words)), shares).rows == 30
