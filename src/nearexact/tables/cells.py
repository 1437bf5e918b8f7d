"""Cells of a column as numbers, one number per cell, according to the kind of the column.

A date is the number of days since 1970-01-01, a boolean 0 or 1, a category its position among the column's categories;
a missing cell is NaN. Next to the numbers comes a mask of the cells that are not of the kind: `columns` reports them.
"""

from __future__ import annotations

import re

import numpy as np
import pandas as pd

from nearexact.typing import FloatArray

# Text that stands for a missing cell.
MISSING = (
    "", "?", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN", "<NA>", "N/A", "NA",
    "NULL", "NaN", "None", "n/a", "nan", "null",
)  # fmt: skip
BOOLEANS = ({"false": 0.0, "true": 1.0}, {"no": 0.0, "yes": 1.0})
ISO = "ISO8601"  # 2020-01-31, 2020-01-31 12:30, 2020-01-31T12:30:00Z, …
DATES = (ISO, "%Y/%m/%d", "%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%d-%m-%Y", "%m-%d-%Y")
AMBIGUOUS = {"%d/%m/%Y": "%m/%d/%Y", "%d-%m-%Y": "%m-%d-%Y"}
TIMES = ("", " %H:%M", " %H:%M:%S")
MICROSECONDS_PER_DAY = 86_400e6
PERCENT = "%"
SIGNS = (PERCENT, "$", "€", "£", "¥")  # before or after a number, understood where a whole column has the same one
BLANKS = " \u00a0\u2009\u202f"  # and no-break and thin ones, of which groups of digits have some
GROUPED = re.compile(rf"[+-]?[1-9]\d{{0,2}}([,'’{BLANKS}])\d{{3}}(\1\d{{3}})*(\.\d*)?")  # thousands, decimal mark "."
SWAPPED = str.maketrans(",.", ".,")


def is_text(cells: pd.Series) -> bool:
    """Whether cells are text, as all those of a CSV file."""
    return bool(pd.api.types.is_string_dtype(cells.dtype))


def cleaned(cells: pd.Series) -> pd.Series:
    """Text without blanks around it, and NaN for what stands for a missing cell."""
    text = cells.str.strip()
    return text.mask(text.isin(MISSING))


def is_empty(cells: pd.Series) -> bool:
    """Whether all cells are missing."""
    given = cells.dropna()
    if not is_text(cells) or given.empty:
        return bool(given.empty)
    if given.iloc[0].strip() not in MISSING:  # as nearly always
        return False
    return bool(cleaned(given).isna().all())


def numbers(cells: pd.Series, decimal: str, sign: str = "") -> tuple[FloatArray, np.ndarray]:
    """Numbers, and which cells are neither numbers nor missing. Thousands may be separated, in groups of three digits.

    Where the column has a sign, it is left out: 5 % is 5. Only a currency sign may be missing: 5 is not 5 %.
    """
    if not is_text(cells):
        if pd.api.types.is_datetime64_any_dtype(cells.dtype) or sign == PERCENT:
            return np.full(len(cells), np.nan), cells.notna().to_numpy()
        return _floats(cells), np.zeros(len(cells), dtype=bool)
    text = unsigned(cells, sign) if sign else cells
    text = text.str.translate(SWAPPED) if decimal == "," else text
    values = _floats(pd.to_numeric(text, errors="coerce")).copy()
    wrong = np.isnan(values) & cells.notna().to_numpy()
    if wrong.any():
        values[wrong] = [_grouped(cell) for cell in text[wrong]]
        wrong &= np.isnan(values)
        wrong[wrong] = cleaned(cells[wrong]).notna().to_numpy()
    return values, wrong


def sign_of(cells: pd.Series) -> str:
    """The sign that all of these cells have, if any: of per cent, or of a currency."""
    if not is_text(cells):
        return ""
    text = cleaned(cells).dropna()
    if text.empty:
        return ""
    sign = next((sign for sign in SIGNS if sign in text.iloc[0]), "")
    return sign if sign and text.str.contains(sign, regex=False).all() else ""


