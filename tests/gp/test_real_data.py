"""Facts about real data sets. Slow, and skipped where their files are not on this machine."""

from __future__ import annotations

import numpy as np
import pytest

from nearexact.bench import datasets
from nearexact.gp import gpr_objective, greedy_variance, sgpr_objective, tighten_bounds
from nearexact.kernels import SquaredExponential
from tests.gp.helpers import literal

pytestmark = [pytest.mark.slow, pytest.mark.data("kin8nm", "naval")]


def load(name: str) -> np.ndarray:
    table = np.loadtxt(datasets.fetch(datasets.find(name).files[0]))
    rows = np.random.default_rng(0).permutation(len(table))[: int(0.85 * len(table))]
    kept = table[rows]
    return (kept - kept.mean(0)) / np.where(kept.std(0) > 0.0, kept.std(0), 1.0)


@pytest.mark.parametrize("lengthscale", [0.5, 1.0, 3.0])
def test_blocked_selection_is_the_literal_one_on_kin8nm(lengthscale: float) -> None:
    X = load("kin8nm")[:, :-1]
    kernel = SquaredExponential(lengthscale)
    assert greedy_variance(kernel, X, 500, seed=0).tolist() == literal(kernel, X, 500, seed=0).tolist()


@pytest.mark.parametrize("lengthscale", [5.0, 20.0])
def test_gradient_on_naval_where_the_noise_is_at_its_floor(lengthscale: float) -> None:
    """K_ZZ is as ill-conditioned as it gets: central differences, step 1e-2 in the logarithm, agree within 1 %."""
    table = load("naval")
    X, y, noise = table[:, [c for c in range(16) if c not in (8, 11)]], table[:, 16], 1e-5
    kernel = SquaredExponential(np.full(14, lengthscale), 1000.0)
    Z = X[greedy_variance(SquaredExponential(), X, 500, seed=0)]
    objective = sgpr_objective(kernel, noise, X, y, Z)
    _, by_parameter, by_noise = objective.value_and_gradient(kernel, noise)
    values = np.array([lengthscale] * 14 + [1000.0, noise])
    analytic = values * np.array([*by_parameter["lengthscales"], by_parameter["variance"], by_noise])

    def elbo(log_change: np.ndarray) -> float:
        changed = values * np.exp(log_change)
        return objective.factorise(SquaredExponential(changed[:14], changed[14]), changed[15]).elbo

    step = 1e-2
    differences = [(elbo(step * e) - elbo(-step * e)) / (2 * step) for e in np.eye(16)]
    assert analytic == pytest.approx(differences, rel=0.01)


def test_the_bracket_holds_the_exact_likelihood_of_kin8nm() -> None:
    """6963 rows, hyperparameters near those of a fit: bounds that were 0.3 nats per point apart come within 0.03."""
    table = load("kin8nm")
    X, y, noise = table[:, :-1], table[:, -1], 0.05
    kernel = SquaredExponential(np.full(8, 3.0), 1.5)
    objective = sgpr_objective(kernel, noise, X, y, X[greedy_variance(kernel, X, 1000, seed=0)])
    model = objective.factorise(kernel, noise, residuals=True)
    bounds = tighten_bounds(objective, model).bounds
    lml = gpr_objective(kernel, noise, X, y).factorise(kernel, noise).lml
    assert bounds.lower <= lml <= bounds.upper
    assert (bounds.upper - bounds.lower) / len(y) < 0.03 < 0.3 < (model.upper_bound - model.elbo) / len(y)
