"""Numbers as readers see them, in one style on the terminal and on the page: 12,345 and 0.01235, never 1.235e+04."""

from __future__ import annotations

import math

DIGITS = 4  # significant ones
LARGEST, SMALLEST = 1e9, 1e-4  # in size, without an exponent


def number(value: float | None, digits: int = DIGITS) -> str:
    """A number with so many significant digits; whole digits are never rounded away, nor is anything of a count."""
    if value is None or math.isnan(value):
        return "none"
    if isinstance(value, int):
        return f"{value:,}"
    if value == 0.0 or math.isinf(value):
        return f"{value:g}"
    if not SMALLEST <= abs(value) < LARGEST:
        return f"{value:.{digits - 1}e}".replace("e+0", "e").replace("e-0", "e-").replace("e+", "e")
    decimals = max(digits - 1 - math.floor(math.log10(abs(value))), 0)
    return f"{value:,.{decimals}f}"


def percent(share: float) -> str:
    """A share of 1 in per cent: whole ones, but never 0 or 100 for what is neither."""
    value = 100.0 * share
    if 0.0 < abs(value) < 1.0 or 99.0 < abs(value) < 100.0:
        return f"{math.copysign(max(math.floor(10.0 * abs(value)) / 10.0, 0.1), value):.1f} %"
    return f"{value:.0f} %"


def seconds(value: float) -> str:
    """A time of training."""
    return f"{value:.1f} s" if value < 100.0 else f"{value:,.0f} s"
