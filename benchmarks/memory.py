"""Peak resident memory of one evaluation in a process of its own: `python memory.py CASE`, prints one line of JSON."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from nearexact.gp import Numerics, SparseObjective, sgpr_objective
from nearexact.kernels import SquaredExponential

MILLION = 1_000_000


def measure(case: str) -> dict[str, Any]:
    """Run a case in a fresh process: its result, seconds, and peak resident memory in MB."""
    output = subprocess.run([sys.executable, __file__, case], check=True, capture_output=True, text=True).stdout
    result: dict[str, Any] = json.loads(output.splitlines()[-1])
    return result


def peak_resident_mb() -> float:
    """Of this process alone: getrusage would count what its parent held when it was started."""
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM:")) / 1e3


def _million(memory_limit: str | None) -> list[float]:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(MILLION, 8))
    y = np.sin(X[:, 0]) + 0.1 * rng.normal(size=MILLION)
    always_solve = Numerics(direct_condition=0.0, merge_condition=0.0)  # the way that needs V
    objective = SparseObjective(
        SquaredExponential(2.0), 0.01, X, y, X[:500], memory_limit=memory_limit, numerics=always_solve
    )
    if objective.plan.keeps_v == (memory_limit is not None):
        raise SystemExit("there is too little free memory to compare with")
    value, gradient = objective(objective.theta0)
    return [value, *gradient.tolist()]


def _kin40k_ours() -> list[float]:
    from data import training_set

    X, y = training_set("kin40k")
    objective = sgpr_objective(SquaredExponential(), 0.01, X, y, X[:2000])
    return [objective(objective.theta0)[0]]


def _kin40k_gpytorch() -> list[float]:
    from data import training_set
    from peers import gpytorch_evaluation

    X, y = training_set("kin40k")
    return [gpytorch_evaluation(X, y, 0.01, X[:2000])()]


CASES = {
    "million-1GB": lambda: _million("1GB"),
    "million-unlimited": lambda: _million(None),
    "kin40k-ours": _kin40k_ours,
    "kin40k-gpytorch": _kin40k_gpytorch,
}


def main() -> None:
    start = time.perf_counter()
    result = CASES[sys.argv[1]]()
    peak = peak_resident_mb()
    print(json.dumps({"result": result, "seconds": time.perf_counter() - start, "peak_mb": peak}))


if __name__ == "__main__":
    main()
