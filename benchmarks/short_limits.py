"""What is the best model where there is no time to train the exact GP on all rows?

    OMP_NUM_THREADS=1 NEAREXACT_DATA=<folder> python benchmarks/cpu_clock.py benchmarks/short_limits.py
        [--limits 10 20 40] [--names protein,pol] [--table]

Compared are `GPRegressor(method="auto")`, which takes the exact GP at the hyperparameters of a subset where that fits,
and `method="sparse"`, which trains a sparse GP on all rows, by NLPD and RMSE of standardised test rows. Runs are
written one by one, and those that are there already are not done again; `--table` only prints them.
"""

from __future__ import annotations

import argparse
import time
import warnings
from typing import Any

import numpy as np
from result_files import earlier, write
from sklearn.exceptions import ConvergenceWarning

import nearexact
from nearexact.bench import metrics
from nearexact.bench.datasets import find, split

RESULTS = "short_limits.json"
NAMES = "power,naval,pol,protein,elevators,bike,kin40k,keggdirected"
MOST_ROWS = 15_000
METHODS = ("sparse", "auto")


def outcome(name: str, limit: float, method: str) -> dict[str, Any]:
    X, y = find(name).load()
    rows = np.random.default_rng(0).permutation(len(y))[:MOST_ROWS]
    data = split(X[rows], y[rows], 0)
    started = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model = nearexact.GPRegressor(method=method, time_limit=limit, random_state=0).fit(data.X_train, data.y_train)
    seconds = time.perf_counter() - started
    mean, std = model.predict(data.X_test, return_std=True)
    return {
        "rows": len(data.y_train),
        "method": model.method_,
        "m": len(model.inducing_points_),
        "seconds": round(seconds, 1),
        "nlpd": metrics.nlpd(data.y_test, mean, std**2),
        "rmse": metrics.rmse(data.y_test, mean),
        "coverage": metrics.coverage(data.y_test, mean, std**2, 95),
        "verdict": model.certificate_.verdict,
    }


def table(results: dict[str, Any]) -> str:
    """A row for each data set and limit."""
    lines = [
        "| data set: rows | limit (s) | sparse: M, NLPD, RMSE | auto: way, NLPD, RMSE |",
        "| --- | --- | --- | --- |",
    ]
    for name, limits in results.items():
        for limit, runs in limits.items():
            cells = [
                f"{run['m'] if method == 'sparse' else run['method']}, {run['nlpd']:.3f}, {run['rmse']:.3f}"
                for method, run in ((method, runs[method]) for method in METHODS if method in runs)
            ]
            rows = next(iter(runs.values()))["rows"]
            lines.append(f"| {name}: {rows} | {limit} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--limits", type=float, nargs="+", default=[10.0, 20.0, 40.0])
    options.add_argument("--names", default=NAMES)
    options.add_argument("--table", action="store_true", help="print what is there, and run nothing")
    given = options.parse_args()
    results = earlier(RESULTS) or {}
    for name in [] if given.table else given.names.split(","):
        for limit in given.limits:
            runs = results.setdefault(name, {}).setdefault(f"{limit:g}", {})
            for method in METHODS:
                if method not in runs:
                    runs[method] = outcome(name, limit, method)
                    write(RESULTS, results)
                    print(name, f"{limit:g} s", method, runs[method], flush=True)
    print(table(results))


if __name__ == "__main__":
    main()
