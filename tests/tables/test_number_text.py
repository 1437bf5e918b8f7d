"""Numbers as readers see them say what the numbers are."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nearexact.tables.number_text import number, percent, seconds


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (12345.678, "12,346"), (0.0123456, "0.01235"), (-7.0, "-7.000"), (0.0, "0"), (1.5e-7, "1.500e-7"),
        (2.5e12, "2.500e12"), (None, "none"), (math.nan, "none"), (math.inf, "inf"), (400, "400"),
        (1234567, "1,234,567"),
    ],
)  # fmt: skip
def test_one_style(value: float | None, text: str) -> None:
    assert number(value) == text


@given(st.floats(allow_nan=False, allow_infinity=False, min_value=-1e200, max_value=1e200))
def test_four_digits_are_right(value: float) -> None:
    read = float(number(value).replace(",", ""))
    assert read == pytest.approx(value, rel=5.1e-4, abs=0.0)


def test_shares_and_times() -> None:
    texts = {0.27: "27 %", 1.0: "100 %", 0.0: "0 %", 0.9996: "99.9 %", 0.0004: "0.1 %", 0.0061: "0.6 %", 2.5: "250 %"}
    assert {share: percent(share) for share in texts} == texts
    assert (seconds(3.14), seconds(1234.5)) == ("3.1 s", "1,234 s")
