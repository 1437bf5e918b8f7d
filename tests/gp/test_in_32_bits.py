"""Tests of evaluations from a factor in 32 bits, next to those in 64."""

import numpy as np
import pytest
import torch
from scipy.special import expit
from torch import Tensor

from nearexact.gp import in_32_bits
from nearexact.gp.exact import ExactObjective
from nearexact.gp.row_noise import RowNoise
from nearexact.kernels import Kernel, Linear, Matern52, SquaredExponential

N, D = 1100, 3
NOISE = 0.1
KERNELS: dict[str, Kernel] = {
    "smooth": SquaredExponential([1.0, 2.0, 5.0]),
    "rows that have nothing to do with each other": SquaredExponential(0.02),
    "negative covariances": SquaredExponential(1.5) + Linear(0.1),
    "rough": Matern52(0.7, 0.5),
}


def data(targets: int = 1) -> tuple[Tensor, Tensor]:
    random = np.random.default_rng(0)
    X = random.normal(size=(N, D))
    y = np.stack([np.sin(2.0 * X[:, 0]) + X[:, 1], X[:, 2] ** 2], axis=1)[:, :targets]
    y = y + 0.3 * random.normal(size=y.shape)
    return torch.as_tensor(X), torch.as_tensor((y - y.mean(0)) / y.std(0)).squeeze()


@pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS)
@pytest.mark.parametrize("targets", [1, 2])
@pytest.mark.parametrize("known_noise", [False, True])
def test_value_and_gradient_are_nearly_those_of_64_bits(kernel: Kernel, targets: int, known_noise: bool) -> None:
    X, y = data(targets)
    row_noise = (
        RowNoise(torch.linspace(0.5, 2.0, N, dtype=X.dtype), torch.zeros(N, dtype=X.dtype)) if known_noise else None
    )
    objective = ExactObjective(kernel, NOISE, X, y, row_noise=row_noise)
    value, gradient = objective(objective.theta0)
    nearly, its_gradient = objective.nearly(objective.theta0)
    assert value != nearly  # it was in 32 bits
    assert 0.0 <= nearly - value <= 1e-3 * N  # of what is minimised: not below
    np.testing.assert_allclose(its_gradient, gradient, atol=2e-3 * np.abs(gradient).max())


def test_what_is_taken_off_is_part_of_the_gradient() -> None:
    variance, noise = 15.0, 0.05
    objective = ExactObjective(SquaredExponential([1.0, 1.0, 1.0], variance), noise, *data())
    theta = objective.theta0
    difference = objective.nearly(theta)[1] - objective(theta)[1]
    relative = N * variance * np.finfo(np.float32).eps / noise
    slope = 4.0 * (1.0 + 2.0 * relative) * relative  # by the logarithm of the variance
    assert difference[-2] == pytest.approx(slope / variance * expit(theta[-2]), rel=0.1)
    assert difference[-1] == pytest.approx(-slope / noise * expit(theta[-1]), rel=0.3)


def test_64_bits_are_taken_where_32_would_lose_too_much_or_gain_nothing() -> None:
    X, y = data()
    for objective in (
        ExactObjective(SquaredExponential(3.0, 100.0), 1e-3, X, y),  # the signal is far above the noise
        ExactObjective(SquaredExponential(), NOISE, X[:200], y[:200]),
    ):
        value, gradient = objective(objective.theta0)
        nearly, its_gradient = objective.nearly(objective.theta0)
        assert nearly == value
        assert (its_gradient == gradient).all()


def test_what_cannot_be_solved_in_32_bits_is_told() -> None:
    K, y = torch.ones(50, 50, dtype=torch.float64), torch.linspace(-1.0, 1.0, 50, dtype=torch.float64)
    room = torch.empty(50, 50, dtype=torch.float32)
    assert in_32_bits.solve(K - 2.0 * torch.eye(50), y, room) is None  # not positive definite
    assert in_32_bits.solve(1e6 * K + 0.1 * torch.eye(50), y, room) is None  # nothing of 0.1 is left next to 1e6
    K[3, 2] = torch.nan
    assert in_32_bits.solve(K + torch.eye(50), y, room) is None


def test_a_solution_is_right_to_more_digits_than_its_factor() -> None:
    X, y = data()
    kernel = SquaredExponential([2.0, 2.0, 2.0])
    K = kernel.gram(kernel.features(X, X.mean(0)))
    K.diagonal().add_(NOISE)
    solution = in_32_bits.solve(K, y, torch.empty(N, N, dtype=torch.float32))
    assert solution is not None
    expected = torch.linalg.solve(K, y)
    torch.testing.assert_close(solution.weights, expected, rtol=1e-5, atol=1e-5)
    assert solution.quadratic == pytest.approx(float(y @ expected), rel=1e-9)
    assert solution.log_det == pytest.approx(float(torch.logdet(K)), abs=0.01)
    torch.testing.assert_close(solution.inverse.tril().double(), torch.linalg.inv(K).tril(), rtol=1e-3, atol=1e-3)
