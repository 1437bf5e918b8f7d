"""Random subsets of the rows, each the beginning of the next, on which exact likelihoods cost little."""

from __future__ import annotations

import numpy as np

from nearexact.gp.rows import Rows
from nearexact.gp.ties import random_rows
from nearexact.typing import IndexArray

GROWTH = 2  # from one subset to the next
NEIGHBOURS = 3  # one row in so many is the nearest neighbour of another one in the subset
NEIGHBOUR_WORK = 10**10  # multiplications that may be spent on finding neighbours: about a second


def subset_sizes(n: int, most_rows: int, first_rows: int) -> list[int]:
    """How many rows the subsets have: each has half of the next, the first one has no more than `first_rows`.

    The last one is all rows, or `most_rows` of them.
    """
    sizes = [min(n, most_rows)]
    while sizes[0] > first_rows:
        sizes.insert(0, -(-sizes[0] // GROWTH))
    return sizes


def subset_order(data: Rows, most: int, random: np.random.Generator) -> IndexArray:
    """An order of at most so many rows, of which each beginning is a subset: random, but every third row is the nearest
    neighbour of an earlier one.

    Which rows a likelihood is of may depend on their inputs in any way. Neighbours show noise and fine details, which a
    small random subset of many rows would not.
    """
    if most >= data.n:
        return random.permutation(data.n)
    order = random_rows(random, data.n, 2 * most)  # more than are taken: some come again as neighbours
    pairs = min(most // NEIGHBOURS, NEIGHBOUR_WORK // (data.n * data.inputs))
    neighbours = data.nearest(order[:pairs]) if pairs else order[:0]
    mixed: list[int] = []
    rest = iter(order)
    taken: set[int] = set()
    for position in range(len(order)):
        row = int(next(rest))
        if row not in taken:
            taken.add(row)
            mixed.append(row)
        if position % (NEIGHBOURS - 1) == 0 and position // (NEIGHBOURS - 1) < pairs:
            neighbour = int(neighbours[position // (NEIGHBOURS - 1)])
            if neighbour not in taken:
                taken.add(neighbour)
                mixed.append(neighbour)
        if len(mixed) >= most:
            break
    return np.array(mixed[:most], dtype=np.int64)
