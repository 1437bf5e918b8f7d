"""Weak scaling, and what 100 workers would take for a billion rows. For a quiet machine with two cores; minutes.

    python dask_scaling.py                                     a million rows of each worker
    python dask_scaling.py --rows 20000 --repetitions 2        a trial; it stores nothing

Measured, with D=8 and M=200, all by turns and several times:

- T₁ and T₂, seconds of an evaluation with its gradient, with one worker and with two, each with as many rows;
- f, the same with one worker that has next to no rows: the client's algebra in M, and what waits for answers;
- c, seconds for one more task that does nothing, with two workers: what client, scheduler and worker do about a task.

The model: an evaluation of N rows in B blocks on W workers takes

    a·N/W + f + c·tasks(B, W) + 2·W·8M²/rate        a = (T₁ − f) / rows, seconds of work for a row

Its terms are the work on the rows, which workers share; what does not grow with the rows; tasks, which one scheduler
handles one by one; and L and the adjoint of G, which one worker hands on to all others, in the worst case one after the
other. `rate` is that of the network, the only figure that is not measured here. As a check, what the model says about
two workers is printed next to T₂. Larger M: a grows like M², f like M³, the last term like M².
"""

from __future__ import annotations

import argparse
import json
import operator
import os
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from statistics import median
from typing import Any

import result_files
from dask_rows import D, M, objective_on
from distributed import Client, LocalCluster

from nearexact.cluster.reduction import BRANCHES, Call, Cluster

GOAL = 1.25  # T₂ / T₁ at most
FEW_TASKS, MANY_TASKS = 64, 576  # tasks that do nothing: c is their difference, over 512
WORKERS, ROWS = 100, 10**9  # to be predicted,
ROWS_PER_BLOCK = 10**6  # with blocks about as large as they become of 8 columns


@dataclass(frozen=True)
class Model:
    """Seconds of an evaluation, as said above."""

    per_row: float  # a
    fixed: float  # f
    per_task: float  # c
    rate: float  # bytes per second

    def parts(self, rows: int, workers: int, blocks: int) -> dict[str, float]:
        """Each term, and their sum."""
        tasks = evaluation_tasks(blocks, workers)
        parts = {
            "work": self.per_row * rows / workers,
            "fixed": self.fixed,
            "tasks": self.per_task * tasks,
            "network": 2 * workers * 8 * M**2 / self.rate if workers > 1 else 0.0,
        }
        return {"number_of_tasks": tasks, **parts, "seconds": sum(parts.values())}


def evaluation_tasks(blocks: int, workers: int) -> int:
    """Tasks of the two sweeps: one for each block, those that join what workers have, the whole, and what is sent."""
    joins, parts = 0, min(blocks, workers)
    while parts > 1:
        parts = -(-parts // BRANCHES)
        joins += parts
    return 2 * (blocks + joins + 2)


def nothing(_: Any) -> int:
    return 1


def empty_tasks(client: Client, count: int) -> Callable[[], None]:
    """A sum over so many blocks with nothing in them."""
    cluster = Cluster(client)
    places = cluster.spread(count)
    blocks = cluster.start([cluster.task(nothing, None, worker=place) for place in places])
    cluster.gather(blocks)

    def add_up() -> None:
        found = cluster.sum([Call(nothing, block, ()) for block in blocks], operator.add)
        assert found == count

    return add_up


def evaluation(client: Client, rows: int, chunks: int) -> Callable[[], None]:
    """An evaluation with its gradient, at another θ each time."""
    objective, _ = objective_on(client, rows, chunks)
    theta = objective.theta0

    def evaluate() -> None:
        nonlocal theta
        theta = theta + 0.01
        objective(theta)

    return evaluate


def by_turns(actions: dict[str, Callable[[], None]], repetitions: int) -> dict[str, list[float]]:
    """Seconds of each action in each round, after one that warms up."""
    seconds: dict[str, list[float]] = {name: [] for name in actions}
    for number in range(repetitions + 1):
        for name, action in actions.items():
            started = time.perf_counter()
            action()
            if number:
                seconds[name].append(time.perf_counter() - started)
    return seconds


def measured(rows: int, repetitions: int, memory: str) -> dict[str, list[float]]:
    """All that is measured."""
    with ExitStack() as stack:
        one, two = (
            stack.enter_context(
                Client(
                    stack.enter_context(
                        LocalCluster(
                            n_workers=workers, threads_per_worker=1, memory_limit=memory, dashboard_address=None
                        )
                    )
                )
            )
            for workers in (1, 2)
        )
        return by_turns(
            {
                "one_worker": evaluation(one, rows, rows),
                "two_workers": evaluation(two, 2 * rows, rows),
                "next_to_no_rows": evaluation(one, 2 * M, 2 * M),
                "few_tasks": empty_tasks(two, FEW_TASKS),
                "many_tasks": empty_tasks(two, MANY_TASKS),
            },
            repetitions,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000, help="of each worker")
    parser.add_argument("--repetitions", type=int, default=7)
    parser.add_argument("--memory", default="2GB", help="limit of each worker, too little to keep V of a million rows")
    parser.add_argument("--rate", type=float, default=125e6, help="bytes per second of the network: 1 Gbit/s")
    options = parser.parse_args()
    seconds = measured(options.rows, options.repetitions, options.memory)
    middle = {name: median(values) for name, values in seconds.items()}
    fixed = middle["next_to_no_rows"]
    model = Model(
        per_row=(middle["one_worker"] - fixed) / options.rows,
        fixed=fixed,
        per_task=(middle["many_tasks"] - middle["few_tasks"]) / (MANY_TASKS - FEW_TASKS),
        rate=options.rate,
    )
    result = {
        "rows_per_worker": options.rows,
        "inputs": D,
        "m": M,
        "cores": os.cpu_count(),
        "worker_memory": options.memory,
        "seconds": seconds,
        "median_seconds": middle,
        "ratio": middle["two_workers"] / middle["one_worker"],
        "ratio_of_best": min(seconds["two_workers"]) / min(seconds["one_worker"]),
        "goal": GOAL,
        "seconds_per_row": model.per_row,
        "fixed_seconds": model.fixed,
        "seconds_per_task": model.per_task,
        "network_bytes_per_second": model.rate,
        "predicted_two_workers": model.parts(2 * options.rows, workers=2, blocks=2),
        "predicted": {"workers": WORKERS, "rows": ROWS, **model.parts(ROWS, WORKERS, ROWS // ROWS_PER_BLOCK)},
    }
    print(json.dumps(result, indent=1))
    if options.rows >= 1_000_000:
        result_files.write("dask_scaling.json", result)


if __name__ == "__main__":
    main()
