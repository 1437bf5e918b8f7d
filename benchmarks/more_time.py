"""Does more time ever give a worse model? What `nearexact fit` proves about the exact likelihood, by its time limit.

    OMP_NUM_THREADS=1 NEAREXACT_DATA=<folder> python benchmarks/cpu_clock.py benchmarks/more_time.py
        [--limits 10 30 60 120] [--tables kin8nm,power] [--output <file>] [--table]

Compared are lower bounds on the exact log marginal likelihood of the same rows, standardised, in nats per row; those of
different kernels too. Runs are written one by one, and those that are there already are not done again; `--table` only
prints them.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import pandas as pd
from practice import load

import nearexact.tables.model_search  # noqa: F401  # at once, so that the first fit does not count what importing it takes
from nearexact import tables

RESULTS = Path(__file__).with_name("results") / "more_time.json"
TABLES = "friedman1,bike,elevators,kin8nm,power,protein"
CHANCE = 1e-3  # nats per row: optimisers that stop at different times end as far apart


def bound(name: str, seconds: float) -> dict[str, Any]:
    """Of a fit within this time; all rows of the training part are trained on, none are kept back."""
    data = load(name)[0]
    frame = pd.DataFrame(data.X_train).add_prefix("x").assign(y=data.y_train)
    started = time.perf_counter()
    fitted = tables.fit(frame, "y", time_limit=seconds, test_fraction=0.0)
    took, model = time.perf_counter() - started, fitted.model
    return {
        "rows": len(frame),
        "lower": model.certificate_.lower / len(frame),
        "verdict": model.certificate_.verdict,
        "kernel": fitted.choice.name,
        "kernels_compared_on": fitted.choice.rows,
        "method": model.method_,
        "seconds": took,
    }


def falls(runs: dict[str, Any]) -> list[str]:
    """From which limit to which the bound is lower by more than chance."""
    limits = sorted(runs, key=float)
    return [
        f"{short} to {long} s: by {runs[short]['lower'] - runs[long]['lower']:.4f}"
        for position, long in enumerate(limits)
        for short in limits[:position]
        if runs[long]["lower"] < runs[short]["lower"] - CHANCE
    ]


def table(results: dict[str, dict[str, Any]]) -> str:
    """A row for each table, a column for each limit."""
    limits = sorted({limit for runs in results.values() for limit in runs}, key=float)
    lines = [f"| table: rows | {' | '.join(f'{limit} s' for limit in limits)} | lower with more time |"]
    lines.append("| --- " * (len(limits) + 2) + "|")
    for name, runs in results.items():
        cells = [
            f"{runs[limit]['lower']:.4f} {runs[limit]['kernel']}, {runs[limit]['method']}" if limit in runs else ""
            for limit in limits
        ]
        rows = next(iter(runs.values()))["rows"]
        lines.append(f"| {name}: {rows} | {' | '.join(cells)} | {'; '.join(falls(runs)) or 'nowhere'} |")
    return "\n".join(lines)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--limits", type=float, nargs="+", default=[10.0, 30.0, 60.0, 120.0])
    options.add_argument("--tables", default=TABLES)
    options.add_argument("--output", type=Path, default=RESULTS)
    options.add_argument("--table", action="store_true", help="print what is there, and run nothing")
    given = options.parse_args()
    results = json.loads(given.output.read_text()) if given.output.exists() else {}
    for name in [] if given.table else given.tables.split(","):
        for seconds in given.limits:
            runs = results.setdefault(name, {})
            if f"{seconds:g}" in runs:
                continue
            runs[f"{seconds:g}"] = bound(name, seconds)
            given.output.write_text(json.dumps(results, indent=1) + "\n")
            print(name, f"{seconds:g} s:", runs[f"{seconds:g}"], flush=True)
    print(table(results))
    if any(falls(runs) for runs in results.values()):
        raise SystemExit("with more time a model was worse")


if __name__ == "__main__":
    main()
