"""IterGP: an exact GP whose solves and determinants are estimated by conjugate gradients (Wang et al. 2019).

The linear algebra is GPyTorch's: preconditioned CG, stochastic Lanczos quadrature, the gradients of both. What is here
is the kernel matrix that it multiplies with, so that memory stays bounded, and a record of how each solve went.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import gpytorch
import linear_operator
import numpy as np
import torch
from linear_operator.operators import AddedDiagLinearOperator, ConstantDiagLinearOperator, LinearOperator
from torch import Tensor

from nearexact.bench.protocol import Predict, Report, Task
from nearexact.gp import ExactObjective, NumericalError, Numerics, Step, minimise
from nearexact.gp.chunks import chunk_rows, row_chunks
from nearexact.gp.exact_training import exact_memory
from nearexact.gp.parameters import ParameterLayout
from nearexact.kernels import SquaredExponential
from nearexact.kernels.base import FloatArray, Kernel, Tensors
from nearexact.limits import is_out_of_memory, memory_budget

START_NOISE = 0.1  # as in the paper, not as for the other methods
MOST_PROBES = 5  # sets of probe vectors, one after the other: what L-BFGS converges to depends on them a little
FEWEST_STEPS = 2  # with a new set of probe vectors, for another one to be tried
COLUMNS_AT_ONCE = 2048  # right-hand sides that are solved for together
# Maddox et al. 2021 where they say so, GPyTorch's defaults elsewhere, and no Cholesky however small the problem.
SETTINGS = {
    "cg_tolerance": 0.01,
    "eval_cg_tolerance": 0.01,
    "max_preconditioner_size": 100,
    "min_preconditioning_size": 2000,
    "max_cg_iterations": 1000,
    "max_lanczos_quadrature_iterations": 20,
    "num_trace_samples": 10,
    "max_cholesky_size": 0,
}


class IterGP:
    """L-BFGS on the estimated log marginal likelihood, with probe vectors that stay the same until it converges."""

    name = "itergp"

    def __init__(self, noise_floor: float = 1e-5, **changed: float) -> None:
        unknown = sorted(set(changed) - set(SETTINGS))
        if unknown:
            raise ValueError(f"the settings are {sorted(SETTINGS)}, got {unknown}")
        self.noise_floor = noise_floor
        self.settings = {**SETTINGS, **changed}

    def prepare(self) -> None:
        """An estimate for next to nothing: GPyTorch imports much of what it needs at first use."""
        X = torch.arange(4.0, dtype=torch.float64)[:, None]
        kernel = SquaredExponential([1.0])
        with self._settings():
            _estimate(_Products(X, kernel, 10**6), kernel, START_NOISE, X[:, 0], seed=0)

    def run(self, task: Task, report: Report) -> None:
        X, y = (torch.tensor(values, device=task.device) for values in (task.X_train, task.y_train))
        layout = ParameterLayout(SquaredExponential(), X.shape[1], Numerics(floor=self.noise_floor))
        products = _Products(X, layout.kernel, memory_budget(task.memory_limit, X.device))
        theta = layout.pack(layout.kernel, START_NOISE)
        with self._settings():
            for probes in range(MOST_PROBES):
                seed = int(np.random.SeedSequence([task.seed, probes]).generate_state(1)[0])
                optimum = self._optimise(layout, products, y, theta, seed, task, report)
                theta = optimum.theta
                if optimum.iterations < FEWEST_STEPS:
                    break

    def at(self, task: Task, kernel: Kernel, noise_variance: float, m: int | None) -> _Posterior:
        """Its predictions at given hyperparameters."""
        X = torch.tensor(task.X_train, device=task.device)
        products = _Products(X, kernel, memory_budget(task.memory_limit, X.device))
        y = torch.tensor(task.y_train, device=task.device)
        predict = _predictor(products, kernel, noise_variance, y, self.settings["eval_cg_tolerance"])
        return _Posterior(kernel, noise_variance, predict, self._settings)

    def _settings(self) -> ExitStack:
        """GPyTorch's settings are global while a context lasts."""
        with ExitStack() as stack:
            for name, value in self.settings.items():
                source = gpytorch.settings if hasattr(gpytorch.settings, name) else linear_operator.settings
                stack.enter_context(getattr(source, name)(value))
            return stack.pop_all()

    def _optimise(
        self,
        layout: ParameterLayout,
        products: _Products,
        y: Tensor,
        theta: FloatArray,
        seed: int,
        task: Task,
        report: Report,
    ) -> Any:
        def evaluate(at: FloatArray) -> tuple[float, FloatArray]:
            try:
                return layout.negated(lambda kernel, s: _estimate(products, kernel, s, y, seed), at)
            except RuntimeError as error:  # NaN in a product, a preconditioner that is not positive definite, ...
                if is_out_of_memory(error):
                    raise
                raise NumericalError(str(error)) from error

        def show(at: FloatArray, value: float, **more: Any) -> None:
            kernel, noise_variance = layout.unpack(at)
            report(
                _predictor(products, kernel, noise_variance, y, self.settings["eval_cg_tolerance"]),
                elbo=-value,
                flops=products.flops,
                lengthscales=kernel.parameters["lengthscales"].tolist(),
                variance=float(kernel.parameters["variance"]),
                noise_variance=noise_variance,
                stored=products.stored,
                exact_lml=_exact_lml(layout, at, task),
                **(products.last_solve.record() if products.last_solve else {}),
                **more,
            )

        def after_step(step: Step) -> None:
            show(step.theta, step.value)

        optimum = minimise(evaluate, theta, callback=after_step)
        show(
            optimum.theta,
            optimum.value,
            milestone=True,
            stopped=optimum.reason,
            restarts=optimum.restarts,
        )
        return optimum