def unsigned(cells: pd.Series, sign: str) -> pd.Series:
    """Text without this sign. A cell that has no percent sign where others do becomes one: it is no number."""
    sign_at_an_end = rf"^\s*([+-]?)\s*{re.escape(sign)}\s*|\s*{re.escape(sign)}\s*$"
    text = cells.str.replace(sign_at_an_end, r"\1", n=1, regex=True)
    if sign != PERCENT:
        return text
    return text.where(cells.isna() | (text != cells) | cells.str.strip().isin(MISSING), sign)


def _grouped(cell: object) -> float:
    """A number whose thousands are separated, decimal mark "."; NaN if it is none."""
    text = str(cell).strip()
    match = GROUPED.fullmatch(text)
    return float(text.replace(match[1], "")) if match else np.nan


def booleans(cells: pd.Series) -> tuple[FloatArray, np.ndarray]:
    """0 and 1 from booleans, from text such as yes and no, and from these numbers."""
    if is_text(cells):
        text = cleaned(cells).str.lower()
        by_word = {word: value for words in BOOLEANS for word, value in words.items()} | {"0": 0.0, "1": 1.0}
        values = _floats(text.map(by_word))
        return values, np.isnan(values) & text.notna().to_numpy()
    values, wrong = numbers(cells, ".")
    return values, wrong | ~np.isin(values, (0.0, 1.0)) & ~np.isnan(values)


def days(cells: pd.Series, date_format: str) -> tuple[FloatArray, np.ndarray]:
    """Days since 1970-01-01 UTC, from dates or from text in this format."""
    if pd.api.types.is_datetime64_any_dtype(cells.dtype):
        moments, given = cells, cells.notna()
    elif is_text(cells):
        text = cleaned(cells)
        moments, given = pd.to_datetime(text, format=date_format, utc=True, errors="coerce"), text.notna()
    else:
        return np.full(len(cells), np.nan), cells.notna().to_numpy()
    microseconds = pd.DatetimeIndex(moments).as_unit("us").asi8.astype(np.float64)
    missing = moments.isna().to_numpy()
    return np.where(missing, np.nan, microseconds / MICROSECONDS_PER_DAY), missing & given.to_numpy()


def codes(cells: pd.Series, categories: tuple[str, ...]) -> tuple[FloatArray, np.ndarray]:
    """Positions among the categories."""
    text = as_text(cells)
    values = pd.Index(categories, dtype="str").get_indexer(pd.Index(text)).astype(np.float64)
    unknown = values < 0
    values[unknown] = np.nan
    return values, unknown & text.notna().to_numpy()


def as_text(cells: pd.Series) -> pd.Series:
    """Cells as names of categories: clean text, and numbers without trailing digits from rounding."""
    if is_text(cells):
        return cleaned(cells)
    if pd.api.types.is_float_dtype(cells.dtype):
        return cleaned(cells.map("{:.15g}".format).astype("str"))  # NaN is one of the texts for a missing cell
    return cleaned(cells.astype("str"))


def date_format_of(text: pd.Series) -> str | tuple[str, str] | None:
    """The format in which all of this clean text is dates; two if either day or month may come first."""
    some = text.iloc[: min(len(text), 20)]
    formats = [form for form in _formats() if _all_dates(some, form) and _all_dates(text, form)]
    if not formats:
        return None
    first = formats[0]
    other = AMBIGUOUS.get(first[:8])
    return (first, other + first[8:]) if other is not None and other + first[8:] in formats else first


def _formats() -> list[str]:
    return [ISO, *(date + time for date in DATES[1:] for time in TIMES)]


def _all_dates(text: pd.Series, form: str) -> bool:
    try:
        return bool(pd.to_datetime(text, format=form, utc=True, errors="coerce").notna().all())
    except (ValueError, OverflowError):
        return False


def _floats(cells: pd.Series) -> FloatArray:
    return np.asarray(cells.to_numpy(dtype=np.float64, na_value=np.nan))
