"""Bayesian optimisation with a nearexact model: by BoTorch if it is installed, else, or with --torch, by torch alone.

`as_botorch_model` is all that BoTorch needs: its acquisition functions for one candidate at a time then work.
"""

from __future__ import annotations

import importlib.util
import math
import sys
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nearexact import GPRegressor

BOUNDS = torch.tensor([[-5.0, 0.0], [10.0, 15.0]], dtype=torch.float64)
EVALUATIONS = 12
STARTS = 8


def branin(X: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Negative, so that its maximum, -0.398, is looked for."""
    x, z = X[:, 0], X[:, 1]
    curve = z - 5.1 / (4.0 * math.pi**2) * x**2 + 5.0 / math.pi * x - 6.0
    return np.asarray(-(curve**2 + 10.0 * (1.0 - 1.0 / (8.0 * math.pi)) * np.cos(x) + 10.0))


def as_botorch_model(model: GPRegressor) -> Any:
    """A fitted model as a BoTorch model with one output."""
    from botorch.models.model import Model
    from botorch.posteriors.gpytorch import GPyTorchPosterior
    from gpytorch.distributions import MultivariateNormal
    from linear_operator.operators import DiagLinearOperator

    class Surrogate(Model):
        num_outputs = 1
        batch_shape = torch.Size([])

        def __init__(self) -> None:
            super().__init__()
            self.predictive = model.to_torch(noise=False)

        def posterior(self, X: Tensor, *_: Any, posterior_transform: Any = None, **__: Any) -> Any:
            mean, variance = self.predictive(X)  # [batch, q]; rows of one batch are taken as independent, so q is 1
            posterior = GPyTorchPosterior(MultivariateNormal(mean, DiagLinearOperator(variance)))
            return posterior if posterior_transform is None else posterior_transform(posterior)

    return Surrogate()


def next_by_botorch(model: GPRegressor, best: float) -> Tensor:
    """Where BoTorch's log expected improvement is highest."""
    from botorch.acquisition.analytic import LogExpectedImprovement
    from botorch.optim.optimize import optimize_acqf

    acquisition = LogExpectedImprovement(as_botorch_model(model), best_f=best)
    candidate, _ = optimize_acqf(acquisition, BOUNDS, q=1, num_restarts=STARTS, raw_samples=128)
    return torch.as_tensor(candidate)


def next_by_torch(model: GPRegressor, best: float, seed: int) -> Tensor:
    """Where the expected improvement is highest: the best of random places, and the nearest maximum from there."""
    predictive = model.to_torch(noise=False)

    def improvement(X: Tensor) -> Tensor:
        mean, variance = predictive(X)
        std = variance.clamp(min=1e-12).sqrt()
        z = (mean - best) / std
        density = torch.exp(-0.5 * z.square()) / math.sqrt(2.0 * math.pi)
        improved: Tensor = std * (density + z * torch.special.ndtr(z))
        return improved

    generator = torch.Generator().manual_seed(seed)
    places = BOUNDS[0] + (BOUNDS[1] - BOUNDS[0]) * torch.rand(512, 2, generator=generator, dtype=torch.float64)
    with torch.no_grad():
        X = places[improvement(places).topk(STARTS).indices]
    for step in 0.5 * 0.9 ** torch.arange(40):  # uphill by steps that become shorter
        (gradient,) = torch.autograd.grad(improvement(X.requires_grad_()).sum(), X)
        uphill = gradient / gradient.norm(dim=1, keepdim=True).clamp(min=1e-300)
        X = torch.minimum(torch.maximum(X.detach() + step * uphill, BOUNDS[0]), BOUNDS[1])
    with torch.no_grad():
        return X[improvement(X).argmax()][None]


def main() -> None:
    """Maximise a function of two inputs in a few evaluations."""
    with_botorch = "--torch" not in sys.argv and importlib.util.find_spec("botorch") is not None
    rng = np.random.default_rng(0)
    low, high = BOUNDS.numpy()
    X = rng.uniform(low, high, size=(10, 2))
    y = branin(X)
    for number in range(EVALUATIONS):
        model = GPRegressor("matern52", noise_bounds=(1e-5, 1e-4), time_limit=5, random_state=0).fit(X, y)
        best = float(y.max())
        candidate = next_by_botorch(model, best) if with_botorch else next_by_torch(model, best, seed=number)
        X = np.concatenate([X, candidate.detach().numpy()])
        y = branin(X)
    way = "BoTorch" if with_botorch else "torch"
    print(f"by {way}: best value {y.max():.4f} after {len(y)} evaluations; the maximum is -0.3979")


if __name__ == "__main__":
    main()
