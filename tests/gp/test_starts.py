"""Starts: inputs that an optimiser has switched off can be switched on again."""

from __future__ import annotations

import numpy as np
import pytest

from nearexact.gp import ExactObjective, minimise
from nearexact.gp.parameters import LogCoordinates, ParameterLayout
from nearexact.gp.safety import Numerics
from nearexact.gp.starts import (
    FINER,
    FINER_NOISE,
    NO_INFLUENCE,
    gain_by_switching_on,
    with_all_inputs,
    with_finer_details,
)
from nearexact.kernels import ArcCosine, Kernel, Linear, SquaredExponential
from nearexact.typing import FloatArray

NOISE = 0.05


def two_waves(rows: int = 80) -> tuple[FloatArray, FloatArray]:
    random = np.random.default_rng(0)
    X = random.normal(size=(rows, 3))
    y = np.sin(2.0 * X[:, 0]) + np.sin(2.0 * X[:, 1]) + 0.1 * random.normal(size=rows)
    return X, (y - y.mean()) / y.std()


def climbed(objective: ExactObjective, theta: FloatArray) -> float:
    return -minimise(LogCoordinates.objective(objective), LogCoordinates.from_theta(theta)).value


def test_an_input_that_is_off_stays_off_unless_it_gets_another_chance() -> None:
    objective = ExactObjective(SquaredExponential(lengthscales=[1.0, 1e5, 1.0]), NOISE, *two_waves())
    revived = with_all_inputs(objective.layout, objective.theta0)
    assert revived is not None
    best = climbed(objective, objective.layout.pack(SquaredExponential().for_inputs(3), NOISE))
    assert climbed(objective, objective.theta0) < best - 30.0
    assert climbed(objective, revived) == pytest.approx(best, abs=0.1)


@pytest.mark.parametrize(
    "kernel",
    [
        SquaredExponential(lengthscales=[1.0, 2.0 * NO_INFLUENCE, 5.0 * NO_INFLUENCE]),
        ArcCosine(weight_variances=[1.0, 0.2 / NO_INFLUENCE**2, 0.01]),
        SquaredExponential(lengthscales=[1.0, 2.0, 1e4]) + Linear(variances=[1.0, 1e-4, 1.0]),
    ],
)
def test_only_inputs_without_influence_get_some(kernel: Kernel) -> None:
    objective = ExactObjective(kernel, NOISE, *two_waves())
    revived = with_all_inputs(objective.layout, objective.theta0)
    assert revived is not None
    changed = np.abs(revived - objective.theta0) > 1e-9
    assert 1 <= changed.sum() <= 2
    assert with_all_inputs(objective.layout, revived) is None


@pytest.mark.parametrize(
    ("kernel", "nudged"),
    [
        (
            SquaredExponential(lengthscales=[1.0, 1e3, 1.0]),
            SquaredExponential(lengthscales=[1.0, 200.0, 1.0]),
        ),
        (Linear(variances=[1.0, 1e-4, 1.0]), Linear(variances=[1.0, 1.1e-4, 1.0])),
    ],
)
def test_what_switching_on_gains_is_right_to_first_order(kernel: Kernel, nudged: Kernel) -> None:
    objective = ExactObjective(kernel, NOISE, *two_waves())
    value, gradient = objective(objective.theta0)
    theta = objective.layout.pack(nudged, NOISE)
    gain = value - objective(theta)[0]
    assert gain > 0.0
    assert gain_by_switching_on(objective.layout, objective.theta0, -gradient, theta) == pytest.approx(gain, rel=0.1)


def test_finer_details_are_those_of_inputs_that_matter() -> None:
    layout = ParameterLayout(SquaredExponential() + Linear(), 3)
    kernel = SquaredExponential([1.0, 2.0 * NO_INFLUENCE, 4.0]) + Linear([1.0, 1.0, 1.0])
    finer = with_finer_details(layout, layout.pack(kernel, NOISE))
    assert finer is not None
    changed, noise = layout.unpack(finer)
    assert changed.parameters["0.lengthscales"] == pytest.approx([FINER, 2.0 * NO_INFLUENCE, FINER * 4.0])
    assert changed.parameters["1.variances"] == pytest.approx([FINER**-2.0] * 3)
    assert noise == pytest.approx(FINER_NOISE * NOISE)


def test_there_are_no_finer_details_where_bounds_forbid_them() -> None:
    fixed = SquaredExponential([1.0, 2.0, 3.0]).with_bounds(lengthscales="fixed", variance="fixed")
    layout = ParameterLayout(fixed, 3, Numerics(noise_bounds=(NOISE, NOISE)))
    assert with_finer_details(layout, layout.pack(fixed, NOISE)) is None
