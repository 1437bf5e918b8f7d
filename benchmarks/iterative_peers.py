"""An evaluation of the exact likelihood by conjugate gradients, next to GPyTorch's and to the machine's own rate.

    NEAREXACT_DATA=<folder> python benchmarks/iterative_peers.py [--datasets kin40k protein] [--rows 20000]

`evaluation`: value and gradient at the same hyperparameters, those of a search on 2,000 rows, by `IterativeObjective`
with the preconditioner that training would begin with, and by GPyTorch's conjugate gradients as the method `itergp`
uses them (rank 100 preconditioner, 10 probes, Lanczos quadrature, the kernel matrix kept where it fits). Residuals of
all solves are computed afterwards, relative to their right-hand sides. Of both the first evaluation counts, selection
of inducing points and of blocks included.
`rate`: seconds of a product (K + sI)D that computes K again, next to those of distances and exp over the same blocks.
`memory`: value and gradient under a limit of 2 GB, next to those without.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np
import torch
from result_files import earlier, write
from timing import interleaved

from nearexact.bench.datasets import load_split
from nearexact.bench.methods.itergp import IterGP, _estimate
from nearexact.bench.methods.kernel_matrix import Products
from nearexact.gp import ExactTraining, greedy_variance
from nearexact.gp.budget import Timer
from nearexact.gp.iterative import PROBES, IterativeObjective
from nearexact.gp.iterative_cost import EvaluationCost, possible_sizes
from nearexact.gp.iterative_plan import IterativePlan
from nearexact.gp.iterative_training import FIRST_POINTS
from nearexact.gp.kernel_product import BLOCK_ROWS, KernelProduct
from nearexact.gp.row_blocks import RowBlocks
from nearexact.gp.sparse import SparseObjective
from nearexact.kernels import SquaredExponential
from nearexact.kernels.base import Kernel
from nearexact.limits import memory_budget

RESULTS = "iterative_peers.json"
SEARCH_ROWS, POINTS = 2000, 2000
LIMIT = "2GB"

Outcome = dict[str, Any]
Problem = tuple[torch.Tensor, torch.Tensor, Kernel, float]


def problem(dataset: str, rows: int) -> Problem:
    """Standardised rows, and hyperparameters for them."""
    data = load_split(dataset, 0)
    X, y = torch.tensor(data.X_train[:rows]), torch.tensor(data.y_train[:rows])
    training = ExactTraining(SquaredExponential(), X[:SEARCH_ROWS], y[:SEARCH_ROWS], seed=0, time_limit=60.0)
    training.run()
    posterior = training.posterior()
    return X, y, posterior.kernel, posterior.noise_variance


def preconditioner(X: torch.Tensor, y: torch.Tensor, kernel: Kernel, s: float) -> tuple[int, int]:
    """With which training would begin after a look at a sparse GP: points, and rows given for each block or 0."""
    Z = X[torch.randperm(len(X), generator=torch.Generator().manual_seed(0))[:FIRST_POINTS]]
    residuals = SparseObjective(kernel, s, X, y, Z).factorise(kernel, s, residuals=True).residuals
    assert residuals is not None
    memory = memory_budget(None, X.device)
    cost = EvaluationCost.tried(kernel, X, memory).after_sparse(FIRST_POINTS, float(residuals.mean()), s)
    sizes = possible_sizes(kernel, len(X), kernel.features(X[:1], X[0]).shape[1], memory)
    plan = IterativePlan(sizes, len(X), Timer(), may_factorise=False, may_block=True)
    plan.cost = cost
    plan.consider_blocks()
    return plan.points(), plan.cost.given


def evaluation(X: torch.Tensor, y: torch.Tensor, kernel: Kernel, s: float) -> Outcome:
    started = time.perf_counter()
    m, given = preconditioner(X, y, kernel, s)
    Z = X[torch.from_numpy(greedy_variance(kernel, X, m, seed=0))]
    blocks = RowBlocks.chosen(kernel, s, X, given) if given else None
    objective = IterativeObjective(kernel, s, X, y, Z, blocks=blocks)
    estimate, gradients, _ = objective.evaluate(kernel, s)
    ours = time.perf_counter() - started
    objective.product.release()
    multiply = KernelProduct(kernel, s, X)
    our_residual = float((multiply(estimate.solution) - y).norm() / y.norm())
    del objective
    method, products = IterGP(), Products(X, kernel, memory_budget(None, X.device))
    method.prepare()
    started = time.perf_counter()
    with method._settings():
        value, their_gradients, _ = _estimate(products, kernel, s, y, seed=0)
    theirs = time.perf_counter() - started
    assert products.last_solve is not None
    scale = np.abs(gradients["lengthscales"].numpy()).max()
    differences = (gradients["lengthscales"] - their_gradients["lengthscales"]).abs() / scale
    return {
        "seconds": ours,
        "points": len(Z),
        "given": given,
        "iterations": estimate.iterations,
        "residual": our_residual,
        "estimate": estimate.value,
        "standard_error": estimate.standard_error,
        "gpytorch_seconds": theirs,
        "gpytorch_iterations": products.last_solve.iterations,
        "gpytorch_residual": float(products.last_solve.residuals[-1]),
        "gpytorch_estimate": value,
        "gpytorch_keeps_matrix": products.stored,
        "largest_gradient_difference": float(differences.max()),
        "ratio": theirs / ours,
    }


def rate(X: torch.Tensor, kernel: Kernel, s: float) -> Outcome:
    product = KernelProduct(kernel, s, X)
    D = torch.randn(len(X), PROBES + 1, dtype=torch.float64)
    lengthscales = torch.tensor(kernel.parameters["lengthscales"])
    # −½ squared distances as one matrix product: rows (x, −½|x|², 1) times columns (x, 1, −½|x|²).
    scaled = (X - X.mean(0)) / lengthscales
    halves, ones = -0.5 * scaled.square().sum(1, keepdim=True), torch.ones(len(X), 1, dtype=torch.float64)
    left = torch.split(torch.cat([scaled, halves, ones], dim=1), BLOCK_ROWS)
    right = [part.T.contiguous() for part in torch.split(torch.cat([scaled, ones, halves], dim=1), BLOCK_ROWS)]
    buffers = {len(part): torch.empty(BLOCK_ROWS, len(part), dtype=torch.float64) for part in (left[0], left[-1])}

    def bare() -> None:
        for j, columns in enumerate(right):
            for i in range(j + 1):
                torch.mm(left[i], columns, out=buffers[columns.shape[1]][: len(left[i])]).exp_()

    seconds = interleaved({"product": lambda: product(D), "bare": bare}, 3)
    return {"product_seconds": seconds["product"], "bare_seconds": seconds["bare"],
            "share": seconds["bare"] / seconds["product"]}  # fmt: skip


def memory(X: torch.Tensor, y: torch.Tensor, kernel: Kernel, s: float) -> Outcome:
    Z = X[torch.from_numpy(greedy_variance(kernel, X, POINTS, seed=0))]
    found = []
    for limit in (None, LIMIT):
        objective = IterativeObjective(kernel, s, X, y, Z, memory_limit=limit, tolerance=1e-12)
        started = time.perf_counter()
        value, gradient = objective(objective.layout.pack(kernel, s))
        found.append((value, gradient, str(objective.product.storage), time.perf_counter() - started))
    (value, gradient, kept, seconds), (limited_value, limited_gradient, limited_kept, limited_seconds) = found
    return {
        "matrix": kept,
        "limited_matrix": limited_kept,
        "value_seconds": seconds,
        "limited_seconds": limited_seconds,
        "value_difference": abs(limited_value / value - 1.0),
        "gradient_difference": float(np.abs(limited_gradient - gradient).max() / np.abs(gradient).max()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--datasets", nargs="+", default=["kin40k", "protein"])
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--only", nargs="+", choices=("evaluation", "rate", "memory"), default=["evaluation", "rate"])
    arguments = parser.parse_args()
    results = earlier(RESULTS) or {}
    for dataset in arguments.datasets:
        X, y, kernel, s = problem(dataset, arguments.rows)
        found = results.setdefault(f"{dataset} {len(y)}", {})
        if "rate" in arguments.only:
            found["rate"] = rate(X, kernel, s)
        if "memory" in arguments.only:
            found["memory"] = memory(X, y, kernel, s)
        if "evaluation" in arguments.only:
            found["evaluation"] = evaluation(X, y, kernel, s)
        print(dataset, len(y), found)
        write(RESULTS, results)


if __name__ == "__main__":
    main()
