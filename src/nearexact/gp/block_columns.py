"""Columns of blocks of a symmetric matrix, shared out among the cores.

A block is small enough to stay in the cache of one core, and what is done with it takes a tenth of a millisecond: cores
that share a block wait for each other most of the time. So each has columns of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from threading import Event
from typing import TypeVar

import torch

from nearexact.gp.budget import TimeIsUpError
from nearexact.gp.side_by_side import side_by_side

T = TypeVar("T")
FEWEST_COLUMNS = 4  # for each core: with fewer of them some would have much less to do than others
MOST_CORES = 16  # each has buffers and sums of its own

Check = Callable[[], None]


def by_columns(
    count: int,
    work: Callable[[Sequence[int], Check], T],
    check: Check,
    *,
    device: torch.device,
    at_most: int | None = None,
) -> list[T]:
    """What `work` returns for some of the columns, for each core; all of them where one core does everything.

    Column j has j + 1 blocks, up to the diagonal. `check` may be called by several threads; an exception that it raises
    ends all of them.
    """
    cores = most_cores(count)
    if at_most is not None:
        cores = min(cores, at_most)
    if cores < 2 or device.type != "cpu":
        return [work(range(count), check)]
    ended = Event()

    def check_all() -> None:
        if ended.is_set():
            raise TimeIsUpError
        check()

    return side_by_side([partial(work, own, check_all) for own in shares(count, cores)], ended.set, at_most=cores)


def most_cores(count: int) -> int:
    """That have some of so many columns at once."""
    return max(min(torch.get_num_threads(), MOST_CORES, count // FEWEST_COLUMNS), 1)


def shares(count: int, cores: int) -> list[list[int]]:
    """Columns for each core, with about as many blocks: dealt out there and back again, the longest ones first."""
    dealt = [*range(cores), *reversed(range(cores))]
    return [[j for j in range(count) if dealt[(count - 1 - j) % len(dealt)] == core] for core in range(cores)]
