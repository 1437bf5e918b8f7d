"""Targets that come from a computation: their noise is far below the usual floor of 1e-5."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from nearexact import GPRegressor, SGPRegressor, load
from nearexact.gp import ExactObjective
from nearexact.gp.safety import Numerics

NOISE = 1e-6  # variance, of targets whose variance is 1


def computed(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    X = random.uniform(-2.0, 2.0, (n, 2))
    function = np.sin(2.0 * X[:, 0]) + 0.7 * np.cos(1.5 * X[:, 1]) * X[:, 0]
    return X, (function - function.mean()) / function.std() + np.sqrt(NOISE) * random.normal(size=n)


def test_the_exact_gp_finds_how_little_it_is(tmp_path: Path) -> None:
    X, y = computed(400)
    train, test = slice(0, 300), slice(300, None)
    usual = GPRegressor(random_state=0).fit(X[train], y[train])
    model = GPRegressor(noise_bounds=(1e-8, 1.0), random_state=0).fit(X[train], y[train])
    assert usual.noise_variance_ == pytest.approx(1e-5, rel=0.01)
    assert 0.6 * NOISE < model.noise_variance_ < 1.6 * NOISE
    assert model.certificate_.verdict == "exact"
    inputs, targets = (X[train] - X[train].mean(0)) / X[train].std(0), (y[train] - y[train].mean()) / y[train].std()
    K = model.kernel_(inputs) + model.noise_variance_ * np.eye(300)
    dense = -0.5 * (targets @ np.linalg.solve(K, targets) + np.linalg.slogdet(2.0 * np.pi * K)[1])
    assert model.log_marginal_likelihood_ == pytest.approx(dense, abs=1e-3)
    assert dense > usual.log_marginal_likelihood_ + 0.5 * 300
    mean, std = model.predict(X[test], return_std=True)
    assert np.mean(np.abs(y[test] - mean) <= 2.0 * std) > 0.9
    assert std.mean() < 0.5 * usual.predict(X[test], return_std=True)[1].mean()

    model.save(tmp_path / "model.nx")
    loaded = load(tmp_path / "model.nx")
    np.testing.assert_array_equal(loaded.predict(X[test]), mean)
    loaded.update(X[test], y[test])  # at the same hyperparameters
    assert loaded.noise_variance_ == model.noise_variance_
    at_the_floor = GPRegressor(random_state=0).fit(X, y, start=(model.kernel_, model.noise_variance_))
    assert at_the_floor.noise_variance_ == pytest.approx(1e-5, rel=0.01)


@pytest.mark.parametrize("estimator", [GPRegressor, SGPRegressor])
def test_noise_may_be_fixed_below_the_usual_floor(estimator: type) -> None:
    X, y = computed(150)
    assert estimator(noise_bounds=1e-7, random_state=0, time_limit=20).fit(X, y).noise_variance_ == 1e-7


def test_certify_knows_a_lower_floor() -> None:
    X, y = computed(150)
    model = SGPRegressor(noise_bounds=(1e-8, 1.0), max_inducing=60, random_state=0, time_limit=20).fit(X, y)
    assert model.noise_variance_ < 3.0 * NOISE
    bounds = model.certify(X, y)
    data = (X - X.mean(0)) / X.std(0), (y - y.mean()) / y.std()
    objective = ExactObjective(model.kernel_, 0.1, *data, numerics=Numerics(noise_bounds=(1e-8, 1.0)))
    exact = objective.factorise(model.kernel_, model.noise_variance_).lml
    assert bounds.lower <= exact + 1e-3
    assert exact <= bounds.upper + 1e-3
