"""IterGP as the paper ran it: GPyTorch's exact GP as it comes, with the settings of Maddox et al. (2021).

No rescue of ours: what GPyTorch or the optimiser cannot do ends the run. docs/methods.md says which settings have a
source and which are ours. `itergp` is the same approximation, made to work better.
"""

from __future__ import annotations

import warnings
from contextlib import ExitStack
from typing import Any

import gpytorch
import torch
from gpytorch.mlls import ExactMarginalLogLikelihood
from scipy.optimize import OptimizeResult, minimize
from torch import Tensor

from nearexact.bench.methods.gpytorch_kernels import as_module, read_back
from nearexact.bench.methods.itergp import START_NOISE, exact_lml, gpytorch_settings
from nearexact.bench.methods.kernel_option import DEFAULT, hyperparameters, kernel_name
from nearexact.bench.methods.sgpr import training_data
from nearexact.bench.protocol import Report, Task
from nearexact.kernels.base import Kernel
from nearexact.kernels.names import named_kernel
from nearexact.typing import FloatArray

# Maddox et al. 2021: tolerance and rank of the Lanczos root from their abstract, the preconditioner from their code.
SETTINGS = {"cg_tolerance": 0.01, "eval_cg_tolerance": 0.01, "max_preconditioner_size": 100}
ROOT_SIZE = 5000
EVALUATE_EVERY = 5  # iterations, as in Ober et al., appendix E


class PaperIterGP:
    """L-BFGS-B on GPyTorch's estimate of the log marginal likelihood, variances from one Lanczos root.

    `settings` are further settings of GPyTorch, by their names there.
    """

    name = "itergp-paper"

    def __init__(
        self,
        kernel: str = DEFAULT,
        max_root_decomposition_size: int = ROOT_SIZE,
        evaluate_every: int = EVALUATE_EVERY,
        **settings: float,
    ) -> None:
        for name, value in (
            ("max_root_decomposition_size", max_root_decomposition_size), ("evaluate_every", evaluate_every),
        ):  # fmt: skip
            if type(value) is not int or value < 1:
                raise ValueError(f"{name} must be a whole number of at least 1, got {value!r}")
        self.kernel, self.evaluate_every = kernel_name(kernel), evaluate_every
        self.max_root_decomposition_size, self.settings = max_root_decomposition_size, {**SETTINGS, **settings}
        as_module(named_kernel(self.kernel).for_inputs(1))  # refuses what GPyTorch does not have
        self._settings().close()  # and this, settings that it does not have

    def prepare(self) -> None:
        """An estimate and a prediction on tiny data: GPyTorch imports much of what it needs at first use."""
        X = torch.arange(4.0, dtype=torch.float64)[:, None]
        model = ExactGP(X, X[:, 0], named_kernel(self.kernel).for_inputs(1))
        with gpytorch_settings({**self.settings, "max_cholesky_size": 0}):
            model.objective(model.theta(), seed=0)
            model.predict(X.numpy())

    def run(self, task: Task, report: Report) -> None:
        X, y = training_data(task)
        kernel = named_kernel(self.kernel).for_inputs(X.shape[1])
        model, steps = ExactGP(X, y, kernel), 0

        def show(value: float, **more: Any) -> None:
            now, noise_variance = read_back(model.covar_module, kernel), model.noise_variance
            with gpytorch_settings({"max_root_decomposition_size": self.max_root_decomposition_size}):
                report(
                    model.predict,
                    elbo=-len(y) * value,
                    milestone=True,
                    iterations=steps,
                    exact_lml=lambda: exact_lml(now, noise_variance, task),
                    **hyperparameters(self.kernel, lambda: (now, noise_variance)),
                    **more,
                )

        def after_step(intermediate_result: OptimizeResult) -> None:
            nonlocal steps
            steps += 1
            if steps % self.evaluate_every == 0 or task.seconds_left() <= 0.0:
                model.set_theta(intermediate_result.x)
                show(intermediate_result.fun)

        with self._settings():
            optimum = minimize(model.objective, model.theta(), (task.seed,), "L-BFGS-B", jac=True, callback=after_step)
            model.set_theta(optimum.x)
            show(optimum.fun, stopped=str(optimum.message))

    def _settings(self) -> ExitStack:
        return gpytorch_settings(self.settings)


class ExactGP(gpytorch.models.ExactGP):  # type: ignore[misc]
    """GPyTorch's exact GP with mean zero, its noise floor of 1e-4, and all parameters as one vector."""

    def __init__(self, X: Tensor, y: Tensor, kernel: Kernel) -> None:
        likelihood = gpytorch.likelihoods.GaussianLikelihood().to(X)
        likelihood.noise = START_NOISE
        super().__init__(X, y, likelihood)
        self.mean_module = gpytorch.means.ZeroMean()
        self.covar_module = as_module(kernel).to(X)

    def forward(self, X: Tensor) -> Any:
        return gpytorch.distributions.MultivariateNormal(self.mean_module(X), self.covar_module(X))

    @property
    def noise_variance(self) -> float:
        return float(self.likelihood.noise.detach())

    def theta(self) -> FloatArray:
        """All raw parameters."""
        vector = torch.nn.utils.parameters_to_vector(self.parameters())
        return _array(vector.detach())

    def set_theta(self, theta: FloatArray) -> None:
        """Take these raw parameters."""
        values = torch.tensor(theta, device=self.train_targets.device)
        torch.nn.utils.vector_to_parameters(values, self.parameters())

    def objective(self, theta: FloatArray, seed: int) -> tuple[float, FloatArray]:
        """−LML/N as GPyTorch estimates it, always with the same probe vectors, and its gradient."""
        self.set_theta(theta)
        self.train()
        self.zero_grad()
        with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that CG has not converged is said by the results
            torch.manual_seed(seed)
            mll = ExactMarginalLogLikelihood(self.likelihood, self)
            loss = -mll(self(*self.train_inputs), self.train_targets)
            loss.backward()
        gradient = torch.nn.utils.parameters_to_vector([p.grad for p in self.parameters()])
        return float(loss.detach()), _array(gradient)

    def predict(self, X: FloatArray) -> tuple[Tensor, Tensor]:
        """Mean and variance of new observations; root and weights are kept until training goes on."""
        self.eval()
        inputs = torch.tensor(X, device=self.train_targets.device)
        with torch.no_grad(), gpytorch.settings.fast_pred_var(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # as above, and that some variances are below zero
            latent = self(inputs)
            return latent.mean, latent.variance + self.noise_variance


def _array(vector: Tensor) -> FloatArray:
    array: FloatArray = vector.cpu().numpy().copy()
    return array
