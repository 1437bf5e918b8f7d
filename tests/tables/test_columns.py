"""What a column becomes: kinds, numbers, and messages that name the cell."""

from __future__ import annotations

import datetime
import json

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nearexact.tables.columns import Column, recognise


def text(*cells: str | None) -> pd.Series:
    return pd.Series(list(cells), dtype="str")


@pytest.mark.parametrize(
    ("cells", "kind"),
    [
        (["1", "2.5", " -3e2 ", None, "NA"], "number"),
        (["1", "2", "3+"], "category"),
        (["yes", "No", " YES ", None], "boolean"),
        (["true", "FALSE"], "boolean"),
        (["yes", "false"], "category"),  # two languages
        (["a", "b", "?"], "category"),
        (["2020-01-31", "2020-02-01 12:30", "2020-02-01T12:30:00Z"], "date"),
        (["31.12.2020", "01.01.2021"], "date"),
        (["2020/12/31", None], "date"),
        (["31.12.2020", "unknown"], "category"),
        (["32.12.2020"], "category"),
    ],
)
def test_kinds(cells: list[str | None], kind: str) -> None:
    assert recognise("x", text(*cells), ".").kind == kind


@given(st.lists(st.floats(-1e150, 1e150, exclude_min=True, exclude_max=True), min_size=1))
def test_numbers_come_back_to_the_bit(numbers: list[float]) -> None:
    for decimal in (".", ","):
        cells = text(*(repr(number).replace(".", decimal) for number in numbers))
        column = recognise("x", cells, decimal)
        assert column.kind == "number"
        np.testing.assert_array_equal(column.expand(column.values(cells, decimal))[:, 0], numbers)


@settings(max_examples=30)
@given(st.lists(st.integers(-(10**12), 10**12), min_size=1), st.sampled_from([",", "'", " ", "\u202f"]))
def test_thousands_may_be_separated(numbers: list[int], mark: str) -> None:
    cells = text(*(f"{number:,}".replace(",", mark) for number in numbers))
    assert recognise("x", cells, ".").values(cells, ".").tolist() == numbers
    with_decimals = text(*(f"{number:,}.25".replace(",", mark) for number in numbers))
    european = with_decimals.str.translate(str.maketrans(",.", ".,"))
    for column_cells, decimal in ((with_decimals, "."), (european, ",")):
        expected = [float(f"{number}.25") for number in numbers]
        assert recognise("x", column_cells, decimal).values(column_cells, decimal).tolist() == expected


@pytest.mark.parametrize("cell", ["1,23", "12,3456", "0,123", "1,234'567", ",123", "1,234,56"])
def test_digits_in_other_groups_are_no_thousands(cell: str) -> None:
    with pytest.raises(ValueError, match="where a finite number is expected"):
        Column("x", "number").values(text(cell), ".")


@pytest.mark.parametrize(
    ("cells", "sign", "values"),
    [
        (["5%", "-7.5 %", None, "100%"], "%", [5.0, -7.5, np.nan, 100.0]),
        (["$1,200.50", "-$3", "$ 4", "NA"], "$", [1200.5, -3.0, 4.0, np.nan]),
        (["12 €", "3€"], "€", [12.0, 3.0]),
    ],
)
def test_signs_that_all_numbers_have(cells: list[str | None], sign: str, values: list[float]) -> None:
    column = recognise("x", text(*cells), ".")
    assert (column.kind, column.sign) == ("number", sign)
    np.testing.assert_array_equal(column.values(text(*cells), "."), values)
    assert Column.from_json(json.loads(json.dumps(column.to_json()))) == column


def test_numbers_without_their_sign() -> None:
    """A price is one in any case; but whether 5 is 5 % or 500 % nobody knows."""
    assert Column("x", "number", sign="$").values(text("7", "$8"), ".").tolist() == [7.0, 8.0]
    assert Column("x", "number", sign="$").values(pd.Series([7.0]), ".").tolist() == [7.0]
    for cells in (text("5%", "5"), pd.Series([5.0])):
        with pytest.raises(ValueError, match="where a finite number with % is expected"):
            Column("x", "number", sign="%").values(cells, ".")
    with pytest.raises(ValueError, match=r"has '€3' in row 2, where .*: € is understood only where all cells"):
        Column("x", "number", sign="$").values(text("$5", "€3"), ".")
    mixed = text(*(f"${i}" for i in range(30)), "€7")
    with pytest.raises(ValueError, match=r"most are numbers with \$, but not '€7' in row 31"):
        recognise("x", mixed, ".")


@given(st.lists(st.datetimes(datetime.datetime(1700, 1, 1), datetime.datetime(2200, 1, 1)), min_size=1))
@settings(deadline=None)
def test_dates_are_days_since_1970(moments: list[datetime.datetime]) -> None:
    cells = text(*(moment.isoformat() for moment in moments))
    column = recognise("x", cells, ".")
    assert column.kind == "date"
    expected = [(moment - datetime.datetime(1970, 1, 1)) / datetime.timedelta(days=1) for moment in moments]
    np.testing.assert_allclose(column.expand(column.values(cells, "."))[:, 0], expected, rtol=1e-15)
    as_dates = pd.Series(pd.to_datetime(cells, format="ISO8601", utc=True))  # as from a Parquet file
    np.testing.assert_array_equal(column.values(as_dates, "."), column.values(cells, "."))


def test_cycles_where_there_are_any() -> None:
    short = recognise("d", text("2020-01-01", "2020-12-31"), ".")
    assert short.inputs == ("d (days)",)
    long = recognise("d", text("2020-01-01", "2023-01-01"), ".")
    assert long.inputs == ("d (days)", "d (year, sin)", "d (year, cos)")
    times = recognise("d", text("2020-01-01 06:00", "2020-01-02 12:00"), ".")
    assert times.inputs == ("d (days)", "d (day, sin)", "d (day, cos)")
    np.testing.assert_allclose(times.expand(times.values(text("2020-01-05 06:00"), "."))[0, 1:], [1.0, 0.0], atol=1e-9)


