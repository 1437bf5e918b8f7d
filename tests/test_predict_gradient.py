"""Derivatives of predictions by the inputs, against finite differences, for every kind of posterior and kernel."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from nearexact import GPRegressor, load
from nearexact.gp import ExactObjective, SparseObjective
from nearexact.gp.iterative_posterior import IterativePosterior, ModelSolver
from nearexact.gp.neighbours import Extrapolation
from nearexact.gp.prediction_gradients import prediction_gradients
from nearexact.kernels import Kernel, SquaredExponential
from tests.problems import KERNELS, regression, standardised

NOISE = 0.05


def posteriors(kernel: Kernel) -> dict[str, Any]:
    """All three kinds at the same hyperparameters."""
    X, y = standardised(40)
    sparse = SparseObjective(kernel, NOISE, X, y, X[:12])
    factors = sparse.factorise(kernel, NOISE)
    exact = ExactObjective(kernel, NOISE, X, y).factorise(kernel, NOISE)
    weights = torch.linalg.solve(exact.L @ exact.L.T, exact.y)
    none = IterativePosterior.of(factors, sparse.X, sparse.y, weights, 0.0, Extrapolation.none(weights))
    iterative = none.with_extrapolation(ModelSolver.of(none).finish(weights, 1e-3, seed=0).variances)
    return {"sparse": factors.posterior(), "exact": exact, "iterative": iterative}


@pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS.keys())
def test_every_posterior_with_every_kernel(kernel: Kernel) -> None:
    X = torch.tensor(np.random.default_rng(5).normal(size=(4, 3)))
    step = 1e-5
    for kind, posterior in posteriors(kernel).items():
        mean, variance = posterior.predict(X)
        again = posterior.differentiable(X)
        assert torch.allclose(again[0], mean, rtol=1e-8, atol=1e-8)
        assert torch.allclose(again[1], variance, rtol=1e-7, atol=1e-9 * float(kernel.diag(X).max()))
        found = prediction_gradients(posterior, X)
        assert torch.allclose(found.variance, variance, rtol=1e-7, atol=1e-9 * float(kernel.diag(X).max()))
        for d in range(3):
            change = step * torch.eye(3, dtype=X.dtype)[d]
            up, down = posterior.differentiable(X + change), posterior.differentiable(X - change)
            for got, high, low in zip((found.mean_by_x, found.variance_by_x), up, down, strict=True):
                expected = (high - low) / (2.0 * step)
                scale = float(kernel.diag(X).max()) + float(mean.abs().max())
                assert torch.allclose(got[:, d], expected, rtol=1e-4, atol=1e-5 * scale), (kind, d, got[:, d], expected)


@pytest.mark.parametrize("method", ["sparse", "cholesky", "iterative"])
@pytest.mark.parametrize("noise", [True, False])
def test_estimators_give_them_in_the_units_of_the_user(method: str, noise: bool, tmp_path: Any) -> None:
    X, y = regression(100, d=2)
    X, y = X * [100.0, 0.01] + [5.0, -3.0], 1e4 * y + 1e6
    kernel = SquaredExponential([0.8, 1.2]).with_bounds(lengthscales="fixed", variance="fixed")
    model = GPRegressor(kernel, method=method, noise_bounds=0.05, random_state=0).fit(X, y)
    new = np.random.default_rng(1).normal(size=(5, 2)) * [100.0, 0.01] + [5.0, -3.0]
    by_mean, by_std = model.predict_gradient(new, noise=noise)
    assert by_mean.shape == by_std.shape == (5, 2)
    for d in range(2):
        step = np.zeros(2)
        step[d] = 1e-5 * X.std(0)[d]
        up, down = (model.predict(new + sign * step, return_std=True, noise=noise) for sign in (1.0, -1.0))
        expected = [(high - low) / (2.0 * step[d]) for high, low in zip(up, down, strict=True)]
        size = y.std() / X.std(0)[d]
        np.testing.assert_allclose(by_mean[:, d], expected[0], rtol=1e-4, atol=1e-5 * size)
        np.testing.assert_allclose(by_std[:, d], expected[1], rtol=1e-3, atol=1e-5 * size)
    model.save(tmp_path / "model.nx")
    np.testing.assert_array_equal(load(tmp_path / "model.nx").predict_gradient(new, noise=noise)[1], by_std)


def test_a_standard_deviation_of_zero_has_a_derivative_of_zero() -> None:
    X = np.zeros((6, 1))  # a constant input explains nothing, and the target is constant
    model = GPRegressor("linear", random_state=0).fit(X, np.ones(6))
    by_mean, by_std = model.predict_gradient([[0.0]], noise=False)
    assert np.isfinite(by_mean).all()
    assert np.isfinite(by_std).all()


def test_chunks_of_rows_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    posterior = posteriors(KERNELS["sum"])["exact"]
    X = torch.tensor(np.random.default_rng(5).normal(size=(7, 3)))
    whole = prediction_gradients(posterior, X)
    monkeypatch.setattr("nearexact.gp.prediction_gradients.PAIRS_AT_ONCE", 2 * 40 * 3)
    parts = prediction_gradients(posterior, X)
    assert torch.allclose(whole.mean_by_x, parts.mean_by_x, rtol=1e-10)
    assert torch.allclose(whole.variance_by_x, parts.variance_by_x, rtol=1e-10)
