"""Tables as files: nothing that a name contains can break them, and numbers read as they should."""

from __future__ import annotations

import io
import math

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nearexact.bench.report import table_format
from nearexact.bench.report.table_format import ReportTable

HOSTILE = ["a|b", "50 % & more", "x_y", "<b>", "back\\slash", "{brace}", "$5", "two\nlines", "#1", "~^"]


def table() -> ReportTable:
    frame = pd.DataFrame({"dataset": HOSTILE, "value": [float(k) for k in range(len(HOSTILE))]})
    return ReportTable("t", "title", frame, {"value": "a value"}, {"value": table_format.number(1, 1e4)})


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (-47946.4, "-47946"),
        (0.4, "0"),
        (-0.4, "0"),
        (3.1e9, "3.1e9"),
        (-6.2e13, "-6.2e13"),
        (math.nan, "n/a"),
        (math.inf, "inf"),
        (-math.inf, "-inf"),
        (None, "n/a"),
    ],
)
def test_numbers_have_an_exponent_where_they_explode(value: float, text: str) -> None:
    assert table_format.number(0, 1e7)(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0012345, "0.00123"), (12.345, "12.3"), (98765.0, "98765"), (3.4e12, "3.4e12"), (0.0, "0"), ("a", "a")],
)
def test_costs_have_three_digits(value: object, text: str) -> None:
    assert table_format.significant(value) == text


@given(st.floats(1e-4, 99999.0))
def test_three_digits_are_within_half_a_per_cent(value: float) -> None:
    assert float(table_format.significant(value)) == pytest.approx(value, rel=5.1e-3)


def test_what_was_never_reached_says_so() -> None:
    assert table_format.cost(math.inf) == "never"
    assert table_format.cost(math.nan) == "n/a"


def test_csv_comes_back_with_all_digits() -> None:
    frame = pd.DataFrame({"dataset": HOSTILE, "value": [1.0 / 3.0] * len(HOSTILE)})
    back = pd.read_csv(io.StringIO(ReportTable("t", "", frame).to_csv()))
    pd.testing.assert_frame_equal(back, frame, check_exact=True)


def test_markdown_has_one_line_for_each_row_and_the_same_number_of_cells() -> None:
    lines = table().to_markdown().strip().split("\n")
    assert len(lines) == len(HOSTILE) + 2
    assert {line.replace("\\|", "").count("|") for line in lines} == {3}
    assert "<b>" not in table().to_markdown()
    assert lines[0] == "| dataset | a value |"
    assert lines[1] == "| --- | ---: |"


def test_latex_is_a_booktabs_tabular_with_everything_escaped() -> None:
    text = table().to_latex()
    assert text.startswith("\\begin{tabular}{lr}\n\\toprule\ndataset & a value \\\\\n\\midrule\n")
    assert text.endswith("\\bottomrule\n\\end{tabular}\n")
    body = [line for line in text.split("\n") if line.endswith(r"\\")]
    assert len(body) == len(HOSTILE) + 1
    assert r"50 \% \& more & $1.0$ \\" in body
    assert r"x\_y & $2.0$ \\" in body
    assert r"\$5 & $6.0$ \\" in body
    assert r"two lines & $7.0$ \\" in body


def test_the_best_are_bold_and_details_are_in_the_csv_only() -> None:
    frame = pd.DataFrame({"dataset": ["a", "a"], "rmse": [0.5, 0.25]})
    bold, errors = pd.DataFrame({"rmse": [False, True]}), pd.DataFrame({"rmse_standard_error": [0.1, 0.2]})
    table = ReportTable("t", "", frame, formats={"rmse": table_format.number(2, 1e4)}, details=errors, bold=bold)
    assert "| a | **0.25** |" in table.to_markdown()
    assert r"a & $0.50$ \\" in table.to_latex()
    assert r"a & \textbf{\boldmath $0.25$} \\" in table.to_latex()
    assert table.to_csv().splitlines()[0] == "dataset,rmse,rmse_standard_error"
    assert "standard" not in table.to_markdown() + table.to_latex()


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0123, "0.012"), (1.26, "1.3"), (12.6, "13"), (1260.0, "1260"), (0.0, "0"), (1.2e-7, "1.2e-7")],
)
def test_standard_errors_have_two_digits(value: float, text: str) -> None:
    assert table_format.uncertainty(value) == text


@pytest.mark.parametrize(
    ("text", "latex"),
    [
        ("-2797", "$-2797$"),
        ("3.1e9", r"$3.1\times 10^{9}$"),
        ("0.65 (1 of 3)", "$0.65$ (1 of 3)"),
        ("0.65 ± 0.012 (1 of 3)", r"$0.65$ $\pm$ 0.012 (1 of 3)"),
        ("0.65 [0.5, 0.7]", "$0.65$ [0.5, 0.7]"),
        ("0.65 †", r"$0.65$ $^\dagger$"),
        ("3 budget", "3 budget"),
        ("n/a", "n/a"),
        ("−LML", "$-$LML"),
    ],
)
def test_numbers_in_latex_are_mathematics(text: str, latex: str) -> None:
    assert table_format.latex(text) == latex
