"""Whole fits on small tables next to scikit-learn's exact GP with 3 restarts, both on the same rows.

    NEAREXACT_DATA=<folder> python benchmarks/small_tables.py [--rows 300 1000 3000] [--names kin8nm,bike] [--limit 300]

Compared are the log marginal likelihood that is reached, of the same model (squared exponential, one lengthscale per
input, noise) and the same standardised rows, and the seconds of the whole fit. scikit-learn is stopped at the limit,
with the best that it has by then. Results are added to those of earlier runs.
"""

from __future__ import annotations

import argparse
import time
import warnings
from pathlib import Path

import result_files
import torch
from scikit_learn_gp import fit_until
from search import Data, problems

from nearexact import GPRegressor

RESULTS = "small_tables.json"
NAMES = "elevators,kin8nm,bike,pol,power,skillcraft"


def scikit_learn(data: Data, limit: float) -> tuple[float, str]:
    """The likelihood that its L-BFGS reaches from one start and three random ones."""
    model, stopped = fit_until(*data, limit)
    return float(model.log_marginal_likelihood_value_), "stopped" if stopped else "finished"


def nearexact(data: Data, limit: float) -> tuple[float, str]:
    model = GPRegressor(time_limit=limit, random_state=0).fit(*data)
    return model.certificate_.lower, f"{model.method_}, {model.certificate_.verdict}"


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--rows", type=int, nargs="+", default=[300, 1000, 3000])
    options.add_argument("--names", default=NAMES)
    options.add_argument("--limit", type=float, default=300.0)
    options.add_argument("--tables", type=Path)
    given = options.parse_args()
    warnings.simplefilter("ignore")
    results = result_files.earlier(RESULTS) or []
    for rows in given.rows:
        for name, data in problems(rows, 0, given.tables):
            if name not in given.names.split(","):
                continue
            for fit in (nearexact, scikit_learn):
                started = time.perf_counter()
                likelihood, note = fit(data, given.limit)
                result = {
                    "data": name,
                    "rows": len(data[1]),
                    "fit": fit.__name__.replace("_", "-"),
                    "likelihood": likelihood,
                    "seconds": time.perf_counter() - started,
                    "note": note,
                    "threads": torch.get_num_threads(),
                }
                keys = ("data", "rows", "fit")
                results = [r for r in results if any(r[key] != result[key] for key in keys)] + [result]
            ours, theirs = results[-2:]
            print(
                f"| {name} | {ours['rows']} | {ours['likelihood']:.1f} | {ours['seconds']:.1f} | {ours['note']} |"
                f" {theirs['likelihood']:.1f} | {theirs['seconds']:.1f} | {theirs['note']} |",
                flush=True,
            )
            result_files.write(RESULTS, results)


if __name__ == "__main__":
    main()
