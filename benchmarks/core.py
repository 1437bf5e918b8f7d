"""Speed, memory and accuracy of the core against GPyTorch and against the machine's own limit: `make bench`.

Prints a table and writes it as JSON. Every ratio is measured with the alternatives taking turns in one run.
"""

from __future__ import annotations

import argparse
import json
import platform
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import memory
import numpy as np
import numpy.typing as npt
import torch
from data import training_set
from peers import gpytorch_evaluation, literal_greedy_variance
from timing import DGEMM_FLOPS, dgemm, interleaved

from nearexact.gp import Numerics, SparseObjective, gpr_objective, greedy_variance, sgpr_objective
from nearexact.kernels import SquaredExponential
from nearexact.typing import FloatArray

NOISE = 0.01  # with unit lengthscales and variance: where training starts
SOLVE_BY_CHUNK = Numerics(direct_condition=0.0, merge_condition=0.0)  # as on ill-conditioned problems


@dataclass(frozen=True)
class Row:
    """One line of the table: what was measured, and what it was to reach."""

    what: str
    measured: str
    goal: str
    reached: bool
    details: dict[str, float]


def points(X: FloatArray, m: int) -> FloatArray:
    return X[greedy_variance(SquaredExponential(), X, m, seed=0)]


def sgpr_against_gpytorch(name: str, m: int, goal: float, repeats: int) -> Row:
    X, y = training_set(name)
    Z = points(X, m)
    ours = sgpr_objective(SquaredExponential(), NOISE, X, y, Z)
    seconds = interleaved(
        {"nearexact": lambda: ours(ours.theta0), "gpytorch": gpytorch_evaluation(X, y, NOISE, Z)}, repeats
    )
    return ratio_row(f"SGPR value+gradient, {name}, M={m}, against GPyTorch", seconds, "gpytorch", goal)


def large_sgpr(repeats: int) -> list[Row]:
    """kin40k at M=1000: against GPyTorch and against the DGEMM rate, with the shortcut and without."""
    X, y = training_set("kin40k")
    Z = points(X, 1000)
    shortcut = sgpr_objective(SquaredExponential(), NOISE, X, y, Z)
    by_chunk = SparseObjective(SquaredExponential(), NOISE, X, y, Z, numerics=SOLVE_BY_CHUNK)
    seconds = interleaved(
        {
            "nearexact": lambda: shortcut(shortcut.theta0),
            "solve by chunk": lambda: by_chunk(by_chunk.theta0),
            "gpytorch": gpytorch_evaluation(X, y, NOISE, Z),
            "dgemm": dgemm(),
        },
        repeats,
    )
    peak = DGEMM_FLOPS / seconds["dgemm"]
    rows = []
    for name, label in (("nearexact", ""), ("solve by chunk", ", as if ill-conditioned")):
        what = f"SGPR value+gradient, kin40k, M=1000{label}"
        own = {"nearexact": seconds[name], "gpytorch": seconds["gpytorch"]}
        rows.append(ratio_row(f"{what}, against GPyTorch", own, "gpytorch", 3.5))
        share, goal = 5.0 * 1000**2 * len(X) / seconds[name] / peak, 0.75 if name == "nearexact" else 0.6
        details = {"seconds": seconds[name], "dgemm_gflops": peak / 1e9}
        what = f"{what}, 5M²N flops as share of the DGEMM rate"
        rows.append(Row(what, f"{share:.0%}", f"{goal:.0%}", share >= goal, details))
    return rows


def naval_gradient() -> Row:
    """Worst relative difference to central differences over all hyperparameters, on an ill-conditioned problem."""
    X, y = training_set("naval")
    noise, step, worst = 1e-5, 1e-2, 0.0
    for lengthscale in (5.0, 20.0):
        kernel = SquaredExponential(np.full(X.shape[1], lengthscale), 1000.0)
        objective = sgpr_objective(kernel, noise, X, y, points(X, 500))
        _, by_parameter, by_noise = objective.value_and_gradient(kernel, noise)
        values = np.concatenate([kernel.parameters["lengthscales"], [1000.0, noise]])
        analytic = np.concatenate([by_parameter["lengthscales"], [float(by_parameter["variance"]), by_noise]]) * values

        def elbo(log_change: FloatArray, at: FloatArray = values, of: SparseObjective = objective) -> float:
            changed = at * np.exp(log_change)
            return of.factorise(SquaredExponential(changed[:-2], changed[-2]), float(changed[-1])).elbo

        for i, direction in enumerate(np.eye(len(values))):
            difference = (elbo(step * direction) - elbo(-step * direction)) / (2.0 * step)
            worst = max(worst, abs(float(analytic[i]) / difference - 1.0))
    what = "gradient, naval, M=500, noise 1e-5, signal variance 1000, lengthscales 5 and 20, against finite differences"
    return Row(what, f"{worst:.2%}", "within 1%", worst <= 0.01, {"worst": worst})


