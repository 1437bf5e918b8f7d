"""Standardisation on the training data, and back to the user's units."""

from __future__ import annotations

from dataclasses import dataclass

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
        number, n = np.finfo(np.float64), len(values)
        rows = max(CHUNK_ELEMENTS // max(values[:1].size, 1), 1)
        chunks = [values[first : first + rows] for first in range(0, n, rows)]  # small enough to stay in the cache
        largest = np.max([np.abs(chunk).max(0) for chunk in chunks], axis=0)
        unit = np.where(largest >= number.tiny, largest, 1.0)  # so that squares neither overflow nor vanish
        mean = np.sum([(chunk / unit).sum(0) for chunk in chunks], axis=0) / n
        # From differences of the values themselves: far from zero, quotients would lose the digits that differ.
        middle = mean * unit
        deviation = np.sqrt(np.sum([np.square((chunk - middle) / unit).sum(0) for chunk in chunks], axis=0) / n)
        constant = deviation <= ROUNDINGS * number.eps
        vanishing = ~constant & (deviation * unit < number.tiny)  # too small to divide by: the column is left unscaled
        # The shift of a constant column is its value, since the mean may differ from that by a rounding error, and its
        # scale is its own size: it has no other.
        shift = np.where(constant | vanishing, values[0], middle)
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