def _estimate(products: _Products, kernel: Kernel, noise: float, y: Tensor, seed: int) -> tuple[float, Tensors, float]:
    """Log marginal likelihood and its derivatives, as GPyTorch estimates them."""
    parameters = {name: torch.tensor(value, device=y.device) for name, value in kernel.parameters.items()}
    leaves = [*parameters.values(), torch.tensor([noise], dtype=y.dtype, device=y.device)]
    for leaf in leaves:
        leaf.requires_grad_(True)
    K_hat = _covariance(products, kernel, leaves)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)  # the same probe vectors again
        quadratic, log_det = K_hat.inv_quad_logdet(inv_quad_rhs=y[:, None], logdet=True)
    lml = -0.5 * (quadratic + log_det + len(y) * math.log(2.0 * math.pi))
    *by_parameter, by_noise = torch.autograd.grad(lml, leaves)
    return float(lml.detach()), dict(zip(parameters, by_parameter, strict=True)), float(by_noise.sum())


def _predictor(products: _Products, kernel: Kernel, noise_variance: float, y: Tensor, tolerance: float) -> Predict:
    """Mean and variances by solves with the test points' covariances."""
    weights: list[Tensor] = []

    def predict(X: FloatArray) -> tuple[Tensor, Tensor]:
        inputs = torch.tensor(X, device=y.device)
        with products.off_the_record(), torch.no_grad(), linear_operator.settings.cg_tolerance(tolerance):
            leaves = [torch.tensor(value, device=y.device) for value in kernel.parameters.values()]
            K_hat = _covariance(products, kernel, [*leaves, y.new_tensor([noise_variance])], new=not weights)
            if not weights:
                weights.append(K_hat.solve(y[:, None])[:, 0])
            mean, variance = y.new_empty(len(inputs)), y.new_empty(len(inputs))
            for rows in row_chunks(len(inputs), COLUMNS_AT_ONCE):
                features = kernel.features(inputs[rows], products.centre)
                K = kernel.cross(features, products.features)  # [rows, N]
                mean[rows] = K @ weights[0]
                variance[rows] = kernel.diagonal(features) - (K * K_hat.solve(K.T.contiguous()).T).sum(1)
        least = gpytorch.settings.min_variance.value(variance.dtype)  # as GPyTorch does with what CG leaves below zero
        return mean, variance.clamp_(min=least) + noise_variance

    return predict


