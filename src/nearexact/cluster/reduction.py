"""Work for a cluster, and sums over blocks in an order that depends on the blocks alone.

A sum has the shape of a binary tree over the numbers of blocks: 0 + 1, 2 + 3, then (0 + 1) + (2 + 3), and so on. Each
worker adds up the nodes of that tree whose blocks it holds, and only these few travel. So the digits do not depend on
where blocks are, and Dask computes again what is lost with a worker, wherever the blocks then are.

A worker has one block to work on at a time for each of its threads, and the next only after it: what is waiting for a
worker is what Dask would give to an idle one, and a whole block would move with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import contextmanager, nullcontext
from functools import partial, reduce
from typing import Any, NamedTuple

import dask
import numpy as np
from dask.delayed import delayed
from distributed import Client, Future, KilledWorker
from distributed.comm import CommClosedError

GONE = (CancelledError, CommClosedError, TimeoutError, OSError)
BRANCHES = 8  # nodes from so many workers are brought to one of them at a time
LARGE_GRAPH = "1TiB"  # matrices of size M are meant to be in the graph: only so they survive a worker

Add = Callable[[Any, Any], Any]
Nodes = dict[tuple[int, int], Any]  # sums by level and position in the tree; blocks are at level 0


class Call(NamedTuple):
    """A function of one block and of what else it needs."""

    function: Callable[..., Any]
    block: Future
    arguments: tuple[Any, ...]


class Cluster:
    """A client, and how work is sent to it."""

    def __init__(self, client: Client) -> None:
        self.client = client

    def task(self, function: Callable[..., Any], *arguments: Any, worker: str | None = None) -> Any:
        """A call that is still to be sent. Arguments may be futures and other tasks, but no collections of them.

        With a worker it goes there, or elsewhere if that is gone.
        """
        place = nullcontext() if worker is None else dask.annotate(workers=[worker], allow_other_workers=True)
        with place:
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

    def gather(self, futures: list[Future]) -> list[Any]:
        """The results of futures."""
        with self._explained():
            return list(self.client.gather(futures))

    def spread(self, count: int) -> list[str | None]:
        """A worker for each of so many blocks: neighbours beside each other, since their sums are added first."""
        slots = [worker for worker, threads in sorted(self._threads().items()) for _ in range(threads)]
        return [slots[number * len(slots) // count] if slots else None for number in range(count)]

    def sum(self, calls: Sequence[Call], add: Add) -> Any:
        """The sum of what calls return, one for each block."""
        return self.results([self.total(calls, add)])[0]

    def total(self, calls: Sequence[Call], add: Add) -> Any:
        """A task for the sum."""
        parts = [self._nodes_of(run, worker, calls, add) for run, worker in self._runs(calls)]
        join = partial(_joined, add)
        while len(parts) > 1:
            parts = [self.task(join, *parts[first : first + BRANCHES]) for first in range(0, len(parts), BRANCHES)]
        return self.task(_whole, parts[0], add)

    def _nodes_of(self, run: list[int], worker: str | None, calls: Sequence[Call], add: Add) -> Any:
        """A task for the nodes that some blocks of one worker make up: one block after the other."""
        nodes: Any = {}
        for number in run:
            function, block, arguments = calls[number]
            nodes = self.task(_with_block, nodes, number, add, function, block, *arguments, worker=worker)
        return nodes

    def _runs(self, calls: Sequence[Call]) -> list[tuple[list[int], str | None]]:
        """Numbers of blocks that a thread of a worker takes one after the other, and that worker."""
        with self._explained():
            holders = self.client.who_has([call.block for call in calls])
        threads = self._threads()
        runs: list[tuple[list[int], str | None]] = []
        held: dict[str, list[int]] = {worker: [] for worker in threads}
        for number, call in enumerate(calls):
            here = [worker for worker in holders.get(call.block.key, ()) if worker in held]
            if here:
                held[min(here, key=lambda worker: (len(held[worker]), worker))].append(number)
            else:
                runs.append(([number], None))  # it is still made, or made again
        for worker, numbers in held.items():
            parts = np.array_split(numbers, min(threads[worker], max(len(numbers), 1)))
            runs += [(part.tolist(), worker) for part in parts if len(part)]
        return sorted(runs, key=lambda run: run[0][0])

    def _threads(self) -> dict[str, int]:
        """How many threads each worker has."""
        with self._explained():
            return dict(self.client.nthreads())

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


# ---- on the workers --------------------------------------------------------------------------------------------------


def _with_block(
    nodes: Nodes, number: int, add: Add, function: Callable[..., Any], block: Any, *arguments: Any
) -> Nodes:
    """Nodes of some blocks and of one more."""
    return _joined(add, nodes, {(0, number): function(block, *arguments)})


def _joined(add: Add, *parts: Nodes) -> Nodes:
    """Nodes of all parts; two that are halves of a larger one become that."""
    found: Nodes = {}
    for part in parts:
        for (level, position), value in part.items():
            while (twin := (level, position ^ 1)) in found:
                other = found.pop(twin)
                value = add(other, value) if position % 2 else add(value, other)
                level, position = level + 1, position // 2
            found[level, position] = value
    return found


def _whole(nodes: Nodes, add: Add) -> Any:
    """The sum of the nodes that are left, from the first block to the last: one, if there are 2, 4, 8, … blocks."""
    return reduce(add, (nodes[node] for node in sorted(nodes, key=lambda node: node[1] << node[0])))


class _Constant:
    """A function of nothing that returns a value: unlike an argument, it is left alone by Dask."""

    __name__ = "constant"

    def __init__(self, value: Any) -> None:
        self.value = value

    def __call__(self) -> Any:
        return self.value
