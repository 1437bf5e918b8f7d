"""What may be a mistake in a table is pointed out, and what may well be meant is not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from nearexact import tables
from nearexact.tables.conclusions import conclusions
from nearexact.tables.reading import open_table
from nearexact.tables.recipe import Split, prepare
from nearexact.tables.remarks import far_targets


def test_targets_that_may_be_mistyped_are_named() -> None:
    y = np.random.default_rng(0).normal(size=200)
    assert far_targets("y", y) is None
    y[26] = 99999.0
    assert far_targets("y", y) == "'y' has 99999 in row 27"
    y[[3, 5]] = np.nan, -4000.0
    assert far_targets("y", y) == "'y' has -4000 in row 6, 99999 in row 27"
    y[[50, 51]] = 5000.0
    assert far_targets("y", y) is None  # so many are hardly slips


@pytest.mark.parametrize("seed", range(20))
def test_heavy_tails_and_rare_events_are_no_mistakes(seed: int) -> None:
    rng = np.random.default_rng(seed)
    for y in (rng.standard_t(2, size=500), np.exp(2.0 * rng.normal(size=500)), rng.exponential(size=10)):
        assert far_targets("y", y) is None
    assert far_targets("y", np.where(np.arange(100) == 7, 1.0, 0.0)) is None


def test_a_mistyped_target_is_what_to_look_at_first() -> None:
    rng = np.random.default_rng(0)
    X = rng.uniform(-3.0, 3.0, size=(80, 2))
    y = np.sin(2.0 * X[:, 0]) + 0.1 * rng.normal(size=80)
    row = int(Split(0.15, 0).rows(80)[1][1])
    y[row] = 99999.0  # among those that are kept back
    frame = pd.DataFrame({"a": X[:, 0], "b": X[:, 1]})
    fitted = tables.fit(frame.assign(y=y), "y", kernel="se", time_limit="5s")
    words = f"'y' has 99999 in row {row + 1}"
    assert f"{words}, further from the others than all of them vary: is it a mistake?" in fitted.summary.notes
    assert conclusions(fitted.summary.to_json())[-1].text.startswith(f"Look whether it is a mistake that {words}")
    # A model that has learnt nothing from all rows does not take the place of one that has from most of them.
    assert fitted.summary.verdict != "no better than noise"
    assert not fitted.summary.refitted
    assert np.corrcoef(fitted.predict(frame)["mean"], np.sin(2.0 * X[:, 0]))[0, 1] > 0.9


@pytest.mark.parametrize(
    ("numbers", "is_told"),
    [
        (["4.064", "458", "12.500"], True),
        (["4.064", "458", "12"], True),
        (["4.064", "45", "12.5"], False),
        (["4.064", "45", "7"], False),  # weights in kg, perhaps
        (["4.064", "4580", "700"], False),  # thousands are not separated
        (["4.064", "5.125", "0.250"], False),
        (["4.064", "5.125", "6.250"], False),
    ],
)
def test_points_that_may_separate_thousands_are_pointed_out(numbers: list[str], is_told: bool, tmp_path: Path) -> None:
    rows = "".join(f"{numbers[i % 3]};{i + 0.5}\n" for i in range(12))
    (tmp_path / "t.csv").write_text(f"x;y\n{rows}")
    notes = prepare(open_table(tmp_path / "t.csv"), "y", split=Split(0.0)).notes
    expected = "points in 'x', as in 4.064, are read as decimal marks; if they separate thousands, pass --decimal ,"
    assert (expected in notes) == is_told


def test_a_category_among_numbers_is_pointed_out(tmp_path: Path) -> None:
    def notes(sizes: list[str]) -> tuple[str, ...]:
        frame = pd.DataFrame({"size": sizes, "y": np.random.default_rng(0).normal(size=len(sizes))})
        frame.to_csv(tmp_path / "t.csv", index=False)
        return prepare(open_table(tmp_path / "t.csv"), "y", split=Split(0.0)).notes

    few = [str(1 + i % 5) for i in range(30)]
    told = "'size' is read as a category: most are numbers, but not {} in row {}; correct that cell if it should be one"
    assert notes([*few, "unknown"]) == (told.format("'unknown'", 31),)
    assert notes(["-", *few]) == (told.format("'-'", 1),)
    assert notes([*few, *(["5+"] * 10)]) == ()  # so many are meant
    with pytest.raises(
        ValueError, match=r"'size' is text with 12 different values; most are numbers, but not '-' in row 4"
    ):
        notes([f"{i}.5" if i != 3 else "-" for i in range(12)])


def test_columns_that_are_categories_by_their_type_need_no_remark() -> None:
    for codes in ([*"12345" * 5, "x"], [*"0123456789", "10", "x"]):
        frame = pd.DataFrame({"a": pd.Categorical(codes), "y": np.sin(np.arange(len(codes)))})
        assert prepare(open_table(frame), "y").notes == ()
