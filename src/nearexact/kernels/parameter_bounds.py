"""Bounds on parameters: the values between which training keeps one, or that it is fixed at the value it has."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal

import numpy as np
import numpy.typing as npt

from nearexact.typing import FloatArray

FIXED: Literal["fixed"] = "fixed"
Bounds = Literal["fixed"] | tuple[npt.ArrayLike, npt.ArrayLike]  # as users give them
CheckedBounds = Literal["fixed"] | tuple[FloatArray, FloatArray]  # shapes [] or [D]


def checked_bounds(name: str, bounds: object, *, per_input: bool) -> CheckedBounds:
    """The same, or a ValueError that says what was expected."""
    if isinstance(bounds, str):
        if bounds == FIXED:
            return FIXED
        raise ValueError(f'bounds on {name} must be "fixed" or (low, high), got {bounds!r}')
    try:
        low, high = (np.array(end, dtype=np.float64) for end in bounds)  # type: ignore[attr-defined]
    except (TypeError, ValueError) as error:
        raise ValueError(f'bounds on {name} must be "fixed" or (low, high), got {bounds!r}') from error
    for end in (low, high):
        if end.size == 0 or end.ndim > (1 if per_input else 0):
            expected = "numbers, or one number per input" if per_input else "numbers"
            raise ValueError(f"bounds on {name} must be {expected}, got shape {end.shape}")
        end.flags.writeable = False
    if low.ndim and high.ndim and len(low) != len(high):
        raise ValueError(f"bounds on {name} must be equally many, got {len(low)} and {len(high)}")
    if not ((low >= 0.0).all() and (low <= high).all() and (high > 0.0).all() and np.isfinite(low).all()):
        raise ValueError(f"bounds on {name} must be 0 <= low <= high with high above 0, got {bounds!r}")
    return low, high


def interval(name: str, value: FloatArray, bounds: CheckedBounds | None) -> tuple[FloatArray, FloatArray]:
    """The least and the largest value of a parameter, each of the value's shape."""
    if bounds is None:
        return np.zeros_like(value), np.full_like(value, math.inf)
    if isinstance(bounds, str):
        return value, value
    try:
        return np.broadcast_to(bounds[0], value.shape), np.broadcast_to(bounds[1], value.shape)
    except ValueError as error:
        given = max(end.size for end in bounds)
        raise ValueError(f"{name} has {value.size} values, but bounds on it have {given}") from error


def same_bounds(bounds: Mapping[str, CheckedBounds], others: Mapping[str, CheckedBounds]) -> bool:
    """Whether both say the same."""
    return bounds.keys() == others.keys() and all(_same(bounds[name], others[name]) for name in bounds)


def _same(bounds: CheckedBounds, other: CheckedBounds) -> bool:
    if isinstance(bounds, str) or isinstance(other, str):
        return isinstance(bounds, str) and isinstance(other, str)
    return all(np.array_equal(end, other_end) for end, other_end in zip(bounds, other, strict=True))