@dataclass(frozen=True)
class _Posterior:
    """Latent marginals, as the posteriors of `nearexact.gp` give them."""

    kernel: Kernel
    noise_variance: float
    observations: Predict
    settings: Callable[[], ExitStack]

    def predict(self, X: FloatArray) -> tuple[Tensor, Tensor]:
        with self.settings():
            mean, variance = self.observations(X)
        return mean, variance - self.noise_variance


def _exact_lml(layout: ParameterLayout, theta: FloatArray, task: Task) -> Callable[[], float]:
    """What the estimate should be, where that can be computed: for the record, off the clock."""

    def compute() -> float:
        kernel, noise_variance = layout.unpack(theta)
        if exact_memory(kernel, len(task.y_train)) > memory_budget(task.memory_limit, torch.device("cpu")):
            return math.nan
        try:
            return (
                ExactObjective(kernel, noise_variance, task.X_train, task.y_train).factorise(*layout.unpack(theta)).lml
            )
        except NumericalError:
            return math.nan

    return compute


@dataclass
class _Products:
    """Products with K_XX at changing hyperparameters: from the matrix where it fits into memory, else computed anew."""

    X: Tensor
    kernel: Kernel
    memory: int
    K: Tensor | None = None  # [N, N]
    flops: float = 0.0
    count: int = 0
    last_solve: _Solve | None = None

    def __post_init__(self) -> None:
        self.centre = self.X.mean(0)
        self.features = self.kernel.features(self.X, self.centre)
        n = len(self.X)
        # The matrix itself, and vectors for CG: a handful for each right-hand side.
        self.stored = 8 * n * (n + 8 * COLUMNS_AT_ONCE) <= self.memory
        self.keops = importlib.util.find_spec("pykeops") is not None

    def prepare(self, kernel: Kernel) -> None:
        """Change the hyperparameters."""
        self.kernel = kernel
        if self.stored:
            n = len(self.X)
            if self.K is None:
                self.K = self.X.new_empty(n, n)
            cross = kernel.against(self.features)
            for rows in row_chunks(n, chunk_rows(n)):
                cross.values(self.features[rows], out=self.K[rows])
            self.K.diagonal().copy_(kernel.diagonal(self.features))

    @contextmanager
    def off_the_record(self) -> Iterator[None]:
        """Work that is no training: it is not counted."""
        flops = self.flops
        yield
        self.flops = flops

    def times(self, rhs: Tensor) -> Tensor:
        """K_XX rhs."""
        n, columns = rhs.shape
        self.count += 1
        self.flops += 2.0 * n * n * columns
        if self.K is not None:
            return self.K @ rhs
        if self.keops:
            return _keops_product(self.X, self.kernel, rhs)
        result, cross = torch.empty_like(rhs), self.kernel.against(self.features)
        for rows in row_chunks(n, chunk_rows(n)):
            torch.mm(cross.values(self.features[rows]), rhs, out=result[rows])
        return result

    def derivative(self, left: Tensor, right: Tensor) -> Tensors:
        """Derivatives of Σ (left rightᵀ) ∘ K_XX by the kernel's parameters."""
        cross = self.kernel.against(self.features)
        for rows in row_chunks(len(self.X), chunk_rows(len(self.X))):
            cross.add_adjoint(self.features[rows], left[rows] @ right.T)
        self.flops += 2.0 * len(self.X) ** 2 * left.shape[1]
        return cross.gradients()