def test_day_or_month_first() -> None:
    open_question = text("01/02/2020", "03/04/2020")
    with pytest.raises(ValueError, match=r"'d', such as '01/02/2020', may have the day or the month first\n.* --dates"):
        recognise("d", open_question, ".")
    for day_first, expected in ((True, "2020-02-01"), (False, "2020-01-02")):
        column = recognise("d", open_question, ".", day_first=day_first)
        assert column.labels(column.values(open_question, "."))[0] == expected
    assert recognise("d", text("13/02/2020", "03/04/2020"), ".").date_format == "%d/%m/%Y"
    assert recognise("d", text("02/13/2020 10:30", "03/04/2020 10:30"), ".").date_format == "%m/%d/%Y %H:%M"


@given(st.lists(st.sampled_from(["a", "b", "c", "Ünïcode", " d"]), min_size=1))
def test_categories_are_one_hot(cells: list[str]) -> None:
    column = recognise("x", text(*cells), ".")
    X = column.expand(column.values(text(*cells), "."))
    known = sorted({cell.strip() for cell in cells})
    if len(known) == 2:  # the second column would say the same
        assert column.inputs == (f"x={known[1]}",)
        assert X[:, 0].tolist() == [float(cell.strip() == known[1]) for cell in cells]
    else:
        assert X.sum(1).tolist() == [1.0] * len(cells)
        assert [known[i] for i in X.argmax(1)] == [cell.strip() for cell in cells]


def test_too_many_categories() -> None:
    names = text(*(f"n{i}" for i in range(21)))
    message = r"column 'city' is text with 21 different values, more than 20"
    with pytest.raises(ValueError, match=rf"{message}; all are different, as those of an id\n.* --ignore"):
        recognise("city", names, ".")
    with pytest.raises(ValueError, match=rf"{message}\n.* --ignore"):
        recognise("city", pd.concat([names, names], ignore_index=True), ".")
    assert len(recognise("city", names, ".", max_categories=21).inputs) == 21
    nearly = text(*(str(i) for i in range(40)), "about 7")
    with pytest.raises(ValueError, match="most are numbers, but not 'about 7' in row 41"):
        recognise("x", nearly, ".")
    with pytest.raises(ValueError, match=r"most are numbers with a unit, such as '0\.5 kg'"):
        recognise("x", text("!", *(f"{i}.5 kg" for i in range(40))), ".")
    with pytest.raises(ValueError, match="as those of an id"):
        recognise("x", text(*(f"{i}{'ABCDE'[i % 5]}" for i in range(40))), ".")


@pytest.mark.parametrize(
    ("column", "cell", "message"),
    [
        (Column("x", "number"), "abc", "column 'x' has 'abc' in row 12, where a finite number is expected"),
        (Column("x", "number"), "inf", "'inf' in row 12"),
        (Column("x", "number"), "1e999", "'1e999' in row 12"),
        (Column("x", "boolean"), "maybe", "'maybe' in row 12, where yes or no is expected"),
        (Column("x", "date", date_format="%d.%m.%Y"), "2020-01-01", "where a date like %d.%m.%Y is expected"),
        (Column("x", "category", ("a", "b")), "c", "column 'x' has 'c' in row 12, where the model knows 'a', 'b'"),
        (Column("x", "category", ("a", "b")), "c\nd" * 30, r"has 'c\\ndc\\nd.*…' in row 12"),
    ],
)
def test_cells_of_another_kind_are_named(column: Column, cell: str, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        column.values(text(None, cell), ".", first_row=11)
    assert "\n" not in str(caught.value)


def test_kinds_meet_other_types_of_files() -> None:
    """A model fitted to a CSV file predicts a Parquet file, and the other way round."""
    assert Column("x", "boolean").values(text("0", "1"), ".").tolist() == [0.0, 1.0]
    assert Column("x", "boolean").values(pd.Series([True, None], dtype="boolean"), ".")[0] == 1.0
    assert Column("x", "boolean").values(pd.Series([0.0, 1.0]), ".").tolist() == [0.0, 1.0]
    assert Column("x", "category", ("1", "2+")).values(pd.Series([1.0, np.nan]), ".")[0] == 0.0
    assert Column("x", "number").values(pd.Series([True, False], dtype="boolean"), ".").tolist() == [1.0, 0.0]
    date = pd.Series(pd.to_datetime(["2020-01-01"], utc=True))
    with pytest.raises(ValueError, match="where a finite number is expected"):
        Column("x", "number").values(date, ".")
    with pytest.raises(ValueError, match="where a date like 2020-01-31 is expected"):
        Column("x", "date", date_format="ISO8601").values(pd.Series([1.0]), ".")
    with pytest.raises(ValueError, match="where yes or no is expected"):
        Column("x", "boolean").values(pd.Series([2.0]), ".")


@pytest.mark.parametrize("column", [
    Column("x", "number", fill=1.5),
    Column("é\n", "category", ("a", "b", "c"), fill=2.0),
    Column("d", "date", date_format="ISO8601", cycles=("year", "day")),
])  # fmt: skip
def test_a_column_survives_json(column: Column) -> None:
    assert Column.from_json(json.loads(json.dumps(column.to_json()))) == column


def test_what_fills_a_gap() -> None:
    values = np.array([1.0, 2.0, 10.0, np.nan])
    assert Column("x", "number").filled_by(values).fill == 2.0
    assert Column("x", "category", ("a", "b")).filled_by(np.array([1.0, 1.0, 0.0, np.nan])).fill == 1.0
