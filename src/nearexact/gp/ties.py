"""Which of several rows of equal residual variance is taken first: a random order of all rows, drawn from a seed.

Up to `PERMUTED_ROWS` rows it is NumPy's random permutation. That takes 16 bytes for each row in one place. So with more
rows the order is that of a hash of the row's number, which every machine computes for the rows that it holds.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from nearexact.typing import IndexArray

Positions = npt.NDArray[np.integer[Any]]  # not negative; np.uint64 where they are hashed
PERMUTED_ROWS = 2**24  # 268 MB


def random_rows(random: np.random.Generator, n: int, most: int) -> IndexArray:
    """The numbers of at most so many of n rows, in a random order; with many rows the others take no memory."""
    if n <= PERMUTED_ROWS or most >= n:
        return random.permutation(n)[:most].copy()
    return random.choice(n, most, replace=False)


def tie_order(seed: int | None, n: int) -> IndexArray:
    """The numbers of n rows in the order in which equal ones are taken."""
    random = np.random.default_rng(seed)
    return random.permutation(n) if n <= PERMUTED_ROWS else hashed(drawn_key(random), np.arange(n)).argsort()


@dataclass(frozen=True, eq=False)
class Ties:
    """Positions in that order, of rows that lie beside each other. Only their order means anything."""

    first: int = 0  # number of the first of these rows
    permuted: IndexArray | None = None  # their positions, or
    key: int = 0  # what they are hashed with

    @classmethod
    def drawn(cls, seed: int | None, n: int) -> Ties:
        """Those of all rows."""
        if n > PERMUTED_ROWS:
            return cls(key=drawn_key(np.random.default_rng(seed)))
        positions = np.empty(n, dtype=np.int64)
        positions[tie_order(seed, n)] = np.arange(n)
        return cls(permuted=positions)

    def split(self, ends: list[int]) -> list[Ties]:
        """Those of blocks of rows: from each end to the next."""
        return [
            Ties(first, None if self.permuted is None else self.permuted[first:last], self.key)
            for first, last in pairwise(ends)
        ]

    def positions(self, rows: IndexArray) -> Positions:
        """Those of some of these rows, counted from the first; different rows have different ones."""
        return hashed(self.key, rows + self.first) if self.permuted is None else self.permuted[rows]


def drawn_key(random: np.random.Generator) -> int:
    return int(random.integers(2**64, dtype=np.uint64))


def hashed(key: int, rows: IndexArray) -> Positions:
    """A random number for each row: SplitMix64 (Steele, Lea and Flood 2014), begun at a key.

    Every step can be undone, so different rows have different numbers.
    """
    z = rows.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(key)  # modulo 2⁶⁴
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        z = (z ^ (z >> np.uint64(shift))) * np.uint64(factor)
    mixed: Positions = z ^ (z >> np.uint64(31))
    return mixed
