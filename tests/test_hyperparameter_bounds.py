"""Hyperparameters that a user has fixed or bounded: training keeps to that, everywhere."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

from nearexact import GPRegressor, SGPRegressor, load
from nearexact.gp import ExactObjective, LBFGSSettings, minimise
from nearexact.gp.parameters import LogCoordinates, ParameterLayout
from nearexact.gp.safety import Numerics
from nearexact.gp.search import Search
from nearexact.gp.starts import random_start, rough_start, with_all_inputs
from nearexact.kernels import Linear, Matern32, SquaredExponential
from tests.problems import regression, standardised

FIXED = SquaredExponential([0.7, 2.0], 1.3).with_bounds(variance="fixed", lengthscales=([0.7, 1.5], [0.7, 2.5]))
ESTIMATORS = {
    "sparse": SGPRegressor(FIXED, max_inducing=50, noise_bounds=(0.03, 0.05), random_state=0),
    "paper": SGPRegressor(FIXED, max_inducing=20, noise_bounds=(0.03, 0.05), procedure="paper", random_state=0),
    "cholesky": GPRegressor(FIXED, method="cholesky", noise_bounds=(0.03, 0.05), random_state=0),
    "iterative": GPRegressor(FIXED, method="iterative", noise_bounds=(0.03, 0.05), random_state=0),
}


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("name", ESTIMATORS)
def test_what_is_fixed_stays_fixed_and_what_is_bounded_within(name: str, tmp_path: Path) -> None:
    """The noise variance is about 0.01 here and wants below its bound; clones and files keep all of it."""
    X, y = regression(150, d=2)
    model = clone(ESTIMATORS[name]).fit(X, y)
    model.save(tmp_path / "model.nx")
    loaded = load(tmp_path / "model.nx")
    for at in (model, loaded, *model.history_):
        kernel = at.kernel if hasattr(at, "m") else at.kernel_
        noise = at.noise_variance if hasattr(at, "m") else at.noise_variance_
        assert kernel.parameters["variance"] == 1.3
        assert kernel.parameters["lengthscales"][0] == 0.7
        assert 1.5 <= kernel.parameters["lengthscales"][1] <= 2.5
        assert kernel.bounds.keys() == FIXED.bounds.keys()
        assert 0.03 <= noise <= 0.05
    assert model.noise_variance_ == pytest.approx(0.03, rel=1e-6)  # an optimum on the bound is found there
    assert loaded.get_params()["kernel"] == FIXED
    assert "with_bounds(variance='fixed'" in repr(loaded.kernel_)
    assert loaded.log_marginal_likelihood_ == model.log_marginal_likelihood_
    inputs, targets = (X - X.mean(0)) / X.std(0), (y - y.mean()) / y.std()
    K = model.kernel_(inputs) + model.noise_variance_ * np.eye(150)
    dense = -0.5 * (targets @ np.linalg.solve(K, targets) + np.linalg.slogdet(2.0 * np.pi * K)[1])
    if name == "cholesky":  # exact
        assert model.log_marginal_likelihood_ == pytest.approx(dense, abs=1e-7)
    elif name == "iterative":  # an estimate
        error = model.certificate_.standard_error
        assert error is not None
        assert model.log_marginal_likelihood_ == pytest.approx(dense, abs=5.0 * error + 0.1)
    else:  # a lower bound
        assert model.log_marginal_likelihood_ == model.certificate_.lower <= dense + 1e-6


def test_the_optimum_within_bounds_is_scikit_learns() -> None:
    X, y = standardised(80, d=2)
    kernel = ConstantKernel(1.0, "fixed") * RBF([1.0, 1.0], (0.5, 1.2)) + WhiteKernel(0.1, (0.02, 1.0))
    peer = GaussianProcessRegressor(kernel, random_state=0, n_restarts_optimizer=3).fit(X, y)
    ours = GPRegressor(
        SquaredExponential().with_bounds(variance="fixed", lengthscales=(0.5, 1.2)),
        method="cholesky",
        noise_bounds=(0.02, 1.0),
        random_state=0,
    ).fit(X, y)
    scale = X.std(0)  # their lengthscales are in the units of X: nearly ours
    assert ours.kernel_.parameters["lengthscales"] == pytest.approx(peer.kernel_.k1.k2.length_scale / scale, rel=0.1)
    assert ours.log_marginal_likelihood_ == pytest.approx(peer.log_marginal_likelihood_value_, abs=2.0)


def test_nothing_is_learnt_where_all_is_fixed() -> None:
    kernel = SquaredExponential([0.7, 2.0], 1.3).with_bounds(variance="fixed", lengthscales="fixed")
    X, y = regression(60, d=2)
    model = GPRegressor(kernel, noise_bounds=0.02, random_state=0).fit(X, y)
    assert (model.kernel_, model.noise_variance_) == (kernel, 0.02)
    inputs, targets = (X - X.mean(0)) / X.std(0), (y - y.mean()) / y.std()
    exact = ExactObjective(kernel, 0.02, inputs, targets).factorise(kernel, 0.02)
    assert model.log_marginal_likelihood_ == pytest.approx(exact.lml, abs=1e-8)
    assert model.certificate_.verdict == "exact"  # of what is allowed, nothing is better


def test_every_start_keeps_to_the_bounds() -> None:
    kernel = SquaredExponential([0.7, 50.0], 1.3).with_bounds(variance="fixed", lengthscales=(0.5, 60.0)) + Linear()
    layout = ParameterLayout(kernel, 2, Numerics(noise_bounds=(0.02, 0.03)))
    theta = layout.pack(layout.kernel, 0.5)
    random = np.random.default_rng(0)
    starts = [theta, rough_start(layout, theta, [0]), *(random_start(layout, theta, random) for _ in range(20))]
    for start in starts:
        at, noise = layout.unpack(start)
        assert at.parameters["0.variance"] == 1.3
        assert ((at.parameters["0.lengthscales"] >= 0.5) & (at.parameters["0.lengthscales"] <= 60.0)).all()
        assert 0.02 <= noise <= 0.03
    assert with_all_inputs(layout, theta) is not None
    fixed = ParameterLayout(kernel.with_bounds(**{"0.lengthscales": "fixed"}), 2)
    assert with_all_inputs(fixed, fixed.pack(fixed.kernel, 0.5)) is None  # the start would be the same again


def test_the_search_on_subsets_keeps_to_the_bounds() -> None:
    X, y = standardised(300, d=2)
    kernel = Matern32().with_bounds(variance="fixed", lengthscales=(0.9, 1.1))
    search = Search(kernel, X, y, seed=0, most_rows=150, numerics=Numerics(noise_bounds=(0.5, 0.6)))
    search.run()
    for candidate in search.candidates:
        at, noise = search.layout.unpack(candidate.theta)
        assert at.parameters["variance"] == 1.0
        assert ((at.parameters["lengthscales"] >= 0.9) & (at.parameters["lengthscales"] <= 1.1)).all()
        assert 0.5 <= noise <= 0.6


@pytest.mark.parametrize("in_logs", [True, False])
def test_the_optimiser_evaluates_nothing_outside(in_logs: bool) -> None:
    X, y = standardised(60, d=2)
    kernel = SquaredExponential().with_bounds(lengthscales=(2.0, 4.0))
    objective = ExactObjective(kernel, 0.1, X, y)
    bounds = objective.layout.bounds
    assert bounds is not None
    assert objective.layout.kernel.parameters["lengthscales"].tolist() == [2.0, 2.0]  # the start is moved inside
    seen: list[np.ndarray] = []

    def remember(theta: np.ndarray) -> tuple[float, np.ndarray]:
        seen.append(theta.copy())
        return objective(theta)

    if in_logs:
        start, limits = LogCoordinates.from_theta(objective.theta0), LogCoordinates.bounds(bounds)
        optimum = minimise(LogCoordinates.objective(remember), start, bounds=limits, settings=LBFGSSettings(ftol=1e-12))
    else:
        optimum = minimise(remember, objective.theta0, bounds=bounds, settings=LBFGSSettings(ftol=1e-12))
    assert all((theta >= bounds[0] - 1e-9).all() and (theta <= bounds[1] + 1e-9).all() for theta in seen)
    grid = [(a, b) for a in np.linspace(2.0, 4.0, 9) for b in np.linspace(2.0, 4.0, 9)]
    at, noise = objective.layout.unpack(LogCoordinates.to_theta(optimum.theta) if in_logs else optimum.theta)
    best = min(objective(objective.layout.pack(at.with_parameters({"lengthscales": pair}), noise))[0] for pair in grid)
    assert optimum.value <= best + 1e-6


@pytest.mark.parametrize(
    ("bounds", "message"),
    [
        ("fixed", "noise_bounds must be .low, high., or a number"),
        ((0.1, 0.01), "bounds on noise_variance must be 0 <= low <= high"),
        ((0.0, 1e-7), "bounds on noise_variance must allow 1e-05 or more, got at most 1e-07"),
        ((1e-9, 0.1), "noise_bounds must be 1e-08 or more, or 0 for no bound, got 1e-09"),
        ((0.1, 0.2, 0.3), "bounds on noise_variance must be"),
    ],
)
def test_noise_bounds_that_are_none_are_refused(bounds: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        GPRegressor(noise_bounds=bounds).fit(*regression(20))  # type: ignore[arg-type]


@pytest.mark.parametrize("method", ["sparse", "cholesky", "iterative"])
def test_targets_far_from_zero_lose_no_digits(method: str) -> None:
    X, y = regression(60, d=2)
    y = np.round(y, 3) * 8.0  # of 1e9 + y float64 holds all but 1e-7
    kernel = SquaredExponential([0.7, 2.0]).with_bounds(lengthscales="fixed", variance="fixed")
    near, far = (
        GPRegressor(kernel, method=method, noise_bounds=0.02, random_state=0).fit(X, y + offset)
        for offset in (0.0, 1e9)
    )
    (mean, std), (far_mean, far_std) = (model.predict(X, return_std=True) for model in (near, far))
    aimed = 1e-4 if method == "iterative" else 1e-6  # conjugate gradients end elsewhere, within what is proved
    np.testing.assert_allclose(far_mean - 1e9, mean, atol=aimed)
    np.testing.assert_allclose(far_std, std, rtol=1e-6)
    assert far.log_marginal_likelihood_ == pytest.approx(near.log_marginal_likelihood_, abs=1e-4)


def test_a_linear_kernel_beside_another_is_a_linear_mean() -> None:
    """Far from the data predictions follow the trend, where without it they go back to the mean of the targets."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-3.0, 3.0, size=(60, 1))
    y = 5.0 * X[:, 0] + np.sin(3.0 * X[:, 0]) + 0.1 * rng.normal(size=60)
    far = np.array([[30.0]])
    with_trend = GPRegressor("se+linear", random_state=0).fit(X, y).predict(far)
    assert with_trend == pytest.approx(150.0, rel=0.05)
    assert GPRegressor("se", random_state=0).fit(X, y).predict(far) < 75.0
