"""Kernels against GPyTorch and scikit-learn, or, where neither has the kernel, against the integral that defines it."""

from __future__ import annotations

import math

import gpytorch
import numpy as np
import pytest
import torch
from scipy.integrate import quad
from sklearn.gaussian_process import kernels as sk

from nearexact.kernels import ArcCosine, Linear, Matern12, Matern32, Matern52, Periodic, SquaredExponential
from tests.problems import awkward_inputs, features, regression

LENGTHSCALES = np.array([0.6, 1.1, 2.0])
MATERN = {0.5: Matern12, 1.5: Matern32, 2.5: Matern52}


def test_squared_exponential_is_sklearns() -> None:
    X, Z = awkward_inputs(), regression(15)[0]
    assert np.allclose(SquaredExponential(LENGTHSCALES, 1.7)(X, Z), 1.7 * sk.RBF(LENGTHSCALES)(X, Z), rtol=1e-12)


@pytest.mark.parametrize("nu", MATERN)
def test_matern_is_sklearns(nu: float) -> None:
    X, Z = awkward_inputs(), regression(15)[0]
    expected = 1.7 * sk.Matern(LENGTHSCALES, nu=nu)(X, Z)
    assert np.allclose(MATERN[nu](LENGTHSCALES, 1.7)(X, Z), expected, rtol=1e-10)


@pytest.mark.parametrize("nu", MATERN)
def test_matern_gradient_is_gpytorchs(nu: float) -> None:
    X, Z = regression(20)[0], regression(9, seed=1)[0]
    K_bar = torch.tensor(np.random.default_rng(2).normal(size=(20, 9)))
    theirs = gpytorch.kernels.MaternKernel(nu=nu, ard_num_dims=3).double()
    theirs.lengthscale = torch.tensor(LENGTHSCALES)
    (theirs(torch.tensor(X), torch.tensor(Z)).to_dense() * K_bar).sum().backward()
    expected = theirs.raw_lengthscale.grad[0] / torch.sigmoid(theirs.raw_lengthscale[0])
    ours = MATERN[nu](LENGTHSCALES)
    got = ours.cross_vjp(*features(ours, X, Z), K_bar.clone())["lengthscales"]
    assert torch.allclose(got, expected, rtol=1e-8)


def test_periodic_is_gpytorchs_and_in_one_dimension_sklearns() -> None:
    X, Z = awkward_inputs(), regression(15)[0]
    theirs = gpytorch.kernels.PeriodicKernel(ard_num_dims=3).double()
    theirs.period_length = torch.tensor([1.5, 2.0, 3.0], dtype=torch.float64)
    theirs.lengthscale = torch.tensor(LENGTHSCALES**2)  # GPyTorch does not square it
    expected = theirs(torch.tensor(X), torch.tensor(Z)).to_dense().detach().numpy()
    assert np.allclose(Periodic([1.5, 2.0, 3.0], LENGTHSCALES)(X, Z), expected, rtol=1e-10)
    one = sk.ExpSineSquared(length_scale=0.7, periodicity=1.5)(X[:, :1], Z[:, :1])
    assert np.allclose(Periodic(1.5, 0.7)(X[:, :1], Z[:, :1]), one, rtol=1e-10)


def test_linear_is_sklearns() -> None:
    X, Z = awkward_inputs(), regression(15)[0]
    assert np.allclose(Linear(1.0, 0.49)(X, Z), sk.DotProduct(sigma_0=0.7)(X, Z), rtol=1e-12, atol=1e-14)
    weighted = sk.DotProduct(sigma_0=0.7)(X * LENGTHSCALES, Z * LENGTHSCALES)
    assert np.allclose(Linear(LENGTHSCALES**2, 0.49)(X, Z), weighted, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("order", [0, 1, 2])
def test_arc_cosine_is_the_expectation_over_random_units(order: int) -> None:
    """2 E[Θ(a) aⁿ Θ(b) bⁿ] over Gaussian a = w·x, b = w·z, with the radius of w integrated by hand (Cho and Saul)."""
    X, Z = awkward_inputs()[:8], regression(5)[0]
    weights, bias, variance = np.array([1.0, 0.2, 3.0]), 0.7, 1.4
    K = ArcCosine(order, weights, bias, variance)(X, Z)
    for i, x in enumerate(X):
        for j, z in enumerate(Z):
            a, b = (math.sqrt(weights @ v**2 + bias) for v in (x, z))
            angle = math.acos(np.clip((weights * x * z).sum() + bias, -a * b, a * b) / (a * b))
            overlap, _ = quad(
                lambda t, p=angle: (math.cos(t) * math.cos(t - p)) ** order, angle - math.pi / 2, math.pi / 2
            )
            expected = variance * (a * b) ** order * 2**order * math.factorial(order) / math.pi * overlap
            assert K[i, j] == pytest.approx(expected, rel=1e-10)


def test_sums_and_products_are_those_of_sklearn() -> None:
    X, Z = awkward_inputs(), regression(15)[0]
    ours = (SquaredExponential(LENGTHSCALES) + Linear(1.0, 0.49)) * Matern32(LENGTHSCALES)
    theirs = (sk.RBF(LENGTHSCALES) + sk.DotProduct(0.7)) * sk.Matern(LENGTHSCALES, nu=1.5)
    assert np.allclose(ours(X, Z), theirs(X, Z), rtol=1e-10, atol=1e-14)
