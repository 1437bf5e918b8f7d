"""Rows of data in chunks that fit the caches, how much memory a sweep over them takes, and how it keeps to a limit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from nearexact.kernels.base import Kernel

# A chunk [rows, M] is as small as the matrix products allow, so that the passes over it find it in the cache: 2 MB
# while M is small, then as many rows as keep the products at full speed, then as many as keep it below 16 MB.
CACHE_ELEMENTS = 2**18
ENOUGH_ROWS = 2048
MOST_ELEMENTS = 2**21
FEWEST_ROWS = 256
SQUARE_ARRAYS = 8  # [M, M] arrays that are alive at once, at most, besides the kernel's own
VECTORS = 5  # [N] arrays that are alive at once, at most


def chunk_rows(columns: int) -> int:
    """How many rows of so many columns make a chunk."""
    return max(min(max(CACHE_ELEMENTS // columns, ENOUGH_ROWS), MOST_ELEMENTS // columns), FEWEST_ROWS)


def row_chunks(n: int, rows: int) -> Iterator[slice]:
    """Slices that cover n rows in order, each of `rows` rows but the last."""
    return (slice(start, min(start + rows, n)) for start in range(0, n, rows))


@dataclass(frozen=True)
class MemoryPlan:
    """How the sweeps stay within a number of bytes: what is stored of [N, ·] arrays, and what computed again."""

    rows: int  # of a chunk
    keeps_v: bool
    keeps_features: bool
    memory: int  # bytes that it takes in all

    @staticmethod
    def within(budget: int, kernel: Kernel, n: int, m: int, n_features: int) -> MemoryPlan:
        rows = min(n, chunk_rows(m))

        def needed(rows: int) -> int:
            return sweep_memory(kernel, n, m, n_features, rows)

        while needed(rows) > budget and rows > FEWEST_ROWS:
            rows = max(rows // 2, FEWEST_ROWS)
        if needed(rows) > budget:
            raise ValueError(
                f"{m} inducing points need at least {needed(rows) / 1e6:.3g} MB,"
                f" but the memory limit is {budget / 1e6:.3g} MB: take fewer points or allow more memory"
            )
        keeps_v = needed(rows) + 8 * n * m <= budget  # first: it saves more
        used = needed(rows) + (8 * n * m if keeps_v else 0)
        features = 2 * 8 * n * n_features
        keeps_features = used + features <= budget
        return MemoryPlan(rows, keeps_v, keeps_features, used + (features if keeps_features else 0))


def sweep_memory(kernel: Kernel, n: int, m: int, n_features: int, rows: int = FEWEST_ROWS) -> int:
    """Bytes that an evaluation allocates besides the data, with chunks of so many rows and nothing kept."""
    squares = (SQUARE_ARRAYS + kernel.temporaries) * m * m
    chunks = min(n, rows) * ((2 + kernel.temporaries) * m + 8 * n_features)
    return 8 * (squares + chunks + VECTORS * n + 4 * m * n_features)