def exact_against_gpytorch(repeats: int) -> Row:
    X, y = (values[:4000] for values in training_set("kin40k"))
    ours = gpr_objective(SquaredExponential(), NOISE, X, y)
    seconds = interleaved(
        {"nearexact": lambda: ours(ours.theta0), "gpytorch": gpytorch_evaluation(X, y, NOISE)}, repeats
    )
    return ratio_row("exact GPR value+gradient, N=4000, against GPyTorch with Cholesky", seconds, "gpytorch", 2.5)


def greedy_against_literal(repeats: int) -> Row:
    X, _ = training_set("kin40k")
    chosen: dict[str, list[int]] = {}

    def kept(name: str, select: Callable[[], npt.NDArray[np.int64]]) -> Callable[[], None]:
        return lambda: chosen.__setitem__(name, select().tolist())

    seconds = interleaved(
        {
            "nearexact": kept("blocked", lambda: greedy_variance(SquaredExponential(), X, 1000, seed=0)),
            "literal": kept("literal", lambda: literal_greedy_variance(SquaredExponential(), X, 1000, seed=0)),
        },
        repeats,
    )
    same = chosen["blocked"] == chosen["literal"]
    row = ratio_row("greedy selection, N=34,000, M=1000, against the literal algorithm", seconds, "literal", 3.5)
    measured = f"{row.measured}, {'same' if same else 'DIFFERENT'} pivots"
    return Row(row.what, measured, f"{row.goal}, same pivots", row.reached and same, row.details)


def million_rows() -> Row:
    limited, free = memory.measure("million-1GB"), memory.measure("million-unlimited")
    a, b = np.array(limited["result"]), np.array(free["result"])
    difference = float(np.abs(a / b - 1.0).max())
    reached = limited["peak_mb"] < 2500 and difference <= 1e-8
    measured = f"{limited['peak_mb'] / 1e3:.2f} GB, relative difference {difference:.0e}"
    details = {"peak_mb": limited["peak_mb"], "unlimited_peak_mb": free["peak_mb"], "difference": difference}
    what = 'value+gradient, N=1,000,000, D=8, M=500, memory_limit="1GB": peak resident memory, result against no limit'
    return Row(what, measured, "2.5 GB, 1e-8", reached, details)


def memory_against_gpytorch() -> Row:
    ours, theirs = (memory.measure(f"kin40k-{name}")["peak_mb"] for name in ("ours", "gpytorch"))
    measured = f"1/{theirs / ours:.1f} ({ours / 1e3:.2f} GB)"
    details = {"nearexact_mb": ours, "gpytorch_mb": theirs}
    what = "peak resident memory, kin40k, M=2000, no limit, against GPyTorch"
    return Row(what, measured, "1/4", ours <= theirs / 4, details)


def ratio_row(what: str, seconds: dict[str, float], peer: str, goal: float) -> Row:
    ratio = seconds[peer] / seconds["nearexact"]
    return Row(what, f"{ratio:.1f}x", f"{goal:g}x", ratio >= goal, seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, help="where to write the table as JSON")
    arguments = parser.parse_args()
    measurements: list[Callable[[], Row | list[Row]]] = [
        lambda: sgpr_against_gpytorch("bike", 10, 2.0, 100),
        lambda: sgpr_against_gpytorch("bike", 50, 4.5, 100),
        lambda: sgpr_against_gpytorch("kin40k", 100, 3.5, 20),
        lambda: large_sgpr(5),
        naval_gradient,
        lambda: exact_against_gpytorch(3),
        lambda: greedy_against_literal(3),
        million_rows,
        memory_against_gpytorch,
    ]
    rows: list[Row] = []
    print("| what | reached | goal |\n| --- | --- | --- |")
    for measurement in measurements:
        result = measurement()
        for row in result if isinstance(result, list) else [result]:
            rows.append(row)
            print(f"| {row.what} | {row.measured} | {row.goal}{'' if row.reached else ' (MISSED)'} |", flush=True)
    if arguments.output:
        machine = {
            "processor": platform.processor() or platform.machine(),
            "threads": torch.get_num_threads(),
            "torch": torch.__version__,
            "python": platform.python_version(),
        }
        arguments.output.parent.mkdir(parents=True, exist_ok=True)
        table = {"machine": machine, "rows": [asdict(row) for row in rows]}
        arguments.output.write_text(json.dumps(table, indent=1, ensure_ascii=False) + "\n")
    if not all(row.reached for row in rows):
        raise SystemExit("some figures were missed")


if __name__ == "__main__":
    main()
