"""Cells that say how sure they are: means with standard errors, counts of seeds, intervals, and marks."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from nearexact.bench.analysis.statistics import standard_error
from nearexact.bench.report.table_format import Format, uncertainty
from nearexact.typing import FloatArray

LATE = "†"  # behind values beyond the budget
LATE_NOTE = f"{LATE} beyond the budget"
ROUNDING = 1e-6  # of a mean: a smaller standard error is shown as 0
OVER_BUDGET = "over budget"  # in place of a value, where the only ones came after the budget


@dataclass(frozen=True)
class Cell:
    """A mean over seeds: the number, what readers see, its standard error, and how many runs it is of."""

    value: float
    text: str
    error: float = math.nan
    runs: int = 0


def mean_cell(values: FloatArray, runs: int, show: Format, missing: str, *, is_late: bool = False) -> Cell:
    """The mean of recorded values over seeds, of which there are `runs`; a nan among them shows.

    Without values it says what is missing.
    """
    if not len(values):
        return Cell(math.nan, missing)
    with np.errstate(invalid="ignore"):  # infinities of both signs
        value = float(values.mean())
    error = standard_error(values)
    text = "nan" if math.isnan(value) else show(value)
    if math.isfinite(error):
        text += f" ± {uncertainty(error if error > ROUNDING * abs(value) else 0.0)}"
    if len(values) < runs:
        text += f" ({len(values)} of {runs})"
    return Cell(value, f"{text} {LATE}" if is_late else text, error, len(values))


def with_interval(text: str, low: float, high: float, show: Format) -> str:
    """A number with its interval, where there is one."""
    return text if math.isnan(low) or math.isnan(high) else f"{text} [{show(low)}, {show(high)}]"
