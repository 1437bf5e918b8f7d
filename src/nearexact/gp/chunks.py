"""Rows of data in pieces that fit the caches, and the small operations that the sweeps over them share."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

# A chunk [rows, M] is as small as the matrix products allow, so that the passes over it find it in the cache: 2 MB
# while M is small, then as many rows as keep the products at full speed, then as many as keep it below 16 MB.
CACHE_ELEMENTS = 2**18
ENOUGH_ROWS = 2048
MOST_ELEMENTS = 2**21
FEWEST_ROWS = 256


def chunk_rows(columns: int) -> int:
    """How many rows of so many columns make a chunk."""
    return max(min(max(CACHE_ELEMENTS // columns, ENOUGH_ROWS), MOST_ELEMENTS // columns), FEWEST_ROWS)


def row_chunks(n: int, rows: int) -> Iterator[slice]:
    """Slices that cover n rows in order, each of `rows` rows but the last."""
    return (slice(start, min(start + rows, n)) for start in range(0, n, rows))


def solve_rows(L: Tensor, A: Tensor, *, transposed: bool = False) -> Tensor:
    """Each row a of A replaced by L⁻¹a, or by L⁻ᵀa if transposed, in place; L is lower triangular."""
    factor = L if transposed else L.T
    torch.linalg.solve_triangular(factor, A, upper=not transposed, left=False, out=A)
    return A
