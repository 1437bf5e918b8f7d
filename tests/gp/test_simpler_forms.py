"""Simpler forms of a kernel: their likelihoods against scikit-learn and against fewer inputs, and their price."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.special import comb
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

from nearexact.gp import ExactObjective
from nearexact.gp.row_noise import noise_only
from nearexact.gp.simpler_forms import least_price, with_inputs_that_matter, with_one_lengthscale
from nearexact.kernels import Linear, SquaredExponential
from nearexact.noise_only import explains_nothing
from tests.problems import wide_table


def objective(X: np.ndarray, y: np.ndarray, kernel: SquaredExponential | None = None) -> ExactObjective:
    return ExactObjective(kernel or SquaredExponential(), 0.1, X, (y - y.mean()) / y.std())


def test_one_lengthscale_reaches_what_an_isotropic_kernel_does() -> None:
    X, y = wide_table(rows=70, inputs=30)
    ours = objective(X, y)
    kernel = ConstantKernel() * RBF(5.0) + WhiteKernel(0.1)
    theirs = GaussianProcessRegressor(kernel, n_restarts_optimizer=2, random_state=0).fit(X, ours.y.numpy())
    form = with_one_lengthscale(ours)
    assert form.likelihood == pytest.approx(theirs.log_marginal_likelihood_value_, abs=0.05)
    assert form.price == 2  # the lengthscale and the variance


def test_inputs_that_do_not_matter_are_left_out_and_the_choice_of_the_others_is_paid_for() -> None:
    X, y = wide_table(rows=40, inputs=8)
    lengthscales = np.array([1.0, 50.0, 2.0, 300.0, 21.0, 19.0, 1e4, 40.0])
    ours = objective(X, y, SquaredExponential(lengthscales, 0.7))
    form = with_inputs_that_matter(ours, ours.theta0)
    kept = lengthscales < 20.0
    fewer = objective(X[:, kept], y, SquaredExponential(lengthscales[kept], 0.7))
    assert form.likelihood == pytest.approx(-fewer(fewer.theta0)[0], abs=1e-6)
    assert form.price == pytest.approx(1 + 3 + math.log(comb(8, 3)))


def test_a_clear_function_of_many_inputs_pays_for_few_parameters() -> None:
    X, y = wide_table(rows=60, inputs=150)
    ours = objective(X, y)
    noise = noise_only(ours.y, None)
    price = least_price(ours, ours.theta0)
    assert price == 2
    assert explains_nothing(with_one_lengthscale(ours).likelihood, noise, 60, ours.layout.kernel.size)


@pytest.mark.parametrize("seed", range(10))
def test_noise_pays_for_all_of_them(seed: int) -> None:
    random = np.random.default_rng(seed)
    ours = objective(wide_table(rows=60, inputs=30, seed=seed)[0], random.normal(size=60))
    assert least_price(ours, ours.theta0) == ours.layout.kernel.size == 31


def test_parameters_without_a_value_for_each_input_stay_as_they_are() -> None:
    X, y = wide_table(rows=30, inputs=5)
    ours = ExactObjective(SquaredExponential() + Linear(), 0.1, X, (y - y.mean()) / y.std())
    assert with_one_lengthscale(ours).price == 4  # lengthscales, variance; variances, bias variance
