"""Two ways to IterGP's predictive variances on skillcraft: a Lanczos root of size 5000, and solves for the test points.

NEAREXACT_DATA=<folder> .venv/bin/python benchmarks/itergp_variances.py
"""

from __future__ import annotations

import time

import linear_operator
import torch

from nearexact.bench.datasets import load_split
from nearexact.bench.methods import itergp, kernel_matrix
from nearexact.kernels import SquaredExponential

NOISE, ROOT_SIZE, TOLERANCE = 0.3, 5000, 0.01


def main() -> None:
    data = load_split("skillcraft", 0)
    X, y = torch.tensor(data.X_train), torch.tensor(data.y_train)
    kernel = SquaredExponential([6.0] * X.shape[1])  # about what training finds
    products = kernel_matrix.Products(X, kernel, 10**9)
    leaves = [torch.tensor(value) for value in kernel.parameters.values()]
    K_test = kernel(torch.tensor(data.X_test), X)
    L = torch.linalg.cholesky(kernel(X) + NOISE * torch.eye(len(X), dtype=X.dtype))
    exact = 1.0 - torch.linalg.solve_triangular(L, K_test.T, upper=False).square().sum(0) + NOISE
    settings = linear_operator.settings
    with torch.no_grad(), settings.max_cholesky_size(0), settings.max_root_decomposition_size(ROOT_SIZE):
        started = time.perf_counter()
        _, variance = itergp._predictor(products, kernel, NOISE, y, TOLERANCE)(data.X_test)
        print(
            f"solves: {time.perf_counter() - started:.1f} s, largest error {float((variance - exact).abs().max()):.1g}"
        )
        started = time.perf_counter()
        K_hat = kernel_matrix.covariance(products, kernel, [*leaves, torch.tensor([NOISE], dtype=X.dtype)])
        inverse = K_hat.root_inv_decomposition(method="lanczos").to_dense()
        variance = 1.0 - (K_test @ inverse * K_test).sum(1) + NOISE
        print(
            f"root:   {time.perf_counter() - started:.1f} s, largest error {float((variance - exact).abs().max()):.1g}"
        )


if __name__ == "__main__":
    main()
