"""The same computations by GPyTorch and by the literal greedy algorithm: what the benchmarks compare with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gpytorch
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from nearexact.kernels import Kernel

FloatArray = npt.NDArray[np.float64]


def _scaled_rbf(n_inputs: int) -> Any:
    kernel = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel(ard_num_dims=n_inputs)).double()
    kernel.outputscale, kernel.base_kernel.lengthscale = 1.0, 1.0
    return kernel


class _GPyTorchModel(gpytorch.models.ExactGP):  # type: ignore[misc]
    def __init__(self, X: Tensor, y: Tensor, noise_variance: float, Z: Tensor | None) -> None:
        likelihood = gpytorch.likelihoods.GaussianLikelihood().double()
        likelihood.noise = noise_variance
        super().__init__(X, y, likelihood)
        self.mean_module = gpytorch.means.ZeroMean()
        self.covar_module = _scaled_rbf(X.shape[1])
        if Z is not None:
            self.covar_module = gpytorch.kernels.InducingPointKernel(self.covar_module, Z.clone(), likelihood)

    def forward(self, X: Tensor) -> Any:
        return gpytorch.distributions.MultivariateNormal(self.mean_module(X), self.covar_module(X))


def gpytorch_sgpr(X: Tensor, y: Tensor, Z: Tensor) -> Any:
    """GPyTorch's SGPR as one would use it: unit lengthscales, its own noise to start from, inducing points trained."""
    return _GPyTorchModel(X, y, gpytorch.likelihoods.GaussianLikelihood().noise.item(), Z)


def gpytorch_evaluation(
    X: FloatArray, y: FloatArray, noise_variance: float, Z: FloatArray | None = None
) -> Callable[[], float]:
    """Value and gradient of GPyTorch's SGPR bound, or of the exact LML without Z, by Cholesky; returns the value."""
    inputs, targets = torch.tensor(X), torch.tensor(y)
    model = _GPyTorchModel(inputs, targets, noise_variance, None if Z is None else torch.tensor(Z))
    if Z is not None:
        model.covar_module.inducing_points.requires_grad_(False)  # we do not train them either
    model.train()
    objective = gpytorch.mlls.ExactMarginalLogLikelihood(model.likelihood, model)

    def evaluate() -> float:
        model.zero_grad()
        with gpytorch.settings.max_cholesky_size(10**9):  # Cholesky at any size; above 800 the default is CG
            loss = -objective(model(inputs), targets) * len(targets)
            loss.backward()
        return float(loss.detach())

    return evaluate


def literal_greedy_variance(kernel: Kernel, X: FloatArray, m: int, seed: int) -> npt.NDArray[np.int64]:
    """Pivoted Cholesky in torch, one column at a time."""
    order = np.random.default_rng(seed).permutation(len(X))
    inputs = torch.tensor(X[order])
    kernel = kernel.for_inputs(X.shape[1])
    features = kernel.features(inputs, inputs.mean(0))
    residual = kernel.diagonal(features).clone()
    factor = inputs.new_empty(m, len(inputs))
    pivots = []
    for j in range(m):
        best = int(torch.argmax(residual))
        column = kernel.cross(features, features[best : best + 1])[:, 0]
        column -= factor[:j].T @ factor[:j, best]
        factor[j] = column / residual[best].sqrt()
        residual -= factor[j].square()
        residual[best] = -1.0
        pivots.append(best)
    return order[pivots]
