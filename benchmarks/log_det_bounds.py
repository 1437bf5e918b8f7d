"""How near bounds on log|K̂| come to it: of a sparse GP, with moments, and by the chain rule; and what they take.

    NEAREXACT_DATA=<folder> python benchmarks/log_det_bounds.py [--rows 8000] [--points 1000]
        [--datasets kin40k,protein]

θ is that of an exact GP of 2,000 rows; log|K̂| of all rows comes from a Cholesky factor. Everything in nats per row of a
likelihood, that is half of what a bound on log|K̂| leaves open.
"""

from __future__ import annotations

import argparse
import time
import warnings

import numpy as np
import torch
from data import training_set
from result_files import write

from nearexact import GPRegressor
from nearexact.gp import chain_rule, greedy_variance, log_determinant
from nearexact.gp.lapack import cholesky
from nearexact.gp.sparse import SparseObjective
from nearexact.kernels import Kernel, Matern12, SquaredExponential

DATASETS = "kin40k,protein,kin8nm,elevators,power,pol,bike"
KERNELS = {"se": SquaredExponential(), "matern12": Matern12()}
SUBSET, TRAINING_SECONDS, MEMORY = 2000, 60.0, 4 * 10**9


def standardised(name: str, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    """So many rows in random order."""
    X, y = training_set(name)
    chosen = np.random.default_rng(0).permutation(len(y))[:rows]
    X, y = X[chosen], np.ravel(y[chosen])
    X = (X - X.mean(0)) / np.where(X.std(0) > 0.0, X.std(0), 1.0)
    return torch.tensor(X), torch.tensor((y - y.mean()) / y.std())


def theta_of_subset(kernel: Kernel, X: torch.Tensor, y: torch.Tensor) -> tuple[Kernel, float]:
    """The hyperparameters of an exact GP of the first rows."""
    model = GPRegressor(kernel, method="cholesky", time_limit=TRAINING_SECONDS, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(X[:SUBSET].numpy(), y[:SUBSET].numpy())
    return model.kernel_, model.noise_variance_


def compare(name: str, kernel_name: str, rows: int, points: int) -> dict[str, object]:
    """What each bound leaves open, and its seconds."""
    X, y = standardised(name, rows)
    kernel, s = theta_of_subset(KERNELS[kernel_name], X, y)
    n = len(X)
    K = kernel(X)
    K.diagonal().add_(s)
    exact = 2.0 * float(cholesky(K, out=K)[0].diagonal().log().sum())
    del K
    Z = X[torch.from_numpy(greedy_variance(kernel, X, points, seed=0))]
    started = time.perf_counter()
    objective = SparseObjective(kernel, s, X, y, Z)
    f = objective.factorise(kernel, s, residuals=True)
    sparse = {"open": 0.5 * (f.bounds.log_det.upper - exact) / n, "seconds": time.perf_counter() - started}
    started = time.perf_counter()
    logs = log_determinant.unexplained(objective, f).sum_of_logs()
    moments = {"open": 0.5 * (f.log_det + logs.upper - exact) / n, "seconds": time.perf_counter() - started}
    chain = {}
    for given in chain_rule.GIVEN:
        started = time.perf_counter()
        bound = chain_rule.log_det_bound(kernel, s, X, given, memory=MEMORY)
        chain[str(given)] = {"open": 0.5 * (bound - exact) / n, "seconds": time.perf_counter() - started}
    return {"rows": n, "points": len(Z), "noise": s, "sparse": sparse, "moments": moments, "chain_rule": chain}


def table(results: dict[str, dict[str, dict[str, object]]]) -> str:
    """A row for each data set and kernel."""
    given = " | ".join(f"{size} given" for size in chain_rule.GIVEN)
    lines = [f"| data, kernel | noise | sparse GP | moments | {given} |", "| --- " * (4 + len(chain_rule.GIVEN)) + "|"]
    for name, kernels in results.items():
        for kernel, found in kernels.items():
            bounds = [found["sparse"], found["moments"], *found["chain_rule"].values()]  # type: ignore[attr-defined]
            cells = " | ".join(f"{bound['open']:.2g} ({bound['seconds']:.1f} s)" for bound in bounds)
            lines.append(f"| {name}, {kernel} | {found['noise']:.2g} | {cells} |")
    return "\n".join(lines)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--rows", type=int, default=8000)
    options.add_argument("--points", type=int, default=1000)
    options.add_argument("--datasets", default=DATASETS)
    given = options.parse_args()
    results: dict[str, dict[str, dict[str, object]]] = {}
    for name in given.datasets.split(","):
        for kernel in KERNELS:
            results.setdefault(name, {})[kernel] = compare(name, kernel, given.rows, given.points)
            print(table({name: {kernel: results[name][kernel]}}).splitlines()[-1], flush=True)
    write("log_det_bounds.json", results)
    print(table(results))


if __name__ == "__main__":
    main()
