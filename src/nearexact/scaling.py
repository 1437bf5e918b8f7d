"""Standardisation on the training data, and back to the user's units."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nearexact.typing import FloatArray

# A column counts as constant if its standard deviation is below this many rounding errors of its largest value.
ROUNDINGS = 8.0


@dataclass(frozen=True, eq=False)
class Scaling:
    """x ↦ (x − shift)/scale, column by column."""

    shift: FloatArray
    scale: FloatArray

    @staticmethod
    def of(values: FloatArray) -> Scaling:
        """The scaling that gives each column mean 0 and variance 1; a constant column becomes 0."""
        number, largest = np.finfo(np.float64), np.abs(values).max(0)
        unit = np.where(largest >= number.tiny, largest, 1.0)  # so that squares neither overflow nor vanish
        shrunk = values / unit
        mean = shrunk.mean(0)
        deviation = np.sqrt(np.square(shrunk - mean).mean(0))
        constant = deviation <= ROUNDINGS * number.eps
        vanishing = ~constant & (deviation * unit < number.tiny)  # too small to divide by: the column is left unscaled
        # The shift of a constant column is its value, since the mean may differ from that by a rounding error, and its
        # scale is its own size: it has no other.
        shift = np.where(constant | vanishing, values[0], mean * unit)
        return Scaling(shift, np.where(constant, unit, np.where(vanishing, 1.0, deviation * unit)))

    def apply(self, values: FloatArray) -> FloatArray:
        """Standardised values."""
        with np.errstate(over="ignore"):  # an overflow is infinity, which callers clip
            return (values - self.shift) / self.scale

    def undo(self, values: FloatArray) -> FloatArray:
        """Values in the user's units."""
        return values * self.scale + self.shift
