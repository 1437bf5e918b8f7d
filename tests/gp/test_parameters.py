"""Hyperparameters as one flat vector and back."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nearexact.gp.parameters import ParameterLayout
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
