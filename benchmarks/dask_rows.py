"""Evaluations over rows that are generated on the workers of a cluster: memory of all processes, and bytes moved.

    python dask_rows.py --rows 5000000        5 million rows, D=8, M=200, three evaluations on two workers

Bytes are those of Dask's own counters: what each worker has sent to others and to the client. The two matrices that
the client sends for each evaluation, L and the adjoint of G, are added to them.
"""

from __future__ import annotations

import argparse
import json
import os
import threading
import time
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import result_files
from distributed import Client, LocalCluster

from nearexact import SGPRegressor
from nearexact.cluster.blocks import standardised_rows
from nearexact.cluster.rows import ClusterRows
from nearexact.gp.sparse import SparseObjective
from nearexact.kernels import SquaredExponential

D, M, EVALUATIONS = 8, 200, 3


class Memory(threading.Thread):
    """The largest sum of resident memory over processes, looked at ten times a second."""

    def __init__(self, processes: list[int]) -> None:
        super().__init__(daemon=True)
        self.processes, self.peak = processes, 0
        self._stopped = threading.Event()

    def run(self) -> None:
        page = os.sysconf("SC_PAGE_SIZE")
        while not self._stopped.wait(0.1):
            resident = sum(int(Path(f"/proc/{p}/statm").read_text().split()[1]) for p in self.processes)
            self.peak = max(self.peak, resident * page)

    def stop(self) -> int:
        self._stopped.set()
        self.join()
        return self.peak


def moved(dask_worker: Any) -> int:
    """Bytes that a worker has sent to others and to the client."""
    return int(dask_worker.transfer_outgoing_bytes_total)


def generated(rows: int, chunks: int) -> tuple[Any, Any]:
    """Inputs and targets that only workers ever hold."""
    random = da.random.default_rng(0)
    X = random.normal(size=(rows, D), chunks=(chunks, D))
    y = da.sin(X[:, 0]) + 0.3 * X[:, 1] + 0.1 * random.normal(size=rows, chunks=chunks)
    return X, y


def objective_on(client: Client, rows: int, chunks: int) -> tuple[SparseObjective, ClusterRows]:
    """The objective of such rows, and these."""
    data, _, _ = standardised_rows(SGPRegressor(), *generated(rows, chunks), client)
    Z = data.take(np.arange(M)).X
    return SparseObjective(SquaredExponential(1.0), 0.1, data, None, Z), data


def evaluations(client: Client, rows: int, chunks: int) -> tuple[list[float], list[float], list[float]]:
    """Values, seconds and bytes moved per worker, of each evaluation; the first one warms up."""
    objective, data = objective_on(client, rows, chunks)
    values, seconds, per_worker = [], [], []
    for number in range(EVALUATIONS):
        before, started = client.run(moved), time.perf_counter()
        values.append(objective(objective.theta0 + 0.01 * number)[0])
        seconds.append(time.perf_counter() - started)
        after = client.run(moved)
        sent = sum(after[worker] - before[worker] for worker in after) + 2 * 8 * M**2
        per_worker.append(sent / len(after))
    data.close()
    return values, seconds, per_worker


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--memory", default="2GB", help="limit of each worker")
    options = parser.parse_args()
    with (
        LocalCluster(
            n_workers=options.workers, threads_per_worker=1, memory_limit=options.memory, dashboard_address=None
        ) as cluster,
        Client(cluster) as client,
    ):
        memory = Memory([os.getpid(), *client.run(os.getpid).values()])
        memory.start()
        values, seconds, sent = evaluations(client, options.rows, chunks=1_000_000)
        peak = memory.stop()
    result = {
        "rows": options.rows,
        "workers": options.workers,
        "values": values,
        "seconds": seconds,
        "peak_gb": peak / 1e9,
        "bytes_per_worker": sent,
        "matrices_per_worker": [number / (8 * M**2) for number in sent],
    }
    print(json.dumps(result, indent=1))
    if options.rows >= 5_000_000:
        result_files.write("dask_rows.json", result)


if __name__ == "__main__":
    main()
