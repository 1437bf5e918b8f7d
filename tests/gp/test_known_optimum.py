"""Tests of what ends a start early: a known optimum nearby, or steps that gain nothing any more."""

import math

import numpy as np
import pytest

from nearexact.gp.known_optimum import AGREEMENT, SETTLED_GAIN, KnownOptimum, left_to_gain, until_settled
from nearexact.gp.optimise import Step
from nearexact.gp.parameters import LogCoordinates, ParameterLayout
from nearexact.gp.starts import NO_INFLUENCE
from nearexact.kernels import SquaredExponential
from nearexact.kernels.base import Kernel
from nearexact.typing import FloatArray

LAYOUT = ParameterLayout(SquaredExponential(), 3)
ROWS = 200


def theta_of(kernel: Kernel, noise: float = 0.1) -> FloatArray:
    return LAYOUT.pack(kernel, noise)


def known(kernel: Kernel, curvature: float = 1.0) -> KnownOptimum:
    theta = theta_of(kernel)
    return KnownOptimum(LAYOUT, theta, -50.0, ROWS, curvature * np.eye(len(theta)))


def test_near_is_what_is_near_in_likelihood_and_in_theta() -> None:
    best = known(SquaredExponential([1.0, 2.0, 3.0]))
    close, far = (theta_of(SquaredExponential([1.0, factor * 2.0, 3.0])) for factor in (1.05, 1.5))
    low = -50.0 - 1.01 * AGREEMENT * ROWS
    assert best.is_near(close, -50.5)
    assert not best.is_near(close, -49.9)  # what is higher must go on
    assert not best.is_near(close, low)
    assert not best.is_near(far, -50.5)
    assert known(SquaredExponential([1.0, 2.0, 3.0]), curvature=0.01).is_near(far, -50.5)  # a flat hill is wide


def test_inputs_that_do_not_matter_are_alike_but_not_those_that_do() -> None:
    best = known(SquaredExponential([1.0, 2.0, 1e3]), curvature=0.05)
    assert best.is_near(theta_of(SquaredExponential([1.0, 2.0, 1e9])), -50.0)
    assert best.is_near(theta_of(SquaredExponential([1.0, 2.0, NO_INFLUENCE])), -50.0)
    assert not best.is_near(theta_of(SquaredExponential([1.0, 2.0, 3.0])), -50.0)


def test_what_is_left_to_gain_is_extrapolated() -> None:
    shrinking = [100.0 * 0.5**i for i in range(10)]
    assert left_to_gain(shrinking) == pytest.approx(shrinking[-4])  # the last three steps, and all that are to come
    assert left_to_gain([-0.1 * i for i in range(50)]) > 1e6  # a long ridge
    assert math.isinf(left_to_gain(shrinking[:6]))  # too early to tell
    assert left_to_gain([3.0, 2.0, 1.0, 1.0, 1.0, 1.0, 1.0]) == 0.0


@pytest.mark.parametrize("settles", [False, True])
def test_having_little_to_gain_ends_only_starts_that_were_an_optimum(settles: bool) -> None:
    after_step = until_settled(ROWS, None, settles=settles)
    logs = LogCoordinates.from_theta(theta_of(SquaredExponential([1.0, 1.0, 1.0])))
    steps = [Step(logs, 0.1 * SETTLED_GAIN * ROWS * 0.5**i, i, i, 0.0) for i in range(7)]
    for step in steps[:6]:
        after_step(step)
    if settles:
        with pytest.raises(StopIteration):
            after_step(steps[6])
    else:
        after_step(steps[6])


def test_a_start_ends_near_the_best_and_others_see_each_step() -> None:
    best, seen = known(SquaredExponential([1.0, 1.0, 1.0])), []
    after_step = until_settled(ROWS, best, settles=False, after=seen.append)
    far = Step(LogCoordinates.from_theta(theta_of(SquaredExponential([9.0, 9.0, 9.0]))), 50.0, 1, 1, 0.0)
    after_step(far)
    with pytest.raises(StopIteration):
        after_step(Step(LogCoordinates.from_theta(best.theta), 50.0, 2, 2, 0.0))
    assert len(seen) == 2
