"""How M grows, and what the next M may cost."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

SCHEDULE = (10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000)
LARGEST_SHARE = 0.8  # of N; beyond this M, exact GP regression costs no more


def check_max_inducing(value: object) -> None:
    """A ValueError unless it is one of the numbers of inducing points that there can be."""
    whole = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    if not whole or not 1 <= value <= SCHEDULE[-1]:  # type: ignore[operator]
        raise ValueError(f"max_inducing must be a whole number from 1 to {SCHEDULE[-1]}, got {value!r}")


def inducing_schedule(n: int, max_inducing: int, *, to_all: bool = False) -> list[int]:
    """The M to go through: 10, 20, 50, … up to 0.8 N, and up to `max_inducing`, which is the last one if it is reached.

    With `to_all` the last one is N instead, where the sparse GP is the exact one. Where N is too small even for the
    first, all points are taken.
    """
    largest = int(LARGEST_SHARE * n)
    last = min(n, max_inducing)
    if largest < SCHEDULE[0]:
        return [last]
    sizes = [m for m in SCHEDULE if m <= min(largest, max_inducing)]
    return [*sizes, last] if last not in sizes and (to_all or max_inducing <= largest) else sizes


def ends_early(n: int, max_inducing: int, *, to_all: bool = False) -> bool:
    """Whether without `max_inducing` M would grow further."""
    largest = int(LARGEST_SHARE * n)
    if to_all or largest < SCHEDULE[0]:
        return max_inducing < n
    return any(max_inducing < m <= largest for m in SCHEDULE) or max_inducing == SCHEDULE[-1] < largest


def checked_schedule(sizes: Sequence[int], n: int | None = None) -> list[int]:
    """A user's own list of M, from 1 to n and each larger than the one before; ValueError if it is not that."""
    given = list(sizes) if isinstance(sizes, (Sequence, np.ndarray)) and not isinstance(sizes, str) else []
    whole = all(isinstance(m, (int, np.integer)) and not isinstance(m, bool) for m in given)
    growing = bool(given) and whole and given[0] >= 1 and all(a < b for a, b in pairwise(given))
    if not growing or (n is not None and given[-1] > n):
        last = "" if n is None else f", {n}"
        raise ValueError(f"inducing must be growing whole numbers from 1 to the number of rows{last}, got {sizes!r}")
    return [int(m) for m in given]
