"""Weak scaling: seconds of an evaluation with 1 and with 2 workers, rows per worker fixed. For a quiet machine.

python dask_scaling.py --rows 1000000     rows of each worker
"""

from __future__ import annotations

import argparse
import json

import result_files
from dask_rows import D, M, evaluations
from distributed import Client, LocalCluster


def seconds_with(workers: int, rows: int) -> float:
    """The best time of an evaluation."""
    with (
        LocalCluster(n_workers=workers, threads_per_worker=1, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        _, seconds, _ = evaluations(client, workers * rows, chunks=rows)
    return min(seconds[1:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    options = parser.parse_args()
    seconds = {workers: seconds_with(workers, options.rows) for workers in (1, 2)}
    ratio = seconds[2] / seconds[1]
    result = {"rows_per_worker": options.rows, "inputs": D, "m": M, "seconds": seconds, "ratio": ratio}
    print(json.dumps(result, indent=1))
    result_files.write("dask_scaling.json", result)


if __name__ == "__main__":
    main()
