"""SVGP: a sparse GP trained on minibatches (Hensman et al. 2013), GPyTorch's implementation.

Settings are those of Ober et al., appendices C and E; every field of their grid is an option. The defaults are the best
that they found. As there, numerical safety is SGPR's: its ladder of jitter, its floor under every hyperparameter, and a
way back from steps that lead where nothing can be computed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import gpytorch
import torch
from linear_operator.operators import LinearOperator, TriangularLinearOperator
from linear_operator.utils.cholesky import psd_safe_cholesky
from linear_operator.utils.errors import NanError, NotPSDError
from torch import Tensor

from nearexact.bench.methods.gpytorch_kernels import as_module, read_back
from nearexact.bench.methods.kernel_option import DEFAULT, hyperparameters, kernel_name
from nearexact.bench.methods.sgpr import SGPR, training_data
from nearexact.bench.protocol import Report, Task
from nearexact.gp import NumericalError, SparsePosterior, greedy_variance
from nearexact.gp.flops import feature_count, kernel_flops, kernel_gradient_flops
from nearexact.gp.safety import DEFAULT_NUMERICS
from nearexact.kernels import SquaredExponential
from nearexact.kernels.base import Kernel
from nearexact.kernels.names import named_kernel
from nearexact.typing import FloatArray

MOST_INDUCING = 1000
START_NOISE = 0.1
PLATEAU = {"patience": 10, "factor": 0.95, "threshold": 0.0, "min_lr": 1e-6}  # in epochs
MILESTONES = (100, 300, 1000, 3000, 10_000)  # steps
ROWS_AT_ONCE = 10_000  # of an evaluation
MOST_RETURNS = 20  # in a row to the same step, each with half the learning rate


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
        kernel: str = DEFAULT,
    ) -> None:
        for name, value in (("num_inducing", num_inducing or 1), ("batch_size", batch_size), ("max_steps", max_steps)):
            if type(value) is not int or value < 1:
                raise ValueError(f"{name} must be a whole number of at least 1, got {value!r}")
        self.num_inducing, self.batch_size, self.max_steps = num_inducing, batch_size, max_steps
        self.learning_rate, self.beta_1, self.beta_2, self.scheduler = learning_rate, beta_1, beta_2, scheduler
        self.kernel = kernel_name(kernel)
        as_module(named_kernel(self.kernel).for_inputs(1))  # refuses what GPyTorch does not have

    def prepare(self) -> None:
        """A step on tiny data: GPyTorch and torch's optimisers import much of what they need at first use."""
        model = VariationalGP(torch.zeros(1, 1, dtype=torch.float64))
        optimiser = torch.optim.Adam(model.parameters())
        inputs = torch.zeros(2, 1, dtype=torch.float64)
        (-model.elbo_per_point(inputs, inputs[:, 0], 2)).backward()  # type: ignore[no-untyped-call]
        optimiser.step()

    def run(self, task: Task, report: Report) -> None:
        X, y = training_data(task)
        n, kernel = len(y), named_kernel(self.kernel).for_inputs(X.shape[1])
        m = min(self.num_inducing or min(MOST_INDUCING, max(n // 2, 1)), n)
        rows = greedy_variance(kernel, X, m, seed=task.seed)
        model = VariationalGP(X[torch.from_numpy(rows)], kernel)
        optimiser = torch.optim.Adam(model.parameters(), lr=self.learning_rate, betas=(self.beta_1, self.beta_2))
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimiser, **PLATEAU)  # type: ignore[arg-type]
        batch = min(self.batch_size, n)
        flops_of_step = _flops_of_step(batch, len(rows), feature_count(kernel, X))
        way_back = WayBack(model, optimiser)

        def show(step: int) -> None:
            report(
                model.predict,
                elbo=lambda: model.elbo(X, y),
                m=len(rows),
                milestone=step in (*MILESTONES, self.max_steps),
                flops=step * flops_of_step,
                step=step,
                learning_rate=optimiser.param_groups[0]["lr"],
                returns=way_back.returns,
                **hyperparameters(self.kernel, lambda: (read_back(model.covar_module, kernel), model.noise_variance)),
            )

        losses: list[float] = []
        for step, (inputs, targets, ends_epoch) in enumerate(_batches(X, y, batch, task.seed), start=1):
            try:
                optimiser.zero_grad()
                loss = model.loss(inputs, targets, n)
                loss.backward()  # type: ignore[no-untyped-call]
                way_back.keep()
                optimiser.step()
                losses.append(loss.item())
                if ends_epoch and self.scheduler:
                    plateau.step(math.fsum(losses) / len(losses))
                show(step)  # where it may turn out that this step has led nowhere
            except NumericalError as error:
                way_back.take(error)
            if ends_epoch:
                losses.clear()
            if step == self.max_steps:
                break

    def at(self, task: Task, kernel: Kernel, noise_variance: float, m: int | None) -> SparsePosterior:
        """The best that it can do at given hyperparameters with m greedy points, which is SGPR's solution."""
        return SGPR().at(task, kernel, noise_variance, m)


class WayBack:
    """Undoes steps of Adam that lead where nothing can be computed, and halves the learning rate each time."""

    def __init__(self, model: torch.nn.Module, optimiser: torch.optim.Optimizer) -> None:
        self._optimiser, self._parameters = optimiser, list(model.parameters())
        self._kept: list[tuple[Tensor, dict[str, Tensor]]] = []  # values and Adam's moments, before the last step
        self.returns = self._in_a_row = 0

    def keep(self) -> None:
        """Remember where things stand: here the loss could be computed."""
        self._in_a_row = 0
        self._kept = [
            (p.detach().clone(), {name: value.clone() for name, value in self._optimiser.state[p].items()})
            for p in self._parameters
        ]

    def take(self, error: NumericalError) -> None:
        """Go back to what was kept last; the error itself where that does not help."""
        self.returns, self._in_a_row = self.returns + 1, self._in_a_row + 1
        if not self._kept or self._in_a_row > MOST_RETURNS:
            raise error
        for parameter, (value, moments) in zip(self._parameters, self._kept, strict=True):
            parameter.data.copy_(value)
            self._optimiser.state[parameter] = {name: moment.clone() for name, moment in moments.items()}
        for group in self._optimiser.param_groups:
            group["lr"] *= 0.5


class LadderStrategy(gpytorch.variational.VariationalStrategy):  # type: ignore[misc]
    """GPyTorch's strategy with SGPR's ladder of jitter: its first step is always on the diagonal of K_ZZ."""

    def _cholesky_factor(self, induc_induc_covar: LinearOperator) -> TriangularLinearOperator:
        numerics = DEFAULT_NUMERICS
        second, others = numerics.first_jitter * numerics.jitter_factor, numerics.cholesky_attempts - 1
        L = psd_safe_cholesky(induc_induc_covar.to_dense(), jitter=second, max_tries=others)
        return TriangularLinearOperator(L)


class VariationalGP(gpytorch.models.ApproximateGP):  # type: ignore[misc]
    """GPyTorch's sparse variational GP, whitened, with m = 0 and chol(S) = I to start from."""

    def __init__(self, Z: Tensor, kernel: Kernel | None = None) -> None:
        distribution = gpytorch.variational.CholeskyVariationalDistribution(len(Z), mean_init_std=0.0)
        jitter, floor = DEFAULT_NUMERICS.first_jitter, DEFAULT_NUMERICS.floor
        super().__init__(LadderStrategy(self, Z.clone(), distribution, jitter_val=jitter))
        self.mean_module = gpytorch.means.ZeroMean()
        self.covar_module = as_module((kernel or SquaredExponential()).for_inputs(Z.shape[1]), floor)
        self.likelihood = gpytorch.likelihoods.GaussianLikelihood(
            noise_constraint=gpytorch.constraints.GreaterThan(floor)
        )
        self.to(dtype=Z.dtype, device=Z.device)
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

    def loss(self, X: Tensor, y: Tensor, n: int) -> Tensor:
        """Its negative; NumericalError where that cannot be computed."""
        with _numerical_errors():
            loss = -self.elbo_per_point(X, y, n)
        return _finite(loss)

    def elbo(self, X: Tensor, y: Tensor) -> float:
        """The bound for all data; NumericalError where that cannot be computed."""
        self.eval()
        with torch.no_grad(), _numerical_errors():
            parts = [self.likelihood.expected_log_prob(y[rows], self(X[rows])).sum() for rows in _row_slices(len(y))]
            return float(_finite(torch.stack(parts).sum() - self.variational_strategy.kl_divergence()))

    def predict(self, X: FloatArray) -> tuple[Tensor, Tensor]:
        """Mean and variance of new observations."""
        self.eval()
        inputs = torch.tensor(X, device=self.likelihood.noise.device)
        with torch.no_grad():
            parts = [self(inputs[rows]) for rows in _row_slices(len(inputs))]
            mean, variance = (torch.cat([getattr(part, name) for part in parts]) for name in ("mean", "variance"))
        return mean, variance + self.noise_variance


@contextmanager
def _numerical_errors() -> Iterator[None]:
    """GPyTorch's errors of this kind as ours."""
    try:
        yield
    except (NotPSDError, NanError) as error:
        raise NumericalError(str(error)) from error


def _finite(value: Tensor) -> Tensor:
    if not value.isfinite():
        raise NumericalError(f"the bound is {value.item()}")
    return value


def _flops_of_step(batch: int, m: int, features: int) -> float:
    """L⁻¹K_ZX and its product with S, and of size M the factor L and S = L_S L_Sᵀ; all of that with gradients."""
    over_rows, squares = 7.0 * m**2 * batch, 16.0 / 3.0 * m**3
    kernels = kernel_flops(batch + m, m, features) + kernel_gradient_flops(batch + m, m, features)
    return over_rows + squares + kernels


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
