"""FITC against the dense Gaussian that it stands for."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.optimize import approx_fprime
from scipy.stats import multivariate_normal

from nearexact.gp import gpr_objective
from nearexact.gp.fitc import FitcObjective
from nearexact.kernels import ArcCosine, Kernel, Linear, Matern32, SquaredExponential
from tests.gp.dense import q_matrix
from tests.kernels.formulas import Gibbs, RationalQuadratic

KERNELS = [
    SquaredExponential(0.8, 1.3),
    Matern32(1.1, 0.7),
    ArcCosine(order=1),
    SquaredExponential() + Linear(),
    RationalQuadratic(0.8, 1.3),
    Gibbs(0.8, 0.2) * Linear(),
]
NOISE, JITTER = 0.05, 1e-10


def problem(n: int = 60, m: int = 12) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, 2))
    return X, np.sin(2.0 * X[:, 0]) + 0.2 * rng.normal(size=n), X[rng.permutation(n)[:m]]


def dense(kernel: Kernel, X: np.ndarray, Z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Q_XX, and the noise of each row."""
    Q = q_matrix(kernel, X, Z, JITTER)
    return Q, np.diag(kernel(X) - Q) + NOISE


@pytest.mark.parametrize("kernel", KERNELS, ids=repr)
def test_the_likelihood_is_that_of_the_dense_gaussian(kernel: Kernel) -> None:
    X, y, Z = problem()
    objective = FitcObjective(kernel, NOISE, X, y, Z)
    Q, noise = dense(kernel.for_inputs(2), X, Z)
    expected = multivariate_normal(np.zeros(len(y)), Q + np.diag(noise)).logpdf(y)
    assert -objective(objective.theta0)[0] == pytest.approx(expected, rel=1e-7)


@pytest.mark.parametrize("kernel", KERNELS, ids=repr)
def test_the_gradient_is_that_of_finite_differences(kernel: Kernel) -> None:
    X, y, Z = problem()
    objective = FitcObjective(kernel, NOISE, X, y, Z)
    objective._rows = 17  # several chunks, the last one smaller
    rng = np.random.default_rng(1)
    theta = objective.theta0 + 0.3 * rng.normal(size=len(objective.theta0))
    numeric = approx_fprime(theta, lambda t: objective(t)[0], 1e-6)
    np.testing.assert_allclose(objective(theta)[1], numeric, rtol=2e-4, atol=2e-4)


def test_predictions_are_the_conditional_of_the_joint_gaussian() -> None:
    X, y, Z = problem()
    kernel = KERNELS[0].for_inputs(2)
    new = np.random.default_rng(2).normal(size=(9, 2))
    posterior = FitcObjective(kernel, NOISE, X, y, Z).factorise(kernel, NOISE).posterior()
    mean, variance = posterior.predict(new)
    Q, noise = dense(kernel, X, Z)
    cross = kernel(new, Z) @ np.linalg.solve(kernel(Z) + JITTER * np.eye(len(Z)), kernel(Z, X))
    solve = np.linalg.solve(Q + np.diag(noise), np.column_stack([y, cross.T]))
    np.testing.assert_allclose(mean, cross @ solve[:, 0], atol=1e-7)
    np.testing.assert_allclose(variance, kernel.diag(new) - (cross * solve[:, 1:].T).sum(1), atol=1e-7)


def test_with_all_rows_as_points_it_is_the_exact_gp() -> None:
    X, y, _ = problem()
    kernel = KERNELS[0]
    exact = gpr_objective(kernel, NOISE, X, y)
    fitc = FitcObjective(kernel, NOISE, X, y, torch.tensor(X))
    assert fitc(fitc.theta0)[0] == pytest.approx(exact(exact.theta0)[0], rel=1e-6)
