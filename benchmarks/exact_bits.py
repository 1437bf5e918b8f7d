"""What an evaluation of the exact likelihood costs from a Cholesky factor in 64 bits and in 32, in turns.

    python benchmarks/exact_bits.py [--rows 1000 2000 4000 8000]

Generated data with eight inputs; seconds are the best of several. The differences are those of value, in nats per row,
and of the gradient, relative to its largest entry.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import result_files
import torch

from nearexact.gp import ExactObjective
from nearexact.kernels import SquaredExponential
from nearexact.typing import FloatArray

RESULTS = "exact_bits.json"
REPEATS = 5
INPUTS, NOISE = 8, 0.05


def timed(evaluate: Callable[[FloatArray], tuple[float, FloatArray]], theta: FloatArray) -> tuple[float, Any]:
    started = time.perf_counter()
    result = evaluate(theta)
    return time.perf_counter() - started, result


def compared(rows: int) -> dict[str, float]:
    random = np.random.default_rng(0)
    X = random.normal(size=(rows, INPUTS))
    y = np.sin(2.0 * X[:, 0]) + X[:, 1] * X[:, 2] + 0.3 * random.normal(size=rows)
    objective = ExactObjective(SquaredExponential(np.full(INPUTS, 2.0)), NOISE, X, (y - y.mean()) / y.std())
    seconds: dict[str, list[float]] = {"64": [], "32": []}
    for _ in range(REPEATS):
        for bits, evaluate in (("64", objective), ("32", objective.nearly)):
            took, (value, gradient) = timed(evaluate, objective.theta0)
            seconds[bits].append(took)
            if bits == "64":
                exact, exact_gradient = value, gradient
    return {
        "rows": rows,
        "threads": torch.get_num_threads(),
        "seconds in 64 bits": min(seconds["64"]),
        "seconds in 32 bits": min(seconds["32"]),
        "ratio": min(seconds["32"]) / min(seconds["64"]),
        "value": (value - exact) / rows,
        "gradient": float(np.abs(gradient - exact_gradient).max() / np.abs(exact_gradient).max()),
    }


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--rows", type=int, nargs="+", default=[1000, 2000, 4000, 8000])
    results = []
    for rows in options.parse_args().rows:
        results.append(compared(rows))
        print("  ".join(f"{name} {figure:.3g}" for name, figure in results[-1].items()), flush=True)
    result_files.write(RESULTS, results)


if __name__ == "__main__":
    main()
