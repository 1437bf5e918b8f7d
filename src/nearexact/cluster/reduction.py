"""Work for a cluster, and sums over blocks in an order that depends on the blocks alone.

One graph is sent for each sum: a task for each block, and a tree of additions that ends in one small result. Dask
computes again what is lost with a worker, wherever the blocks then are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import contextmanager
from functools import partial, reduce
from typing import Any

import dask
from dask.delayed import delayed
from distributed import Client, Future, KilledWorker
from distributed.comm import CommClosedError

GONE = (CancelledError, CommClosedError, TimeoutError, OSError)
BRANCHES = 8  # of the tree: each level takes a few milliseconds, and each branch a transfer at most
LARGE_GRAPH = "1TiB"  # matrices of size M are meant to be in the graph: only so they survive a worker


class Cluster:
    """A client, and how work is sent to it."""

    def __init__(self, client: Client) -> None:
        self.client = client

    def task(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """A call that is still to be sent. Arguments may be futures and other tasks, but no collections of them."""
        return delayed(function, pure=False, traverse=False)(*arguments)

    def constant(self, value: Any) -> Any:
        """A value that is sent once, however many tasks need it, and again where it was lost."""
        return self.task(_Constant(value))

    def keep(self, value: Any) -> Future:
        """A value that stays on the workers."""
        return self.start([self.constant(value)])[0]

    def start(self, tasks: Sequence[Any]) -> list[Future]:
        """Futures of tasks, whose results stay on the workers."""
        with self._explained(), dask.config.set({"distributed.admin.large-graph-warning-threshold": LARGE_GRAPH}):
            return list(self.client.compute(list(tasks), optimize_graph=False))

    def results(self, tasks: Sequence[Any]) -> list[Any]:
        """What tasks return."""
        return self.gather(self.start(tasks))

    def sum(self, tasks: Sequence[Any], add: Callable[[Any, Any], Any]) -> Any:
        """The sum of what tasks return."""
        return self.results([self.total(tasks, add)])[0]

    def total(self, tasks: Sequence[Any], add: Callable[[Any, Any], Any]) -> Any:
        """A task for the sum: of a few neighbours first, then of neighbouring sums, and so on."""
        parts, one_by_one = list(tasks), partial(_one_by_one, add)
        while len(parts) > 1:
            groups = [parts[first : first + BRANCHES] for first in range(0, len(parts), BRANCHES)]
            parts = [self.task(one_by_one, *group) for group in groups]
        return parts[0]

    def gather(self, futures: list[Future]) -> list[Any]:
        """The results of futures."""
        with self._explained():
            return list(self.client.gather(futures))

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """The errors of a cluster that is gone say so."""
        try:
            yield
        except KilledWorker as error:
            raise ConnectionError(
                f"the same task was lost with several workers, which may have too little memory: {error}"
            ) from error
        except GONE as error:
            raise ConnectionError(
                f"the Dask scheduler is gone, or has lost data that only its workers had: {error}"
            ) from error


def _one_by_one(add: Callable[[Any, Any], Any], *parts: Any) -> Any:
    return reduce(add, parts)


class _Constant:
    """A function of nothing that returns a value: unlike an argument, it is left alone by Dask."""

    __name__ = "constant"

    def __init__(self, value: Any) -> None:
        self.value = value

    def __call__(self) -> Any:
        return self.value
