"""Columns of a table as inputs of a model: the kind of a column, and the numbers that it becomes.

A number stays as it is, without its sign of per cent or of a currency. A boolean is 0 or 1. A category becomes one 0/1
input for each of its values (a single one where there are two). A date becomes days since 1970-01-01; if the dates span
two years also the sine and cosine of the time of year, and if they have times of day also those of the time of day.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np
import pandas as pd

from nearexact.tables import cells
from nearexact.typing import FloatArray

Kind = Literal["number", "boolean", "date", "category"]
KINDS = ("number", "boolean", "date", "category")
MAX_CATEGORIES = 20
SAID_AT_MOST = 5  # of several problems in one message
LARGEST_NUMBER = 1e150  # its square is still finite; a larger one is a mistake that would make all others alike
# Of ten cells or more: where so many are numbers, the others are rather mistakes than names of categories.
MOSTLY, FEWEST_CELLS = 0.8, 10
CYCLES = {"year": 365.2425, "day": 1.0}  # days
TWO_YEARS = 2 * 365.0  # days; in less, the time of year and the trend look alike


@dataclass(frozen=True)
class Column:
    """How a column becomes inputs. `fill` is the value of a missing cell, where cells may be missing."""

    name: str
    kind: Kind
    categories: tuple[str, ...] = ()
    date_format: str = ""
    cycles: tuple[str, ...] = ()
    fill: float = 0.0
    sign: str = ""  # of per cent or of a currency, at all numbers

    def values(self, series: pd.Series, decimal: str, first_row: int = 1) -> FloatArray:
        """One number per cell, NaN where it is missing: [n]."""
        if self.kind == "number":
            values, wrong = cells.numbers(series, decimal, self.sign)
            wrong = wrong | (np.abs(values) >= LARGEST_NUMBER)
        elif self.kind == "boolean":
            values, wrong = cells.booleans(series)
        elif self.kind == "date":
            values, wrong = cells.days(series, self.date_format)
        else:
            values, wrong = cells.codes(series, self.categories)
        if wrong.any():
            at = int(np.flatnonzero(wrong)[0])
            huge = self.kind == "number" and np.isfinite(values[at])
            expected = f"numbers must be below {LARGEST_NUMBER:g} in size" if huge else self._expected(series.iloc[at])
            raise ValueError(
                f"column {self.name!r} has {_shown(series.iloc[at])} in row {at + first_row}, where {expected}"
            )
        return values

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names of the inputs that it becomes."""
        if self.kind == "category":
            named = self.categories[1:] if len(self.categories) == 2 else self.categories
            return tuple(f"{self.name}={category}" for category in named)
        if self.kind == "date":
            waves = (f"{self.name} ({cycle}, {wave})" for cycle in self.cycles for wave in ("sin", "cos"))
            return (f"{self.name} (days)", *waves)
        return (self.name,)

    def expand(self, values: FloatArray) -> FloatArray:
        """The inputs that these values become: [n, len(inputs)]."""
        if self.kind == "category":
            hot = values[:, None] == np.arange(len(self.categories))
            return np.asarray(hot[:, 1:] if len(self.categories) == 2 else hot, dtype=np.float64)
        if self.kind == "date":
            angles = [2.0 * np.pi * values / CYCLES[cycle] for cycle in self.cycles]
            return np.column_stack([values, *(wave(angle) for angle in angles for wave in (np.sin, np.cos))])
        return values[:, None]

    def labels(self, values: FloatArray) -> list[Any]:
        """Values as people write them."""
        if self.kind == "category":
            return [self.categories[int(value)] for value in values]
        if self.kind == "boolean":
            return ["yes" if value else "no" for value in values]
        if self.kind == "date":
            moments = pd.to_datetime(pd.Series(values), unit="D")
            return [
                str(label) for label in moments.dt.strftime("%Y-%m-%d %H:%M" if "day" in self.cycles else "%Y-%m-%d")
            ]
        return [float(value) for value in values]

    def filled_by(self, values: FloatArray) -> Column:
        """The same column; its `fill` is the median of these values, or the most frequent one."""
        present = values[~np.isnan(values)]
        if self.kind in ("number", "date"):
            return replace(self, fill=float(np.median(present)))
        kinds, counts = np.unique(present, return_counts=True)
        return replace(self, fill=float(kinds[counts.argmax()]))

    def description(self) -> str:
        """In a few words."""
        if self.kind == "category":
            return f"category: {', '.join(self.categories)}"
        if self.kind == "date":
            return " and ".join(["date: days since 1970-01-01", *(f"time of {cycle}" for cycle in self.cycles)])
        return f"{self.kind}, {self.sign} left out" if self.sign else self.kind

    def to_json(self) -> dict[str, Any]:
        """As JSON-serialisable values."""
        return {**asdict(self), "categories": list(self.categories), "cycles": list(self.cycles)}

    @staticmethod
    def from_json(description: dict[str, Any]) -> Column:
        """The column that `to_json` described."""
        column = Column(
            **{**description, "categories": tuple(description["categories"]), "cycles": tuple(description["cycles"])}
        )
        texts = (column.name, column.date_format, column.sign, *column.categories)
        if (
            column.kind not in KINDS
            or not set(column.cycles) <= set(CYCLES)
            or not all(isinstance(t, str) for t in texts)
        ):
            raise ValueError(f"there is no such column: {description!r}")
        return replace(column, fill=float(column.fill))

    def _expected(self, cell: object) -> str:
        if self.kind == "category":
            return f"the model knows {', '.join(map(_shown, self.categories))}"
        if self.kind == "date":
            like = self.date_format if self.date_format not in ("", cells.ISO) else "2020-01-31"
            return f"a date like {like} is expected"
        if self.kind == "boolean":
            return "yes or no is expected"
        signs = [sign for sign in cells.SIGNS if sign in str(cell)]
        if signs and signs != [self.sign]:
            where = "all cells of the column have it, also those of the fit"
            return f"a finite number is expected: {signs[0]} is understood only where {where}"
        return f"a finite number with {self.sign} is expected" if self.sign else "a finite number is expected"


