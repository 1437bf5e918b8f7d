"""Standardisation on the training data, and back to the user's units."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from nearexact.typing import FloatArray

# A column counts as constant if its standard deviation is below this many rounding errors of its largest value.
ROUNDINGS = 8.0
CHUNK_ELEMENTS = 2**16


@dataclass(frozen=True, eq=False)
class Scaling:
    """x ↦ (x − shift)/scale, column by column."""

    shift: FloatArray
    scale: FloatArray

    @staticmethod
    def of(values: FloatArray) -> Scaling:
        """The scaling that gives each column of the values mean 0 and variance 1; a constant column becomes 0."""
        return Scaling.from_sums(
            len(values), values[0], largest(values), partial(total, values), partial(squares, values)
        )

    @staticmethod
    def from_sums(
        n: int,
        first_row: FloatArray,
        largest: FloatArray,
        total: Callable[[FloatArray], FloatArray],
        squares: Callable[[FloatArray, FloatArray], FloatArray],
    ) -> Scaling:
        """The same from what the functions below say about n rows, wherever these are."""
        number = np.finfo(np.float64)
        unit = np.where(largest >= number.tiny, largest, 1.0)  # so that squares neither overflow nor vanish
        # From differences of the values themselves: far from zero, quotients would lose the digits that differ.
        middle = total(unit) / n * unit
        deviation = np.sqrt(squares(middle, unit) / n)
        constant = deviation <= ROUNDINGS * number.eps
        vanishing = ~constant & (deviation * unit < number.tiny)  # too small to divide by: the column is left unscaled
        # The shift of a constant column is its value, since the mean may differ from that by a rounding error, and its
        # scale is its own size: it has no other.
        shift = np.where(constant | vanishing, first_row, middle)
        return Scaling(shift, np.where(constant, unit, np.where(vanishing, 1.0, deviation * unit)))

    def apply(self, values: FloatArray) -> FloatArray:
        """Standardised values."""
        with np.errstate(over="ignore"):  # an infinite distance is clipped later
            scaled = values - self.shift
            scaled /= self.scale
            return scaled

    def undo(self, values: FloatArray) -> FloatArray:
        """Values in the user's units."""
        return values * self.scale + self.shift


def largest(values: FloatArray) -> FloatArray:
    """The largest absolute value of each column."""
    found: FloatArray = np.max([np.abs(chunk).max(0) for chunk in _chunks(values)], axis=0)
    return found


def total(values: FloatArray, unit: FloatArray) -> FloatArray:
    """The sum of each column, in units."""
    found: FloatArray = np.sum([(chunk / unit).sum(0) for chunk in _chunks(values)], axis=0)
    return found


def squares(values: FloatArray, middle: FloatArray, unit: FloatArray) -> FloatArray:
    """The sum of squared distances of each column from its middle, in units."""
    found: FloatArray = np.sum([np.square((chunk - middle) / unit).sum(0) for chunk in _chunks(values)], axis=0)
    return found


def _chunks(values: FloatArray) -> list[FloatArray]:
    """Rows in pieces that are small enough to stay in the cache."""
    rows = max(CHUNK_ELEMENTS // max(values[:1].size, 1), 1)
    return [values[first : first + rows] for first in range(0, len(values), rows)]
