"""Seconds that the sparse procedure takes to reach the ELBO of another version of this package at M=500.

    NEAREXACT_DATA=<folder> python benchmarks/time_to_bound.py --before <checkout> [--names elevators,kin8nm]

The version in the checkout is trained up to M=500 in a process of its own; then the present one, until its proved
lower bound has reached that ELBO or M=500 is done. One run each, in turns.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import result_files

RESULTS = "time_to_bound.json"
NAMES = "elevators,kin8nm,bike,pol,kin40k,protein"
M = 500
# Only what both versions have: run in a process with the one or the other on its path.
TRAIN = """
import json, sys
from nearexact.bench.datasets import load_split
from nearexact.gp import Training
from nearexact.kernels import SquaredExponential

name, goal, m = sys.argv[1], float(sys.argv[2]), int(sys.argv[3])
data, stages = load_split(name, 0), []

def after_stage(stage, _):
    lower = training.likelihood_bounds().lower
    stages.append({"m": stage.m, "elbo": stage.elbo, "lower": max(lower, stage.elbo), "elapsed": stage.elapsed})
    return "reached" if stages[-1]["lower"] >= goal else None

training = Training(SquaredExponential(), data.X_train, data.y_train, max_inducing=m, seed=0, on_stage=after_stage)
training.run()
print(json.dumps(stages))
"""


def train(source: Path, name: str, goal: float) -> list[dict[str, Any]]:
    """The stages of a training run by the package in this folder, up to the first that reaches the goal."""
    command = [sys.executable, "-c", TRAIN, name, str(goal), str(M)]
    environment = {**os.environ, "PYTHONPATH": str(source)}
    output = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout
    stages: list[dict[str, Any]] = json.loads(output.splitlines()[-1])
    return stages


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--before", type=Path, required=True)
    options.add_argument("--names", default=NAMES)
    given = options.parse_args()
    results = result_files.earlier(RESULTS) or {}
    for name in given.names.split(","):
        before = train(given.before / "src", name, float("inf"))
        goal = max(stage["elbo"] for stage in before)
        after = train(Path(__file__).parents[1] / "src", name, goal)
        results[name] = {"before": before, "after": after, "reached": after[-1]["lower"] >= goal}
        print(
            f"| {name} | {goal:.0f} | {before[-1]['elapsed']:.0f} | {after[-1]['lower']:.0f} | {after[-1]['m']} |"
            f" {after[-1]['elapsed']:.0f} |",
            flush=True,
        )
        result_files.write(RESULTS, results)


if __name__ == "__main__":
    main()
