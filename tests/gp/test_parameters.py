"""Hyperparameters as one flat vector and back."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import expit

from nearexact.gp.parameters import LogCoordinates, ParameterLayout
from nearexact.kernels import Linear, SquaredExponential

positive = st.floats(1e-5, 1e12)


@settings(deadline=None)
@given(st.lists(positive, min_size=2, max_size=2), positive, positive, positive, positive)
def test_packing_and_unpacking_give_the_same_values(
    lengthscales: list[float], variance: float, variances: float, bias: float, noise: float
) -> None:
    kernel = (SquaredExponential(lengthscales, variance) + Linear(variances, bias)).for_inputs(2)
    layout = ParameterLayout(kernel, 2)
    theta = layout.pack(kernel, noise)
    assert np.isfinite(theta).all()
    again, noise_again = layout.unpack(theta)
    assert noise_again == pytest.approx(noise, rel=1e-10)
    for name, value in kernel.parameters.items():
        assert again.parameters[name] == pytest.approx(value, rel=1e-10)


@settings(deadline=None)
@given(st.lists(st.floats(-1e6, 1e6), min_size=4, max_size=4))
def test_every_theta_is_above_the_floor(theta: list[float]) -> None:
    kernel, noise = ParameterLayout(SquaredExponential(), 2).unpack(np.array(theta))
    assert noise >= 1e-5
    assert all((value >= 1e-5).all() for value in kernel.parameters.values())


def test_gradient_is_the_chain_rule() -> None:
    layout = ParameterLayout(SquaredExponential(), 2)
    theta = np.array([-3.0, 0.5, 2.0, 7.0])
    slopes = np.array([1.0, -2.0, 3.0, 0.5])

    def linear(at: np.ndarray) -> float:
        kernel, noise = layout.unpack(at)
        return float(slopes @ np.concatenate([*(np.ravel(v) for v in kernel.parameters.values()), [noise]]))

    by_parameter = {"lengthscales": torch.tensor(slopes[:2]), "variance": torch.tensor(slopes[2])}
    got = layout.gradient(theta, by_parameter, slopes[3])
    step = 1e-6
    expected = [(linear(theta + step * e) - linear(theta - step * e)) / (2 * step) for e in np.eye(4)]
    assert got == pytest.approx(expected, rel=1e-6)


def test_names_follow_theta() -> None:
    layout = ParameterLayout(SquaredExponential() * Linear(), 2)
    assert layout.names == [
        "0.lengthscales[0]",
        "0.lengthscales[1]",
        "0.variance",
        "1.variances[0]",
        "1.variances[1]",
        "1.bias_variance",
        "noise_variance",
    ]


@given(st.lists(st.floats(-36.0, 50.0), min_size=1, max_size=5))
def test_log_coordinates_are_the_logarithms_of_what_exceeds_the_floor(values: list[float]) -> None:
    theta = np.array(values)
    logs = LogCoordinates.from_theta(theta)
    np.testing.assert_allclose(logs, np.log(np.logaddexp(0.0, theta)), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(LogCoordinates.to_theta(logs), theta, rtol=1e-9, atol=1e-9)


@given(st.lists(st.floats(-20.0, 30.0), min_size=2, max_size=2))
def test_log_coordinates_keep_values_and_turn_gradients(values: list[float]) -> None:
    def objective(theta: np.ndarray) -> tuple[float, np.ndarray]:
        excess = np.logaddexp(0.0, theta)  # what a hyperparameter exceeds its floor by
        return float(np.log(excess) @ [2.0, -3.0]), np.array([2.0, -3.0]) * expit(theta) / excess

    logs = LogCoordinates.from_theta(np.array(values))
    value, gradient = LogCoordinates.objective(objective)(logs)
    assert value == pytest.approx(2.0 * logs[0] - 3.0 * logs[1], rel=1e-9, abs=1e-9)
    np.testing.assert_allclose(gradient, [2.0, -3.0], rtol=1e-9)
