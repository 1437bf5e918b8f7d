"""Exact GPR against scikit-learn."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import pytest
import torch
from scipy.stats import multivariate_normal
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process import kernels as sk

from nearexact.gp import ExactTraining, gpr_objective, memory
from nearexact.gp.exact import fastest
from nearexact.gp.side_by_side import side_by_side
from nearexact.kernels import Kernel, Linear, Matern12, Matern32, Matern52, SquaredExponential
from tests.gp import dense, extended_precision
from tests.problems import KERNELS, regression

LENGTHSCALES = np.array([0.6, 1.1, 2.0])
NOISE = 0.05
WITH_TWINS = {
    "squared_exponential": (SquaredExponential(LENGTHSCALES, 1.7), sk.RBF(LENGTHSCALES)),
    "matern12": (Matern12(LENGTHSCALES, 1.7), sk.Matern(LENGTHSCALES, nu=0.5)),
    "matern32": (Matern32(LENGTHSCALES, 1.7), sk.Matern(LENGTHSCALES, nu=1.5)),
    "matern52": (Matern52(LENGTHSCALES, 1.7), sk.Matern(LENGTHSCALES, nu=2.5)),
}


def sklearns(base: sk.Kernel, X: np.ndarray, y: np.ndarray) -> GaussianProcessRegressor:
    kernel = sk.ConstantKernel(1.7) * base + sk.WhiteKernel(NOISE)
    return GaussianProcessRegressor(kernel, alpha=0.0, optimizer=None).fit(X, y)


@pytest.mark.parametrize(("kernel", "twin"), WITH_TWINS.values(), ids=WITH_TWINS.keys())
def test_value_gradient_and_predictions_equal_sklearns(kernel: Kernel, twin: sk.Kernel) -> None:
    X, y = regression(150)
    X_new = regression(20, seed=4)[0]
    theirs = sklearns(twin, X, y)
    lml, by_log = theirs.log_marginal_likelihood(theirs.kernel_.theta, eval_gradient=True)
    objective = gpr_objective(kernel, NOISE, X, y)
    value, by_parameter, by_noise = objective.value_and_gradient(kernel, NOISE)
    assert value == pytest.approx(lml, rel=1e-8)
    # Theirs is by log variance, log lengthscales, log noise.
    ours = [
        1.7 * float(by_parameter["variance"]),
        *(LENGTHSCALES * by_parameter["lengthscales"].numpy()),
        NOISE * by_noise,
    ]
    assert ours == pytest.approx(by_log.tolist(), rel=1e-8)

    posterior = objective.factorise(kernel, NOISE)
    mean, covariance = theirs.predict(X_new, return_cov=True)
    got_mean, got_variance = posterior.predict(X_new)
    joint_mean, joint = posterior.joint(X_new)
    latent = covariance - NOISE * np.eye(len(X_new))
    assert np.allclose(got_mean, mean, rtol=1e-8, atol=1e-10)
    assert np.allclose(joint_mean, mean, rtol=1e-8, atol=1e-10)
    assert np.allclose(got_variance, np.diag(latent), rtol=1e-8, atol=1e-10)
    assert np.allclose(joint, latent, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS.keys())
def test_value_is_the_gaussian_density_and_gradient_its_derivative(kernel: Kernel) -> None:
    X, y = regression(40)
    objective = gpr_objective(kernel, NOISE, X, y)
    value, gradient = objective(objective.theta0)
    assert -value == pytest.approx(dense.lml(kernel, NOISE, X, y), rel=1e-9)
    step = 1e-5
    for i, name in enumerate(objective.layout.names):
        change = np.zeros_like(gradient)
        change[i] = step
        expected = (objective(objective.theta0 + change)[0] - objective(objective.theta0 - change)[0]) / (2 * step)
        assert gradient[i] == pytest.approx(expected, rel=1e-5, abs=1e-6 * abs(value)), name


def test_chunks_do_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    X, y = regression(700)
    one = gpr_objective(SquaredExponential() + Linear(), NOISE, X, y)
    value, gradient = one(one.theta0)
    monkeypatch.setattr(memory, "MOST_ELEMENTS", 300 * 700)
    many = gpr_objective(SquaredExponential() + Linear(), NOISE, X, y)
    assert many(many.theta0)[0] == pytest.approx(value, rel=1e-12)
    assert many(many.theta0)[1] == pytest.approx(gradient, rel=1e-9)


def test_several_threads_may_evaluate_one_objective() -> None:
    X, y = regression(300)
    objective = gpr_objective(SquaredExponential(LENGTHSCALES), NOISE, X, y)
    random = np.random.default_rng(0)
    places = [objective.theta0 + 0.3 * random.normal(size=len(objective.theta0)) for _ in range(12)]
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        together = side_by_side([partial(objective, theta) for theta in places], at_most=2)
    finally:
        torch.set_num_threads(threads)
    for theta, (value, gradient) in zip(places, together, strict=True):
        alone = objective(theta)
        assert value == pytest.approx(alone[0], rel=1e-12)
        assert gradient == pytest.approx(alone[1], rel=1e-8, abs=1e-9)


def test_samples_have_the_posterior_mean_and_covariance() -> None:
    X, y = regression(60)
    kernel = SquaredExponential(LENGTHSCALES)
    posterior = gpr_objective(kernel, NOISE, X, y).factorise(kernel, NOISE)
    X_new = regression(4, seed=5)[0]
    mean, covariance = posterior.joint(X_new)
    samples = posterior.sample(X_new, 200_000, seed=1)
    error = 5.0 / np.sqrt(200_000)
    assert torch.allclose(samples.mean(0), mean, atol=error)
    assert torch.allclose(torch.cov(samples.T), covariance, atol=2 * error)


def test_rows_that_have_nothing_to_do_with_each_other_leave_no_numbers_that_processors_are_slow_with() -> None:
    random = np.random.default_rng(0)
    X, y = np.sort(random.uniform(-2.0, 2.0, size=(300, 1)), axis=0), random.normal(size=300)
    kernel = SquaredExponential([0.01], 0.5)
    objective = gpr_objective(kernel, 0.1, X, y)
    model = objective.factorise(kernel, 0.1)
    assert not ((model.L.abs() < 1e-300) & (model.L != 0.0)).any()
    K = 0.5 * np.exp(-0.5 * ((X - X.T) / 0.01) ** 2) + 0.1 * np.eye(300)
    dense = multivariate_normal(cov=K).logpdf(y)
    assert model.lml == pytest.approx(dense, rel=1e-12)


@pytest.mark.parametrize("variance", [1e6, 1e8])
@pytest.mark.parametrize("targets", [1, 2])
def test_what_rounding_may_have_added_is_taken_off_with_its_gradient(variance: float, targets: int) -> None:
    random = np.random.default_rng(0)
    X = random.normal(size=(60, 3))
    y = np.stack([X @ [1.0, 2.0, -1.0], X @ [0.5, 0.0, 1.0]], axis=1)[:, :targets].squeeze()
    kernel = SquaredExponential([3.0, 3.0, 3.0], variance)  # short enough for gradients that rounding does not spoil
    objective = gpr_objective(kernel, 1e-4, X, y)
    model = objective.factorise(kernel, 1e-4)
    relative = 60.0 * variance * np.finfo(float).eps / 1e-4
    assert model.sure_lml == pytest.approx(model.lml - targets * 4.0 * relative * (1.0 + relative), rel=1e-12)
    by_signal, by_noise = objective._caution(kernel, 1e-4, model.diagonal, np.finfo(float).eps)
    slope = -targets * 4.0 * (1.0 + 2.0 * relative)
    assert float(by_signal["variance"]) == pytest.approx(slope * relative / variance)
    assert by_noise == pytest.approx(-slope * relative / 1e-4)
    assert not by_signal["lengthscales"].any()
    value, gradients, derivative = objective.value_and_gradient(kernel, 1e-4)
    assert value == pytest.approx(model.sure_lml, rel=1e-9)
    assert np.isfinite(derivative)
    assert set(gradients) == {"lengthscales", "variance"}


@pytest.mark.skipif(np.finfo(np.longdouble).eps > 1e-18, reason="needs long doubles of 80 bits")
def test_training_ends_where_digits_are_left_and_more_of_them_show_nothing_better() -> None:
    """A column that is the difference of others: beyond some signal variance float64 shows nothing but rounding."""
    random = np.random.default_rng(1)
    X = random.normal(size=(80, 4))
    y = X[:, 0] - X[:, 1]
    y = (y - y.mean()) / y.std()
    training = ExactTraining(SquaredExponential(), X, y, seed=0)
    training.run()
    bounds, model = training.likelihood_bounds(), training.posterior()
    assert bounds.upper - bounds.lower <= 0.01 * len(y)
    found = training.evidence()
    assert found.agreeing >= 2
    assert found.gain_per_row is not None
    assert found.gain_per_row == pytest.approx(5.0 * model.hidden_slope / len(y))
    assert 0.0 < found.gain_per_row < 0.01
    lengthscales = np.array(model.kernel.parameters["lengthscales"])
    variance = float(model.kernel.parameters["variance"])
    for factor in (0.3, 1.0, 3.0, 10.0, 30.0):
        along = SquaredExponential(lengthscales * factor, variance * factor**2)
        expected = extended_precision.log_likelihood(along, model.noise_variance, X, y)
        assert expected <= bounds.lower + 0.01 * len(y)


@pytest.mark.skipif(np.finfo(np.longdouble).eps > 1e-18, reason="needs long doubles of 80 bits")
@pytest.mark.parametrize("variance", [1.0, 1e3, 1e5, 1e7, 1e9, 1e12])
def test_bounds_hold_where_rounding_is_as_large_as_the_noise(variance: float) -> None:
    """Bounds are equal as long as rounding does not count; where it does, the likelihood in more digits is between."""
    random = np.random.default_rng(0)
    X = random.normal(size=(200, 3))
    y, s = X @ np.array([1.0, 2.0, 3.0]), 1e-5
    y = (y - y.mean()) / y.std()
    kernel = SquaredExponential([20.0, 20.0, 20.0], variance)
    bounds = gpr_objective(kernel, s, X, y).factorise(kernel, s).bounds
    expected = extended_precision.log_likelihood(kernel, s, X, y)
    assert bounds.lower - 1e-4 * len(y) <= expected <= bounds.upper + 1e-4 * len(y)
    assert (bounds.lower == bounds.elbo == bounds.upper) == (variance <= 1e5)


def test_a_clock_that_goes_in_ticks_does_not_hide_what_a_trial_takes() -> None:
    """That of processor time may: then most calls seem to take no time at all."""
    now = 0.0

    def call() -> None:
        nonlocal now
        now += 0.0015

    in_ticks = fastest(call, lambda: 0.004 * math.floor(now / 0.004))
    assert 0.5 * 0.0015 <= in_ticks <= 1.5 * 0.0015
    assert fastest(call, lambda: now) == pytest.approx(0.0015)
