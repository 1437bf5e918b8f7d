"""What several tests of the models share: random problems, literal algorithms, peers and a kernel with a defect."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import gpytorch
import numpy as np
import pytest
import torch
from hypothesis import strategies as st

from nearexact.kernels import Kernel, SquaredExponential
from nearexact.kernels.base import Form, Tensors
from nearexact.kernels.stationary import SquaredExponentialForm
from tests.problems import KERNELS

Problem = tuple[Kernel, float, np.ndarray, np.ndarray, int]


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    """A kernel with random parameters, a noise variance, data that need not look like a GP, and a number of points."""
    kernel = draw(st.sampled_from(list(KERNELS.values())))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    n = draw(st.integers(2, 40))
    X = rng.normal(size=(n, 3)) * draw(st.sampled_from([0.1, 1.0, 5.0]))
    if draw(st.booleans()):
        X[n // 2 :] = X[: n - n // 2]  # duplicated rows
    y = rng.normal(size=n) * draw(st.sampled_from([0.01, 1.0, 10.0]))
    changed = {name: value * np.exp(rng.normal(size=value.shape)) for name, value in kernel.parameters.items()}
    return kernel.with_parameters(changed), draw(st.sampled_from([1e-4, 0.01, 1.0])), X, y, draw(st.integers(1, n))


def slack(problem: Problem, lml: float) -> float:
    """Rounding errors of a log likelihood: eps times the condition number of K + sI, relative to its size."""
    kernel, s, X, _, _ = problem
    condition = 1.0 + kernel.diag(X).sum() / s
    return (1e-8 + 100.0 * np.finfo(float).eps * condition) * (1.0 + abs(lml))


def literal(kernel: Kernel, X: np.ndarray, m: int, seed: int) -> np.ndarray:
    """Pivoted Cholesky one column at a time, ties to the lowest position in a permutation drawn from the seed."""
    order = np.random.default_rng(seed).permutation(len(X))
    X = X[order]
    residual, factor, pivots = kernel.diag(X).copy(), np.zeros((len(X), m)), []
    least = 1e-12 * residual.max()
    for j in range(m):
        best = int(np.argmax(residual))
        if residual[best] <= least:
            break
        column = kernel(X, X[best : best + 1])[:, 0] - factor[:, :j] @ factor[best, :j]
        factor[:, j] = column / np.sqrt(residual[best])
        residual -= factor[:, j] ** 2
        residual[best] = -1.0
        pivots.append(best)
    return order[pivots]


def residuals_along(kernel: Kernel, X: np.ndarray, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """For each pivot its own residual variance given those before it, and the largest of all rows."""
    residual, factor = kernel.diag(X).copy(), np.zeros((len(X), len(indices)))
    own, largest = [], []
    for j, pivot in enumerate(indices):
        own.append(residual[pivot])
        largest.append(residual.max())
        if residual[pivot] > 0.0:
            column = kernel(X, X[pivot : pivot + 1])[:, 0] - factor[:, :j] @ factor[pivot, :j]
            factor[:, j] = column / np.sqrt(residual[pivot])
            residual = residual - factor[:, j] ** 2
        residual[pivot] = 0.0
    return np.array(own), np.array(largest)


def assert_gradient_is_right(
    objective: Callable[[np.ndarray], tuple[float, np.ndarray]],
    theta: np.ndarray,
    step: float = 1e-3,
    rel: float = 1e-3,
    which: Iterable[int] | None = None,
) -> None:
    """Against central differences, for all parameters or for some."""
    _, gradient = objective(theta)
    for i in range(len(theta)) if which is None else which:
        change = np.zeros_like(theta)
        change[i] = step
        expected = (objective(theta + change)[0] - objective(theta - change)[0]) / (2 * step)
        assert gradient[i] == pytest.approx(expected, rel=rel, abs=rel * np.abs(gradient).max())


class GPyTorchSGPR(gpytorch.models.ExactGP):  # type: ignore[misc]
    """GPyTorch's SGPR at given hyperparameters."""

    def __init__(self, X: torch.Tensor, y: torch.Tensor, Z: torch.Tensor, kernel: SquaredExponential, s: float) -> None:
        super().__init__(X, y, gpytorch.likelihoods.GaussianLikelihood())
        base = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel(ard_num_dims=X.shape[1]))
        self.mean_module = gpytorch.means.ZeroMean()
        self.covar_module = gpytorch.kernels.InducingPointKernel(base, Z.clone(), self.likelihood)
        self.double()
        base.base_kernel.lengthscale = torch.tensor(kernel.parameters["lengthscales"])
        base.outputscale = torch.tensor(kernel.parameters["variance"])
        self.likelihood.noise = torch.tensor(s, dtype=torch.float64)

    def forward(self, X: torch.Tensor) -> gpytorch.distributions.MultivariateNormal:
        return gpytorch.distributions.MultivariateNormal(self.mean_module(X), self.covar_module(X))

    def elbo_and_gradient(self) -> tuple[float, dict[str, np.ndarray]]:
        X, y = self.train_inputs[0], self.train_targets
        self.train()
        elbo = gpytorch.mlls.ExactMarginalLogLikelihood(self.likelihood, self)(self(X), y) * len(y)
        elbo.backward()
        base = self.covar_module.base_kernel
        raw = {
            "lengthscales": base.base_kernel.raw_lengthscale,
            "variance": base.raw_outputscale,
            "noise": self.likelihood.noise_covar.raw_noise,
        }
        return float(elbo.detach()), {n: (r.grad / torch.sigmoid(r)).detach().numpy().ravel() for n, r in raw.items()}


class DentedForm(SquaredExponentialForm):
    """k(x, x) a little too small, so that q(z, z) > k(z, z) at inducing points by far more than rounding noise."""

    def diagonal(self, p: Tensors, A: torch.Tensor) -> torch.Tensor:
        return super().diagonal(p, A) * 0.9997

    def diagonal_vjp(self, p: Tensors, A: torch.Tensor, weights: torch.Tensor) -> Tensors:
        return super().diagonal_vjp(p, A, weights * 0.9997)


@dataclass(frozen=True)
class Dented(SquaredExponential):
    """The squared exponential with such a diagonal."""

    def _form(self) -> Form:
        return DentedForm()


def dented_q(kernel: Kernel, X: np.ndarray, Z: np.ndarray) -> np.ndarray:
    """Q_XX as the models compute it: the dented diagonal is a part of K_ZZ."""
    K_ZZ = kernel(Z)
    np.fill_diagonal(K_ZZ, kernel.diag(Z) + 1e-10)
    return kernel(X, Z) @ np.linalg.solve(K_ZZ, kernel(Z, X))