def _keops_product(X: Tensor, kernel: Kernel, rhs: Tensor) -> Tensor:
    """K_XX rhs of the squared exponential kernel, by KeOps: no block of the matrix is ever in memory."""
    from pykeops.torch import LazyTensor

    inputs = X / torch.tensor(kernel.parameters["lengthscales"], device=X.device)
    distances = ((LazyTensor(inputs[:, None, :]) - LazyTensor(inputs[None, :, :])) ** 2).sum(-1)
    product: Tensor = (-0.5 * distances).exp() @ rhs.contiguous()
    return product * float(kernel.parameters["variance"])


class _KernelMatrix(LinearOperator):  # type: ignore[misc]
    """K_XX as GPyTorch wants it: its differentiable arguments are lengthscales and variance."""

    def __init__(self, lengthscales: Tensor, variance: Tensor, *, products: _Products) -> None:
        super().__init__(lengthscales, variance, products=products)
        self.lengthscales, self.variance, self.products = lengthscales, variance, products

    def _size(self) -> torch.Size:
        return torch.Size([len(self.products.X)] * 2)

    def _transpose_nonbatch(self) -> _KernelMatrix:
        return self

    def _matmul(self, rhs: Tensor) -> Tensor:
        return self.products.times(rhs[:, None])[:, 0] if rhs.ndim == 1 else self.products.times(rhs)

    def _diagonal(self) -> Tensor:
        return self.variance.expand(len(self.products.X))

    def _get_indices(self, row_index: Tensor, col_index: Tensor, *_: Any) -> Tensor:
        X = self.products.X
        squares = (X[row_index] - X[col_index]).div_(self.lengthscales).square().sum(-1)
        return self.variance * torch.exp(-0.5 * squares)

    def _bilinear_derivative(self, left_vecs: Tensor, right_vecs: Tensor) -> tuple[Tensor, ...]:
        gradients = self.products.derivative(left_vecs, right_vecs)
        return gradients["lengthscales"], gradients["variance"]


class _Covariance(AddedDiagLinearOperator):  # type: ignore[misc]
    """K_XX + sI that tells how its solves went."""

    def _solve(
        self, rhs: Tensor, preconditioner: Callable[[Tensor], Tensor] | None = None, num_tridiag: int | None = 0
    ) -> Any:
        products: _Products = self._linear_op.products
        before = products.count
        result = super()._solve(rhs, preconditioner, num_tridiag=num_tridiag)
        if num_tridiag:  # while training
            iterations = products.count - before - 1  # without the product for the first residual
            products.last_solve = _Solve(
                products, products.kernel, float(self._diag_tensor._diag[0]), rhs, result[0], iterations
            )
        return result


@dataclass(frozen=True, eq=False)
class _Solve:
    """The last solve of training, for the record."""

    products: _Products
    kernel: Kernel
    noise_variance: float
    rhs: Tensor  # the probe vectors, then y  [N, probes + 1]
    solution: Tensor  # [N, probes + 1]
    iterations: int

    def record(self) -> dict[str, Any]:
        """For the trace; the residuals take a product and are computed if the point is recorded."""
        return {
            "cg_iterations": self.iterations,
            "cg_residual": lambda: float(self.residuals[-1]),
            "cg_residual_mean": lambda: float(self.residuals.mean()),
        }

    @cached_property
    def residuals(self) -> Tensor:
        """Norms of what is left of each right-hand side, relative to its own."""
        with self.products.off_the_record(), torch.no_grad():
            if self.products.kernel is not self.kernel:
                self.products.prepare(self.kernel)
            left = self.rhs - self.products.times(self.solution) - self.noise_variance * self.solution
        norms: Tensor = left.norm(dim=0) / self.rhs.norm(dim=0)
        return norms


def _covariance(products: _Products, kernel: Kernel, leaves: list[Tensor], *, new: bool = True) -> _Covariance:
    """K_XX + sI at these hyperparameters: lengthscales, variance, noise variance."""
    if new:
        products.prepare(kernel)
    *parameters, noise = leaves
    n = len(products.X)
    return _Covariance(_KernelMatrix(*parameters, products=products), ConstantDiagLinearOperator(noise, diag_shape=n))
