"""The exact GP by conjugate gradients: what an evaluation costs, and what ten minutes give on kin40k.

    NEAREXACT_DATA=<folder> python benchmarks/iterative.py evaluation [--rows 5000 10000 20000 40000]
    NEAREXACT_DATA=<folder> python benchmarks/iterative.py training [--dataset kin40k] [--seconds 600]
    NEAREXACT_DATA=<folder> python benchmarks/iterative.py variances [--dataset kin40k] [--rows 5000]

`evaluation`: seconds of one value and gradient at fixed hyperparameters of generated data, and what they went into.
`training`: RMSE and NLPD on the test rows, the estimate with its standard error, and the proved bounds.
`variances`: how far they are from those of the exact GP by Cholesky, with little noise and with more.
"""

from __future__ import annotations

import argparse
import json
import math
import time
import warnings
from pathlib import Path

import numpy as np
import torch

from nearexact import GPRegressor
from nearexact.bench.datasets import load_split
from nearexact.gp import gpr_objective, greedy_variance
from nearexact.gp.iterative import IterativeObjective
from nearexact.gp.iterative_posterior import IterativePosterior, ModelSolver
from nearexact.gp.neighbours import Extrapolation
from nearexact.gp.sparse import SparseObjective
from nearexact.gp.stored_kernel import StoredKernel
from nearexact.kernels import SquaredExponential

RESULTS = Path(__file__).parent / "results"
KERNEL, NOISE, POINTS = SquaredExponential(np.full(8, 1.5), 1.5), 0.007, 2000


def generated(rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Eight inputs, and a function of them that needs most of the rows."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(rows, 8))
    y = np.sin(2.0 * X[:, 0] * X[:, 1]) + np.cos(X[:, 2:].sum(1)) + 0.1 * rng.normal(size=rows)
    return torch.tensor(X), torch.tensor((y - y.mean()) / y.std())


def evaluation(rows: int, points: int) -> dict[str, float | str]:
    X, y = generated(rows)
    started = time.perf_counter()
    Z = X[torch.from_numpy(greedy_variance(KERNEL, X, min(points, rows // 2), seed=0))]
    selecting = time.perf_counter() - started
    objective = IterativeObjective(KERNEL, NOISE, X, y, Z)
    estimate, _, _ = objective.evaluate(KERNEL, NOISE)
    return {
        "rows": rows,
        "points": len(Z),
        "selection_seconds": selecting,
        "seconds": objective.timing.seconds,
        "solving_seconds": objective.timing.solving,
        "iterations": estimate.iterations,
        "estimate": estimate.value,
        "standard_error": estimate.standard_error,
        "matrix": str(objective.product.storage),
    }


def training(dataset: str, seconds: float) -> dict[str, float | str]:
    data = load_split(dataset, 0)
    started = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = GPRegressor(method="iterative", time_limit=seconds, random_state=0).fit(data.X_train, data.y_train)
    fitting = time.perf_counter() - started
    started = time.perf_counter()
    mean, std = model.predict(data.X_test, return_std=True)
    certificate, error = model.certificate_, data.y_test - mean
    nlpd = np.mean(0.5 * math.log(2.0 * math.pi) + np.log(std) + 0.5 * (error / std) ** 2)
    return {
        "dataset": dataset,
        "rows": len(data.y_train),
        "seconds": fitting,
        "prediction_seconds": time.perf_counter() - started,
        "method": model.method_,
        "points": len(model.inducing_points_),
        "evaluations": sum(stage.evaluations for stage in model.history_),
        "noise_variance": model.noise_variance_,
        "rmse": float(np.sqrt(np.mean(error**2))),
        "nlpd": float(nlpd),
        "estimate": math.nan if certificate.estimate is None else certificate.estimate,
        "standard_error": math.nan if certificate.standard_error is None else certificate.standard_error,
        "lower": certificate.lower,
        "upper": certificate.upper,
        "verdict": certificate.verdict,
        "hyperparameters": certificate.about_theta,
    }


def variances(dataset: str, rows: int, points: int) -> list[dict[str, float | str]]:
    data = load_split(dataset, 0)
    X, y, X_new = (torch.tensor(part) for part in (data.X_train[:rows], data.y_train[:rows], data.X_test[:500]))
    results: list[dict[str, float | str]] = []
    for lengthscale, s in ((1.8, 0.002), (2.5, 0.01), (2.5, 0.1)):
        kernel = SquaredExponential(np.full(X.shape[1], lengthscale), 1.5)
        Z = X[torch.from_numpy(greedy_variance(kernel, X, min(points, rows // 2), seed=0))]
        solver = ModelSolver(SparseObjective(kernel, s, X, y, Z), kernel, s, StoredKernel(X, 10**9))
        end = solver.finish(torch.zeros_like(y), 1e-4, seed=0)
        none = Extrapolation.none(end.weights)
        near = IterativePosterior.of(solver.factorisation, X, y, end.weights, end.residual_bound, none)
        exact = gpr_objective(kernel, s, X, y).factorise(kernel, s)
        expected = exact.predict(X_new)[1]
        found = {
            "extrapolated": near.with_extrapolation(end.variances).predict(X_new)[1],
            "nearest rows": near.predict(X_new)[1],
            "sparse": near.sparse.predict(X_new)[1],
        }
        for name, variance in found.items():
            latent, observed = variance / expected - 1.0, (variance + s) / (expected + s) - 1.0
            results.append(
                {
                    "dataset": dataset,
                    "rows": rows,
                    "lengthscale": lengthscale,
                    "noise_variance": s,
                    "variance": name,
                    "latent_median": float(latent.abs().median()),
                    "latent_95": float(latent.abs().quantile(0.95)),
                    "observed_median": float(observed.abs().median()),
                    "observed_95": float(observed.abs().quantile(0.95)),
                }
            )
            print(json.dumps(results[-1]))
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("evaluation", "training", "variances"))
    parser.add_argument("--rows", type=int, nargs="+", default=[5000, 10_000, 20_000, 40_000])
    parser.add_argument("--points", type=int, default=POINTS)
    parser.add_argument("--dataset", default="kin40k")
    parser.add_argument("--seconds", type=float, default=600.0)
    arguments = parser.parse_args()
    results = []
    if arguments.what == "evaluation":
        for rows in arguments.rows:
            results.append(evaluation(rows, arguments.points))
            print(json.dumps(results[-1]))
    elif arguments.what == "variances":
        results += variances(arguments.dataset, arguments.rows[0], arguments.points)
    else:
        results.append(training(arguments.dataset, arguments.seconds))
        print(json.dumps(results[-1], indent=2))
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"iterative_{arguments.what}.json"
    path.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
