"""Function draws: features have the kernel as their mean product, draws the mean and covariance of the posterior."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from nearexact import GPRegressor
from nearexact.gp import ExactObjective, SparseObjective
from nearexact.gp.function_draws import FREQUENCIES, Posterior, draw_functions
from nearexact.gp.iterative_posterior import IterativePosterior
from nearexact.gp.neighbours import Extrapolation
from nearexact.kernels import Kernel, Matern52, SquaredExponential
from tests.problems import BUILT_IN, FORMULAS, SIMPLE, regression, standardised
from tests.tensors import Allocations

NOISE = 0.05
SAMPLES = 1000


def posteriors(kernel: Kernel) -> dict[str, Posterior]:
    X, y = standardised(60)
    sparse = SparseObjective(kernel, NOISE, X, y, X[:20])
    factors = sparse.factorise(kernel, NOISE)
    exact = ExactObjective(kernel, NOISE, X, y).factorise(kernel, NOISE)
    none = Extrapolation.none(exact.weights)
    iterative = IterativePosterior.of(factors, sparse.X, sparse.y, exact.weights, 0.0, none)
    return {"sparse": factors.posterior(), "exact": exact, "iterative": iterative}


@pytest.mark.parametrize("kernel", BUILT_IN.values(), ids=BUILT_IN.keys())
def test_the_mean_product_of_random_features_is_the_kernel(kernel: Kernel) -> None:
    """Up to what so many draws leave: six standard errors, which are taken from the draws themselves."""
    X = torch.tensor(np.random.default_rng(0).normal(size=(6, 3)))
    features = kernel.random_features(5_000, np.random.default_rng(1), X)
    assert features is not None
    products = torch.einsum("ncf,mcf->nmf", features(X), features(X))
    error = products.std(2) / math.sqrt(products.shape[2]) if products.shape[2] > 1 else torch.zeros(6, 6)
    assert ((products.mean(2) - kernel(X)).abs() <= 6.0 * error + 1e-12).all()
    if kernel.stationary and kernel in SIMPLE.values():
        assert torch.allclose(products.mean(2).diagonal(), kernel.diag(X), rtol=1e-12)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *((name, "sparse") for name in ("squared_exponential", "matern12", "arc_cosine_1", "periodic", "product")),
        *((name, "exact") for name in ("matern52", "sum")),
        *((name, "iterative") for name in ("matern32", "sum")),
    ],
)
def test_draws_have_the_mean_and_the_joint_covariance_of_the_posterior(name: str, kind: str) -> None:
    kernel = BUILT_IN[name]
    posterior = posteriors(kernel)[kind]
    near = torch.tensor(standardised(60)[0][:4])  # rows of the data, and others, some far from them
    X = torch.cat([near, near + 0.1, torch.tensor(np.random.default_rng(3).normal(size=(6, 3)) * 2.0)])
    draws = draw_functions(posterior, SAMPLES, seed=0)(X)
    assert draws.shape == (len(X), SAMPLES)
    mean, covariance = posterior.joint(X)
    std, prior = covariance.diagonal().sqrt(), kernel.diag(X).sqrt()
    assert ((draws.mean(1) - mean).abs() <= 5.0 * std / math.sqrt(SAMPLES) + 0.02 * prior).all()
    error = torch.cov(draws) - covariance
    by_chance = 5.0 * torch.outer(std, std) / math.sqrt(SAMPLES)
    by_features = 5.0 / math.sqrt(FREQUENCIES) * torch.outer(prior, prior)
    assert (error.abs() <= by_chance + by_features).all()
    near_the_data = error[:4, :4].abs()  # there the correction decides, not the prior's draw
    assert (near_the_data <= by_chance[:4, :4] + 0.3 * by_features[:4, :4]).all()


@pytest.mark.parametrize("kind", ["sparse", "exact", "iterative"])
def test_without_features_variances_are_right_and_points_correlate_rows(kind: str) -> None:
    kernel = FORMULAS["rational_quadratic"]
    posterior = posteriors(kernel)[kind]
    near = torch.tensor(standardised(60)[0][:6])
    X = torch.cat([near, torch.tensor(np.random.default_rng(3).normal(size=(4, 3)))])
    draws = draw_functions(posterior, SAMPLES, seed=0)(X)
    mean, covariance = posterior.joint(X)
    std = covariance.diagonal().sqrt()
    assert ((draws.mean(1) - mean).abs() <= 5.0 * std / math.sqrt(SAMPLES) + 1e-3).all()
    assert torch.allclose(draws.std(1), std, rtol=0.08, atol=1e-3)
    explained = torch.cov(draws)[:6, :6] - covariance[:6, :6]  # rows that are points, or next to some
    assert (explained.abs() <= 6.0 * torch.outer(std[:6], std[:6]) / math.sqrt(SAMPLES) + 1e-3).all()


def test_a_draw_is_a_function() -> None:
    """The same at a row whatever other rows come with it, continuous, and another one with another seed."""
    posterior = posteriors(SIMPLE["matern52"])["sparse"]
    X = torch.tensor(np.random.default_rng(3).normal(size=(50, 3)))
    draws = draw_functions(posterior, 3, seed=0)
    assert torch.allclose(draws(X)[7:9], draws(X[7:9]), rtol=1e-9, atol=1e-12)
    assert torch.allclose(draws(X + 1e-7), draws(X), atol=1e-5)
    assert torch.equal(draw_functions(posterior, 3, seed=0)(X), draws(X))
    assert not torch.allclose(draw_functions(posterior, 3, seed=1)(X), draws(X))


def test_many_rows_make_no_square_array() -> None:
    X, y = regression(80, d=2)
    y = 50.0 * y + 1000.0
    kernel = Matern52([0.8, 1.5]).with_bounds(lengthscales="fixed", variance="fixed")
    model = GPRegressor(kernel, noise_bounds=0.02, random_state=0).fit(X, y)
    new = np.tile(X, (100, 1))  # 8,000 rows
    with Allocations() as allocations:
        draws = model.sample_y(new, n_samples=2, random_state=0)
    assert draws.shape == (8000, 2)
    assert allocations.largest_elements < 2**23
    few = model.sample_y(X, n_samples=2000, random_state=0)
    copies = draws.reshape(100, 80, 2)  # of one function, with other noise
    noise = math.sqrt(model.noise_variance_) * y.std()
    assert copies.std(0) == pytest.approx(np.full((80, 2), noise), rel=0.4)
    function = copies.mean(0) - model.predict(X)[:, None]
    allowed = np.sqrt(few.var(1) - noise**2 + 0.02 * y.var())[:, None]
    assert (np.abs(function) <= 5.0 * allowed).all()


def test_few_rows_keep_the_exact_joint_covariance(monkeypatch: pytest.MonkeyPatch) -> None:
    X, y = regression(40, d=1)
    kernel = SquaredExponential(0.8).with_bounds(lengthscales="fixed", variance="fixed")
    model = GPRegressor(kernel, noise_bounds=0.02, random_state=0).fit(X, y)
    monkeypatch.setattr("nearexact.predictor.draw_functions", None)  # is not asked
    new = np.linspace(-3.0, 3.0, 5)[:, None]
    draws = model.sample_y(new, n_samples=20_000, random_state=0)
    covariance = model.predict(new, return_cov=True)[1]
    size = np.sqrt(np.outer(np.diag(covariance), np.diag(covariance)))
    assert (np.abs(np.cov(draws) - covariance) <= 0.05 * size).all()
