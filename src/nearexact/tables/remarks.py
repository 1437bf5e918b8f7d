"""What looks odd in a table, and a reader should know: nothing of it is an error, and any of it may be a mistake."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import pandas as pd

from nearexact.tables import cells
from nearexact.tables.columns import Column, no_number
from nearexact.tables.dialect import THOUSANDS
from nearexact.tables.reading import TableFile
from nearexact.typing import FloatArray

# Names of columns that often number the rows; "Unnamed: 0" is what pandas makes of a column without a name.
INDEX_NAMES = re.compile(
    r"unnamed: \d+|column 1|index|id|key|(row|record)[ _.-]?(id|no|number|names?)|.*[ _.-](id|key|index)", re.IGNORECASE
)
# Of the largest distance from the median that other targets have. The largest of heavy tails are further apart than
# those of a normal distribution, but hardly ever so much.
FAR = 20.0
MOST_FAR = 3  # targets: more of them are hardly slips


def number_remarks(frame: pd.DataFrame, targets: Sequence[str], file: TableFile) -> list[str]:
    """How numbers were read, where they may have been meant otherwise."""
    signs = {target: cells.sign_of(frame[target]) for target in targets}
    remarks = [f"{target!r} is predicted without its {sign}" for target, sign in signs.items() if sign]
    mark, other, marks = (",", ".", "commas") if file.decimal == "," else (".", ",", "points")
    texts = (name for name in frame.columns if cells.is_text(frame[name]))
    examples = {name: _thousands(frame[name], mark) for name in texts}
    remarks += [
        f"{marks} in {name!r}, as in {example}, are read as decimal marks; if they separate thousands, pass --decimal"
        f" {other}"
        for name, example in examples.items()
        if example is not None
    ]
    return remarks


def _thousands(series: pd.Series, mark: str) -> str | None:
    """A number whose decimal mark may separate thousands, if all those with a mark are such; None without any.

    Three digits after a point are common, so that other cells must speak for thousands: whole numbers up to 999, some
    of them of three digits.
    """
    text = cells.cleaned(series).dropna()
    has_mark = text.str.contains(mark, regex=False)
    with_mark, others = text[has_mark], text[~has_mark]
    if with_mark.empty or not with_mark.str.fullmatch(THOUSANDS.pattern).all():
        return None
    if mark == "." and not (
        others.str.fullmatch(r"[+-]?\d{1,3}").all() and others.str.fullmatch(r"[+-]?[1-9]\d\d").any()
    ):
        return None
    return str(with_mark.iloc[0])


def stray_cells(column: Column, series: pd.Series, file: TableFile) -> list[str]:
    """Whether a column is a category only because a few of its cells are no numbers."""
    if column.kind != "category" or column.name in file.categorical:
        return []
    stray = no_number(series, file.decimal)
    return [f"{column.name!r} is read as a category: {stray}; correct that cell if it should be one"] if stray else []


def far_targets(name: str, y: FloatArray) -> str | None:
    """Which targets are so far from all others that they may be mistyped, and in which rows; None without such."""
    rows = np.flatnonzero(~np.isnan(y))
    if len(rows) <= 2 * MOST_FAR:
        return None
    distances = np.abs(y[rows] - np.median(y[rows]))
    order = np.argsort(-distances, kind="stable")
    for count in range(MOST_FAR, 0, -1):
        farthest_of_others = distances[order[count]]
        if 0.0 < FAR * farthest_of_others < distances[order[count - 1]]:
            far = (f"{y[row]:.15g} in row {row + 1}" for row in sorted(rows[order[:count]]))
            return f"{name!r} has {', '.join(far)}"
    return None


def counts_rows(name: str, values: FloatArray) -> bool:
    """Whether a column does no more than number the rows, by its name and its values."""
    return bool(INDEX_NAMES.fullmatch(name) and (np.diff(values) == 1.0).all()) and values[0] in (0.0, 1.0)


def looks_like_an_index(column: Column, values: FloatArray) -> bool:
    """Whether all values are different whole numbers, in order or under a name as that of an id."""
    if column.kind != "number" or (values % 1.0 != 0.0).any():  # NaN is no whole number
        return False
    steps = np.diff(values)
    in_order = bool((steps > 0.0).all() or (steps < 0.0).all())
    return in_order or (INDEX_NAMES.fullmatch(column.name) is not None and len(np.unique(values)) == len(values))
