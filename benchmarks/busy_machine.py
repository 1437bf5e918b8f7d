"""An evaluation of the exact likelihood on a machine that is busy, and on one that is not.

    python benchmarks/busy_machine.py [--rows 128 256 512 1024 2000] [--busy 0 2]

`--busy` programs compute beside it. For each of them: milliseconds of an evaluation, the median of several, on one
thread, on all threads that wait as OpenMP does by default, and on all threads that wait as the package lets them.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from result_files import write

RESULTS = "busy_machine.json"
WAYS = {
    "one thread": {"OMP_NUM_THREADS": "1"},
    "all threads, spinning": {"GOMP_SPINCOUNT": "300000"},
    "all threads": {},
}


@contextmanager
def busy_programs(count: int) -> Iterator[None]:
    """So many programs that do nothing but compute."""
    programs = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for program in programs:
            program.kill()
            program.wait()


def milliseconds(rows: int) -> float:
    """Of an evaluation in this process."""
    import numpy as np

    import nearexact.gp  # here, so that torch is imported in the environment that is measured

    random = np.random.default_rng(0)
    X = random.normal(size=(rows, 8))
    y = np.sin(X[:, 0]) + 0.1 * random.normal(size=rows)
    objective = nearexact.gp.ExactObjective(nearexact.kernels.SquaredExponential(np.full(8, 3.0)), 0.1, X, y)
    seconds = []
    for _ in range(8):
        started = time.perf_counter()
        objective(objective.theta0)
        seconds.append(time.perf_counter() - started)
    return 1e3 * float(np.median(seconds))


def measured(rows: int, settings: dict[str, str]) -> float:
    """The same in a process of its own."""
    chosen = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_"))}
    command = [sys.executable, __file__, "--rows", str(rows), "--here"]
    done = subprocess.run(command, env={**chosen, **settings}, capture_output=True, text=True, check=True)
    return float(done.stdout)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--rows", type=int, nargs="+", default=[128, 256, 512, 1024, 2000])
    options.add_argument("--busy", type=int, nargs="+", default=[0, os.cpu_count() or 1])
    options.add_argument("--here", action="store_true", help="measure in this process, and print the milliseconds")
    given = options.parse_args()
    if given.here:
        print(milliseconds(given.rows[0]))
        return
    results = []
    print("| busy programs | rows | " + " | ".join(WAYS) + " |\n" + "| --- " * (2 + len(WAYS)) + "|")
    for busy in given.busy:
        with busy_programs(busy):
            for rows in given.rows:
                found = {way: measured(rows, settings) for way, settings in WAYS.items()}
                results.append({"busy": busy, "rows": rows, "cores": os.cpu_count(), "milliseconds": found})
                print(f"| {busy} | {rows} | " + " | ".join(f"{found[way]:.3g}" for way in WAYS) + " |", flush=True)
    write(RESULTS, results)


if __name__ == "__main__":
    main()
