"""SVGP: a sparse GP trained on minibatches (Hensman et al. 2013), GPyTorch's implementation.

Settings are those of Ober et al., appendices C and E; every field of their grid is an option. The defaults are the best
that they found.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import gpytorch
import torch
from torch import Tensor

from nearexact.bench.methods.sgpr import SGPR
from nearexact.bench.protocol import Report, Task
from nearexact.gp import SparsePosterior, greedy_variance
from nearexact.kernels import SquaredExponential
from nearexact.kernels.base import Kernel
from nearexact.typing import FloatArray

MOST_INDUCING = 1000
START_NOISE, NOISE_FLOOR = 0.1, 1e-5
JITTER = 1e-8  # of K_ZZ. GPyTorch's own for double precision, 1e-6, is more than some data sets' noise
PLATEAU = {"patience": 10, "factor": 0.95, "threshold": 0.0, "min_lr": 1e-6}  # in epochs
MILESTONES = (100, 300, 1000, 3000, 10_000)  # steps
ROWS_AT_ONCE = 10_000  # of an evaluation


class SVGP:
    """Adam on minibatches, over hyperparameters, inducing locations and the variational distribution."""

    name = "svgp"

    def __init__(
        self,
        num_inducing: int | None = None,
        batch_size: int = 10_000,
        learning_rate: float = 0.1,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        scheduler: bool = True,
        max_steps: int = 20_000,
    ) -> None:
        for name, value in (("num_inducing", num_inducing or 1), ("batch_size", batch_size), ("max_steps", max_steps)):
            if type(value) is not int or value < 1:
                raise ValueError(f"{name} must be a whole number of at least 1, got {value!r}")
        self.num_inducing, self.batch_size, self.max_steps = num_inducing, batch_size, max_steps
        self.learning_rate, self.beta_1, self.beta_2, self.scheduler = learning_rate, beta_1, beta_2, scheduler

    def prepare(self) -> None:
        """A step on tiny data: GPyTorch and torch's optimisers import much of what they need at first use."""
        model = VariationalGP(torch.zeros(1, 1, dtype=torch.float64))
        optimiser = torch.optim.Adam(model.parameters())
        inputs = torch.zeros(2, 1, dtype=torch.float64)
        (-model.elbo_per_point(inputs, inputs[:, 0], 2)).backward()  # type: ignore[no-untyped-call]
        optimiser.step()

    def run(self, task: Task, report: Report) -> None:
        X, y = (torch.tensor(values, device=task.device) for values in (task.X_train, task.y_train))
        n = len(y)
        m = min(self.num_inducing or min(MOST_INDUCING, max(n // 2, 1)), n)
        rows = greedy_variance(SquaredExponential(), X, m, seed=task.seed)
        model = VariationalGP(X[torch.from_numpy(rows)])
        optimiser = torch.optim.Adam(model.parameters(), lr=self.learning_rate, betas=(self.beta_1, self.beta_2))
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimiser, **PLATEAU)  # type: ignore[arg-type]
        batch = min(self.batch_size, n)
        # Solve and products with the variational covariance, then twice that for the gradient.
        flops_of_step = 3.0 * (5.0 * len(rows) ** 2 * batch + len(rows) ** 3 / 3.0)

        def show(step: int) -> None:
            report(
                model.predict,
                elbo=lambda: model.elbo(X, y),
                m=len(rows),
                milestone=step in (*MILESTONES, self.max_steps),
                flops=step * flops_of_step,
                step=step,
                learning_rate=optimiser.param_groups[0]["lr"],
                lengthscales=lambda: model.covar_module.base_kernel.lengthscale[0].tolist(),
                variance=lambda: model.covar_module.outputscale.item(),
                noise_variance=model.noise_variance,
            )

        losses: list[float] = []
        for step, (inputs, targets, ends_epoch) in enumerate(_batches(X, y, batch, task.seed), start=1):
            optimiser.zero_grad()
            loss = -model.elbo_per_point(inputs, targets, n)
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
            losses.append(loss.item())
            if ends_epoch:
                if self.scheduler:
                    plateau.step(math.fsum(losses) / len(losses))
                losses.clear()
            show(step)
            if step == self.max_steps:
                break

    def at(self, task: Task, kernel: Kernel, noise_variance: float, m: int | None) -> SparsePosterior:
        """The best that it can do at given hyperparameters with m greedy points, which is SGPR's solution."""
        return SGPR().at(task, kernel, noise_variance, m)


class VariationalGP(gpytorch.models.ApproximateGP):  # type: ignore[misc]
    """GPyTorch's sparse variational GP, whitened, with m = 0 and chol(S) = I to start from."""

    def __init__(self, Z: Tensor) -> None:
        distribution = gpytorch.variational.CholeskyVariationalDistribution(len(Z), mean_init_std=0.0)
        strategy = gpytorch.variational.VariationalStrategy(
            self, Z.clone(), distribution, learn_inducing_locations=True, jitter_val=JITTER
        )
        super().__init__(strategy)
        self.mean_module = gpytorch.means.ZeroMean()
        self.covar_module = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel(ard_num_dims=Z.shape[1]))
        self.likelihood = gpytorch.likelihoods.GaussianLikelihood(
            noise_constraint=gpytorch.constraints.GreaterThan(NOISE_FLOOR)
        )
        self.to(dtype=Z.dtype, device=Z.device)
        self.covar_module.outputscale = 1.0
        self.covar_module.base_kernel.lengthscale = 1.0
        self.likelihood.noise = START_NOISE

    def forward(self, X: Tensor) -> Any:
        return gpytorch.distributions.MultivariateNormal(self.mean_module(X), self.covar_module(X))

    @property
    def noise_variance(self) -> float:
        return float(self.likelihood.noise.detach())

    def elbo_per_point(self, X: Tensor, y: Tensor, n: int) -> Tensor:
        """An unbiased estimate of ELBO/N from a minibatch."""
        self.train()
        bound: Tensor = gpytorch.mlls.VariationalELBO(self.likelihood, self, num_data=n)(self(X), y)
        return bound

    def elbo(self, X: Tensor, y: Tensor) -> float:
        """The bound for all data."""
        self.eval()
        with torch.no_grad():
            parts = [
                float(self.likelihood.expected_log_prob(y[rows], self(X[rows])).sum()) for rows in _row_slices(len(y))
            ]
            return math.fsum(parts) - float(self.variational_strategy.kl_divergence())

    def predict(self, X: FloatArray) -> tuple[Tensor, Tensor]:
        """Mean and variance of new observations."""
        self.eval()
        inputs = torch.tensor(X, device=self.likelihood.noise.device)
        with torch.no_grad():
            parts = [self(inputs[rows]) for rows in _row_slices(len(inputs))]
            mean, variance = (torch.cat([getattr(part, name) for part in parts]) for name in ("mean", "variance"))
        return mean, variance + self.noise_variance


def _row_slices(n: int) -> list[slice]:
    return [slice(first, first + ROWS_AT_ONCE) for first in range(0, n, ROWS_AT_ONCE)]


def _batches(X: Tensor, y: Tensor, size: int, seed: int) -> Iterator[tuple[Tensor, Tensor, bool]]:
    """Minibatches without end, each epoch in a new order, and whether one is the last of its epoch."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        order = torch.randperm(len(y), generator=generator).to(X.device)
        for first in range(0, len(y), size):
            rows = order[first : first + size]
            yield X[rows], y[rows], first + size >= len(y)
