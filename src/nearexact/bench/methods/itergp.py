"""IterGP: an exact GP whose solves and determinants are estimated by conjugate gradients (Wang et al. 2019).

The linear algebra is GPyTorch's: preconditioned CG, stochastic Lanczos quadrature, the gradients of both. What is here
is the kernel matrix that it multiplies with, so that memory stays bounded, a preconditioner for the many solves of
predictions, and a record of how each solve went.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import gpytorch
import linear_operator
import numpy as np
import torch
from torch import Tensor

from nearexact.bench.methods.kernel_matrix import MOST_LANDMARKS, Covariance, Products, covariance
from nearexact.bench.methods.kernel_option import DEFAULT, hyperparameters, kernel_name
from nearexact.bench.protocol import Predict, Report, Task
from nearexact.gp import ExactObjective, NumericalError, Numerics, Step, minimise
from nearexact.gp.exact import exact_memory
from nearexact.gp.memory import row_chunks
from nearexact.gp.parameters import ParameterLayout
from nearexact.kernels import SquaredExponential
from nearexact.kernels.base import Kernel, Tensors
from nearexact.kernels.names import named_kernel
from nearexact.limits import is_out_of_memory, memory_budget
from nearexact.typing import FloatArray

START_NOISE = 0.1  # as in the paper, not as for the other methods
MOST_PROBES = 5  # sets of probe vectors, one after the other: what L-BFGS converges to depends on them a little
FEWEST_STEPS = 2  # with a new set of probe vectors, for another one to be tried
# Maddox et al. 2021 where they name a value, GPyTorch's defaults elsewhere, and no Cholesky however small the problem.
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


@dataclass
class TimedProducts(Products):
    """Products between which the clock can be looked at."""

    check_time: Callable[[], None] = lambda: None

    def times(self, rhs: Tensor) -> Tensor:
        """K_XX rhs."""
        self.check_time()
        return super().times(rhs)

    @contextmanager
    def timed(self, check_time: Callable[[], None]) -> Iterator[None]:
        """Look at the clock before every product."""
        self.check_time = check_time
        try:
            yield
        finally:
            self.check_time = lambda: None


class IterGP:
    """L-BFGS on the estimated log marginal likelihood, with probe vectors that stay the same until it converges."""

    name = "itergp"

    def __init__(
        self,
        noise_floor: float = 1e-5,
        most_landmarks: int = MOST_LANDMARKS,
        kernel: str = DEFAULT,
        **changed: float,
    ) -> None:
        unknown = sorted(set(changed) - set(SETTINGS))
        if unknown:
            own = ["kernel", "most_landmarks", "noise_floor"]
            raise ValueError(f"the settings are {sorted([*SETTINGS, *own])}, got {unknown}")
        self.noise_floor, self.most_landmarks, self.kernel = noise_floor, most_landmarks, kernel_name(kernel)
        self.settings = {**SETTINGS, **changed}

    def prepare(self) -> None:
        """An estimate on tiny data: GPyTorch imports much of what it needs at first use."""
        X = torch.arange(4.0, dtype=torch.float64)[:, None]
        kernel = SquaredExponential([1.0])
        with self._settings():
            _estimate(Products(X, kernel, 10**6), kernel, START_NOISE, X[:, 0], seed=0)

    def run(self, task: Task, report: Report) -> None:
        X, y = (torch.tensor(values, device=task.device) for values in (task.X_train, task.y_train))
        layout = ParameterLayout(named_kernel(self.kernel), X.shape[1], Numerics(floor=self.noise_floor))
        products = self._products(X, layout.kernel, task)
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
        products = self._products(X, kernel, task)
        y = torch.tensor(task.y_train, device=task.device)
        predict = _predictor(products, kernel, noise_variance, y, self.settings["eval_cg_tolerance"])
        return _Posterior(kernel, noise_variance, predict, self._settings)

    def _products(self, X: Tensor, kernel: Kernel, task: Task) -> TimedProducts:
        return TimedProducts(X, kernel, memory_budget(task.memory_limit, X.device), self.most_landmarks)

    def _settings(self) -> ExitStack:
        return gpytorch_settings(self.settings)

    def _optimise(
        self,
        layout: ParameterLayout,
        products: TimedProducts,
        y: Tensor,
        theta: FloatArray,
        seed: int,
        task: Task,
        report: Report,
    ) -> Any:
        def evaluate(at: FloatArray) -> tuple[float, FloatArray]:
            try:
                with products.timed(task.check_time):  # one evaluation may take longer than the whole budget
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
                stored=products.stored,
                exact_lml=lambda: exact_lml(kernel, noise_variance, task),
                **hyperparameters(self.kernel, lambda: (kernel, noise_variance)),
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


def _estimate(products: Products, kernel: Kernel, noise: float, y: Tensor, seed: int) -> tuple[float, Tensors, float]:
    """Log marginal likelihood and its derivatives, as GPyTorch estimates them."""
    parameters = {name: torch.tensor(value, device=y.device) for name, value in kernel.parameters.items()}
    leaves = [*parameters.values(), torch.tensor([noise], dtype=y.dtype, device=y.device)]
    for leaf in leaves:
        leaf.requires_grad_(True)
    K_hat = covariance(products, kernel, leaves)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)  # the same probe vectors again
        quadratic, log_det = K_hat.inv_quad_logdet(inv_quad_rhs=y[:, None], logdet=True)
    lml = -0.5 * (quadratic + log_det + len(y) * math.log(2.0 * math.pi))
    *by_parameter, by_noise = torch.autograd.grad(lml, leaves)
    return float(lml.detach()), dict(zip(parameters, by_parameter, strict=True)), float(by_noise.sum())


def _predictor(products: Products, kernel: Kernel, noise_variance: float, y: Tensor, tolerance: float) -> Predict:
    """The mean by one solve, as in training; the variances by a solve for each test point.

    So many solves are worth a better preconditioner, which changes the time that they take, not the tolerance.
    """
    ready: list[tuple[Tensor, Covariance]] = []  # from the first call on

    def prepare() -> tuple[Tensor, Covariance]:
        leaves = [*(torch.tensor(value, device=y.device) for value in kernel.parameters.values())]
        leaves.append(y.new_tensor([noise_variance]))
        weights = covariance(products, kernel, leaves).solve(y[:, None])[:, 0]
        preconditioner = products.preconditioner(noise_variance)
        return weights, covariance(products, kernel, leaves, preconditioner=preconditioner, new=False)

    def predict(X: FloatArray) -> tuple[Tensor, Tensor]:
        inputs = torch.tensor(X, device=y.device)
        with products.off_the_record(), torch.no_grad(), linear_operator.settings.cg_tolerance(tolerance):
            if not ready:
                ready.append(prepare())
            elif products.kernel is not kernel:  # training has gone on
                products.prepare(kernel)
            weights, K_hat = ready[0]
            mean, variance = y.new_empty(len(inputs)), y.new_empty(len(inputs))
            for rows in row_chunks(len(inputs), products.columns):
                features = kernel.features(inputs[rows], products.centre)
                K = kernel.cross(features, products.features)  # [rows, N]
                mean[rows] = K @ weights
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


def exact_lml(kernel: Kernel, noise_variance: float, task: Task) -> float:
    """What the estimate should be, where that can be computed: for the record, off the clock."""
    if exact_memory(kernel, len(task.y_train)) > memory_budget(task.memory_limit, torch.device("cpu")):
        return math.nan
    try:
        objective = ExactObjective(kernel, START_NOISE, task.X_train, task.y_train)
        return objective.factorise(kernel, noise_variance).lml
    except NumericalError:
        return math.nan


def gpytorch_settings(values: Mapping[str, float]) -> ExitStack:
    """GPyTorch's settings, by name: they are global while this context lasts. ValueError for what is no setting."""
    with ExitStack() as stack:
        for name, value in values.items():
            sources = (gpytorch.settings, linear_operator.settings)
            setting = next((found for source in sources if (found := getattr(source, name, None)) is not None), None)
            if not isinstance(setting, type):
                raise ValueError(f"GPyTorch has no setting {name!r}")
            stack.enter_context(setting(value))
        return stack.pop_all()
