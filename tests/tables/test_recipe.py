"""A table as inputs: the recipe is kept, done again, and says what is missing."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from nearexact.tables.dialect import Spelling
from nearexact.tables.reading import open_table
from nearexact.tables.recipe import Prepared, Recipe, Split, prepare, training_rows

FRAME = pd.DataFrame(
    {
        "age": ["1", "2", None, "4", "5", "6", "7", "8", "3", "9", "6", "5", "1", "2"],
        "city": ["a", "b", "c", "a", None, "b", "c", "c", "a", "b", "c", "a", "b", "c"],
        "when": pd.date_range("2020-01-01", periods=14).astype(str),
        "y": ["1.5", "2", "3", "4", "5", None, "7", "8", "9", "10", "11", "12", "13", "14"],
        "empty": [None] * 14,
        "same": ["x"] * 14,
    }
)


def file_of(tmp_path: Path, frame: pd.DataFrame = FRAME, name: str = "t.csv") -> Path:
    frame.to_csv(tmp_path / name, index=False)
    return tmp_path / name


def prepared(tmp_path: Path, frame: pd.DataFrame = FRAME, **options: object) -> Prepared:
    return prepare(open_table(file_of(tmp_path, frame), wanted={"y"}), "y", **options)  # type: ignore[arg-type]


def test_missing_values_are_an_error_that_counts_them(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"missing values in 'age' \(1\), 'city' \(1\), 'y' \(1\)\npass --missing drop"
    ):
        prepared(tmp_path)


def test_rows_with_missing_values_dropped(tmp_path: Path) -> None:
    table = prepared(tmp_path, missing="drop", split=Split(0.0))
    assert table.y_train.tolist() == [1.5, 2.0, 4.0, *range(7, 15)]
    assert not len(table.y_test)
    assert set(table.notes) == {
        "dropped 1 rows without a target",
        "dropped 2 rows with missing values",
        "left out 'empty': empty",
        "left out 'same': constant",
    }


def test_missing_values_filled_from_the_rows_to_train_on(tmp_path: Path) -> None:
    table = prepared(tmp_path, missing="median", split=Split(0.1, seed=1))
    names = table.recipe.names
    known = table.train[:, names.index("age")]
    train = Split(0.1, seed=1).rows(13)[0]
    ages = FRAME["age"][FRAME["y"].notna()].astype(float).to_numpy()[train]
    np.testing.assert_array_equal(known, np.where(np.isnan(ages), np.nanmedian(ages), ages))
    assert "filled in 1 cells of 'age', 1 cells of 'city'" in table.notes
    assert len(table.y_train) + len(table.y_test) == 13  # a target is never made up


@pytest.mark.parametrize("missing", ["drop", "median"])
def test_columns_of_one_value_are_left_out_with_blanks_or_without(missing: str, tmp_path: Path) -> None:
    """And the rows that are trained on are found again, though none is dropped for such a column."""
    n = np.arange(30)
    frame = pd.DataFrame({"x": np.sin(n), "flag": np.where(n % 3, "yes", None), "seven": np.where(n % 4, 7.0, np.nan)})
    frame = frame.assign(y=np.where(n < 28, np.cos(n), np.nan), late=np.where(n < 28, 1, 2))
    table = prepared(tmp_path, frame, missing=missing)
    assert table.recipe.names == ["x"]
    assert table.recipe.left_out == {
        "flag": "constant but for blank cells",
        "seven": "constant but for blank cells",
        "late": "constant in the rows that are left",
    }
    assert len(table.y_train) + len(table.y_test) == 28
    assert "left out 'flag': constant but for blank cells" in table.notes
    values, _ = training_rows(open_table(tmp_path / "t.csv", wanted={"y"}), table.recipe, len(table.y_train))
    np.testing.assert_array_equal(values, table.train)
    with pytest.raises(ValueError, match=r"missing values in 'flag' \(10\)"):  # they may mean something
        prepared(tmp_path, frame)
    with pytest.raises(ValueError, match=r"no column to learn from .*'flag' is constant but for blank cells"):
        prepared(tmp_path, frame[["flag", "y"]], missing=missing)


def test_a_column_that_is_constant_in_the_rows_that_are_left_is_left_out(tmp_path: Path) -> None:
    n = np.arange(30)
    frame = pd.DataFrame({"x": np.where(n % 2, np.sin(n), np.nan), "z": np.where(n % 2, 3.0, n), "y": np.cos(n)})
    table = prepared(tmp_path, frame.assign(w=np.sin(2 * n)), missing="drop")
    assert table.recipe.names == ["x", "w"]
    assert table.recipe.left_out == {"z": "constant in the rows that are left"}


def test_inputs_by_name_in_any_order(tmp_path: Path) -> None:
    complete = FRAME.dropna(subset=["age", "city", "y"])
    table = prepared(tmp_path, complete, split=Split(0.0))
    recipe = Recipe.from_json(json.loads(json.dumps(table.recipe.to_json())))
    assert recipe == table.recipe
    assert recipe.inputs == ["age", "city=a", "city=b", "city=c", "when (days)"]
    assert recipe.slices() == {"age": slice(0, 1), "city": slice(1, 4), "when": slice(4, 5)}
    other = complete[["when", "age", "city"]].assign(more=1)
    file = open_table(file_of(tmp_path, other, "other.csv"), wanted=recipe.names)
    recipe.check_columns(file)
    ((piece, _),) = file.pieces(recipe.names)
    np.testing.assert_array_equal(recipe.expand(recipe.values(piece, ".")), recipe.expand(table.train))
    lacking = open_table(file_of(tmp_path, other[["when"]], "lacking.csv"))
    with pytest.raises(ValueError, match=r"lacks columns 'age', 'city'; it has 'when'"):
        recipe.check_columns(lacking)


@pytest.mark.parametrize(
    ("frame", "options", "message"),
    [
        ({"x": [1, 2, 3], "z": [1, 2, 3]}, {}, "has no column 'y'; it has 'x', 'z'"),
        ({"y": [1, 2, 3]}, {}, "has no column to learn from besides the target 'y'"),
        ({"x": [1, 1, 1], "y": [1, 2, 3]}, {}, r"besides the target 'y' \('x' is constant\)"),
        ({"x": [1, 2, 3], "y": ["a", "b", "c"]}, {}, "column 'y' has 'a' in row 1, where a finite number is expected"),
        ({"x": range(9), "y": range(9)}, {}, "at least 10 rows without missing values are needed, got 9"),
        ({"x": range(80), "y": range(80)}, {"split": Split(0.99)}, "2 rows to train on are too few: 78 of 80 are kept"),
        ({"x": range(10), "y": range(10)}, {}, r"8 rows to train on are too few: .*\nlower --test-fraction"),
        ({"x": range(10), "y": [0.5] * 10}, {}, "the target 'y' is 0.5 in all rows: there is nothing to predict"),
        ({"x": [1, 2, 3], "y": [1, 2, 3]}, {"ignore": ["q"]}, "has no column 'q'"),
        ({"x": [1, 2, 3], "y": [1, 2, 3]}, {"ignore": ["y"]}, "is the target and cannot be ignored"),
        ({"x": [1, 2, 3], "y": [1, 2, 3]}, {"missing": "mean"}, "missing must be one of error, drop, median"),
    ],
)
def test_tables_to_learn_nothing_from(
    frame: dict[str, list[object]], options: dict[str, object], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=message):
        prepared(tmp_path, pd.DataFrame(frame), **options)


def test_a_column_that_numbers_the_rows_is_no_input(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"x": rng.normal(size=20), "y": rng.normal(size=20)})
    frame.to_csv(tmp_path / "t.csv")  # with pandas' index as a column without a name
    table = prepare(open_table(tmp_path / "t.csv"), "y")
    assert table.recipe.names == ["x"]
    assert table.recipe.left_out == {"column 1": "numbers the rows"}


def test_columns_that_look_like_an_index_are_pointed_out(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    n = 20
    frame = pd.DataFrame(
        {
            "Unnamed: 0": range(n),
            "order": 2 * np.arange(n)[::-1] + 7,
            "customer_id": rng.permutation(n) + 100,
            "score": rng.permutation(n),  # all different, but neither in order nor named like an id
            "count": rng.integers(5, size=n),
            "x": np.sort(rng.normal(size=n)),
            "y": rng.normal(size=n),
        }
    )
    table = prepared(tmp_path, frame)
    assert table.recipe.left_out == {"Unnamed: 0": "numbers the rows"}
    assert table.index_like == ("order", "customer_id")
    assert sum("looks like an index or an id" in note for note in table.notes) == 2


def test_the_spelling_of_the_file_is_kept(tmp_path: Path) -> None:
    rows = "".join(f"{i % 3};{i},5\n" for i in range(12))
    (tmp_path / "t.csv").write_text(f"x;y\n{rows}")
    recipe = prepare(open_table(tmp_path / "t.csv"), "y").recipe
    assert recipe.spelling == Spelling("utf-8", ";", ",", True)
    words = json.loads(json.dumps(recipe.to_json()))
    assert Recipe.from_json(words) == recipe
    words.pop("spelling")  # as in models of earlier releases
    assert Recipe.from_json(words).spelling == Spelling()


def test_remarks_on_how_numbers_were_read(tmp_path: Path) -> None:
    rows = "".join(f"{i % 3};{i + 1},000;{i} €\n" for i in range(12))
    (tmp_path / "t.csv").write_text(f"a;b;y\n{rows}", encoding="utf-8")
    table = prepare(open_table(tmp_path / "t.csv"), "y", split=Split(0.0))
    assert "'y' is predicted without its €" in table.notes
    assert any(note.startswith("commas in 'b', as in 1,000, are read as decimal marks") for note in table.notes)
    assert table.train[:, 1].tolist() == list(range(1, 13))
    said = prepare(open_table(tmp_path / "t.csv", Spelling(decimal=".")), "y", split=Split(0.0))
    assert said.train[:, 1].tolist() == [1000.0 * i for i in range(1, 13)]
    assert not any("commas" in note for note in said.notes)


def test_all_rows_are_in_the_order_of_the_file(tmp_path: Path) -> None:
    table = prepared(tmp_path, missing="median", split=Split(0.1, seed=4))
    values, learnt = table.all_rows()
    whole = training_rows(open_table(tmp_path / "t.csv", wanted={"y"}), table.recipe, len(values))
    np.testing.assert_array_equal(values, whole[0])
    np.testing.assert_array_equal(learnt.y, whole[1].y)


@pytest.mark.parametrize("missing", ["drop", "median"])
def test_the_rows_that_were_trained_on_are_found_again(missing: str, tmp_path: Path) -> None:
    table = prepared(tmp_path, missing=missing, split=Split(0.1, seed=4))
    file = open_table(tmp_path / "t.csv", wanted={"y"})
    values, learnt = training_rows(file, table.recipe, len(table.y_train))
    np.testing.assert_array_equal(values, table.train)
    np.testing.assert_array_equal(learnt.y, table.y_train)
    with pytest.raises(ValueError, match="is not the file that the model was fitted to"):
        training_rows(file, table.recipe, 100)


@pytest.mark.parametrize("fraction", [0.0, 0.001, 0.15, 0.5, 0.999])
@pytest.mark.parametrize("n", [3, 10, 101])
def test_a_split_keeps_every_row_once(fraction: float, n: int) -> None:
    train, test = Split(fraction, seed=3).rows(n)
    assert sorted([*train, *test]) == list(range(n))
    assert len(train) >= 2
    assert (len(test) > 0) == (fraction > 0.0)


@pytest.mark.parametrize("fraction", [-0.1, 1.0, float("nan")])
def test_shares_that_are_none(fraction: float) -> None:
    with pytest.raises(ValueError, match="the test fraction must be from 0"):
        Split(fraction)


@pytest.mark.parametrize(
    "words",
    [
        {},
        None,
        [],
        {"target": "y", "columns": [], "missing": "error", "left_out": {}, "split": {}},
        {"target": "y", "columns": [{"name": "x", "kind": "magic"}], "missing": "error", "left_out": {}, "split": {}},
        {"target": "y", "columns": [{"name": 3}], "missing": "error", "left_out": {}, "split": {}},
    ],
)
def test_damaged_recipes_are_refused(words: object) -> None:
    with pytest.raises(ValueError, match="the model's recipe for columns is damaged"):
        Recipe.from_json(words)


def test_all_columns_that_cannot_be_inputs_are_said_at_once(tmp_path: Path) -> None:
    rows = range(42)
    frame = pd.DataFrame(
        {
            "name": [f"n{i}" for i in rows],
            "x": [float(i % 7) for i in rows],
            "town": [f"t{i % 21}" for i in rows],
            "when": ["01/02/2020", "03/04/2020"] * 21,
            "size": [1e300, *(float(i % 5) for i in rows[1:])],
            "y": [float(i) for i in rows],
        }
    )
    with pytest.raises(ValueError, match="column 'name' is text with 42") as refused:
        prepared(tmp_path, frame)
    said = str(refused.value)
    assert "as those of an id; and column 'town' is text with 21" in said
    assert "column 'when', such as '01/02/2020'" in said
    assert "column 'size' has '1e+300' in row 1" in said
    advice = " ".join(refused.value.__notes__)
    assert advice.count("--ignore") == 1
    assert "--dates day-first" in advice
    mended = frame.drop(columns=["name", "town", "when", "size"])
    assert prepared(tmp_path, mended).recipe.names == ["x"]


def test_of_many_columns_that_cannot_be_inputs_some_are_said(tmp_path: Path) -> None:
    names = {f"c{column}": [f"{column} {i}" for i in range(30)] for column in range(9)}
    with pytest.raises(ValueError, match=r"'c0' .*'c4' .*; and 4 more\n"):
        prepared(tmp_path, pd.DataFrame({**names, "x": range(0, 60, 2), "y": [i**0.5 for i in range(30)]}))


def test_columns_with_nothing_to_advise_are_said_without_advice(tmp_path: Path) -> None:
    huge = [1e300, *range(1, 14)]
    frame = pd.DataFrame({"a": huge, "b": huge, "y": range(14)})
    with pytest.raises(ValueError, match=r"column 'a' has '1e.300' in row 1.*; and column 'b'") as refused:
        prepared(tmp_path, frame)
    assert not getattr(refused.value, "__notes__", [])