def problem(fact: str, advice: str) -> ValueError:
    """An error with a note on what the command `nearexact fit` can do about it, which other callers may not have."""
    error = ValueError(fact)
    error.add_note(advice)
    return error


def together(errors: Sequence[ValueError]) -> ValueError:
    """One error that says what all of these do, each piece of advice once: nobody wants to meet them one by one."""
    if len(errors) == 1:
        return errors[0]
    more = f"; and {len(errors) - SAID_AT_MOST} more" if len(errors) > SAID_AT_MOST else ""
    advice = dict.fromkeys(note for error in errors for note in getattr(error, "__notes__", []))
    facts = "; and ".join(str(error) for error in errors[:SAID_AT_MOST])
    return problem(facts + more, f"for each: {'; '.join(advice)}") if advice else ValueError(facts + more)


def recognise(
    name: str,
    series: pd.Series,
    decimal: str,
    *,
    max_categories: int = MAX_CATEGORIES,
    day_first: bool | None = None,
    categorical: bool = False,
) -> Column:
    """The kind of a column that is not empty, from all of its cells; numbers in a categorical one are names."""
    if pd.api.types.is_bool_dtype(series.dtype):
        return Column(name, "boolean")
    if pd.api.types.is_datetime64_any_dtype(series.dtype):
        return _date(Column(name, "date", date_format=cells.ISO), series)
    if categorical:
        series = cells.as_text(series)
    sign = cells.sign_of(series)
    _, wrong = cells.numbers(series, decimal, sign)
    if not wrong.any() and not categorical:
        return Column(name, "number", sign=sign)
    text = pd.Series(cells.cleaned(series).dropna().unique(), dtype="str")
    if any(set(text.str.lower()) <= words.keys() for words in cells.BOOLEANS):
        return Column(name, "boolean")
    date_format = cells.date_format_of(text)
    if isinstance(date_format, tuple):
        if day_first is None:
            raise problem(
                f"the dates in column {name!r}, such as {_shown(text[0])}, may have the day or the month first",
                "say which with --dates day-first or --dates month-first",
            )
        date_format = date_format[0 if day_first else 1]
    if date_format is not None:
        return _date(Column(name, "date", date_format=date_format), series)
    return _category(name, series, decimal, max_categories, categorical)


def _category(name: str, series: pd.Series, decimal: str, most: int, categorical: bool) -> Column:
    text = cells.as_text(series)
    categories = sorted(text.dropna().unique())
    too_many = len(categories) > most
    stray = "" if categorical else no_number(series, decimal, share=0.5 if too_many else MOSTLY)
    if too_many or (stray and len(categories) >= MOSTLY * text.notna().sum()):
        but = ""
        if stray:
            but = f"; {stray}"
        elif (example := _with_a_unit(text)) is not None:
            but = f"; most are numbers with a unit, such as {_shown(example)}"
        elif len(categories) == len(text.dropna()):
            but = "; all are different, as those of an id"
        more = f", more than {most}" if too_many else ""
        raise problem(
            f"column {name!r} is text with {len(categories)} different values{more}{but}",
            f"correct it, leave it out with --ignore{', or raise --max-categories' if too_many else ''}",
        )
    return Column(name, "category", categories=tuple(categories))


def no_number(series: pd.Series, decimal: str, share: float = MOSTLY) -> str:
    """Which cell is the first that is no number, in words, where more than this share are; empty elsewhere."""
    sign = _most_frequent_sign(cells.as_text(series))
    values, wrong = cells.numbers(series, decimal, sign)
    count = int(np.isfinite(values).sum() + wrong.sum())
    if not wrong.any() or count < FEWEST_CELLS or wrong.sum() >= (1.0 - share) * count:
        return ""
    at = int(np.flatnonzero(wrong)[0])
    return f"most are numbers{f' with {sign}' if sign else ''}, but not {_shown(series.iloc[at])} in row {at + 1}"


def _with_a_unit(text: pd.Series) -> str | None:
    """The first cell that is a number with the same letters after it as in most other cells; None without such."""
    units = text.str.extract(r"^[-+\d.,' ]*\d\s*([^\W\d_]+)$")[0]
    if units.isna().all():
        return None
    alike = units == units.mode()[0]
    return str(text[alike].iloc[0]) if 2 * alike.sum() > len(text) else None


def _most_frequent_sign(text: pd.Series) -> str:
    counts = {sign: int(text.str.contains(sign, regex=False).sum()) for sign in cells.SIGNS}
    sign = max(counts, key=lambda sign: counts[sign])
    return sign if 2 * counts[sign] > len(text) else ""


def _date(column: Column, series: pd.Series) -> Column:
    days = column.values(series, ".")
    days = days[~np.isnan(days)]
    cycles = ["year"] if np.ptp(days) >= TWO_YEARS else []
    if (days % 1.0 != 0.0).any():
        cycles.append("day")
    return replace(column, cycles=tuple(cycles))


def _shown(cell: object) -> str:
    """A cell in a message: short, and on one line."""
    text = str(cell)
    return repr(text if len(text) <= 40 else text[:37] + "…")
