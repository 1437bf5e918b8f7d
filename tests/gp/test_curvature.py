"""Second derivatives by differences of gradients, and what the search makes of them."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.linalg import eigvalsh

from nearexact.gp import ExactTraining
from nearexact.gp.curvature import LEAST, newton_gain, positive, second_derivatives
from nearexact.gp.parameters import LogCoordinates
from nearexact.gp.search import Search
from nearexact.kernels import SquaredExponential
from nearexact.typing import FloatArray
from tests.problems import standardised


def test_second_derivatives_of_a_known_function() -> None:
    A = np.array([[3.0, 1.0], [1.0, 2.0]])

    def function(x: FloatArray) -> tuple[float, FloatArray]:
        value = float(np.exp(0.5 * x @ A @ x))
        return value, value * (A @ x)

    x = np.array([0.1, -0.2])
    value, gradient = function(x)
    assert np.allclose(second_derivatives(function, x), value * A + np.outer(gradient, gradient) / value, rtol=0.05)


def test_a_positive_matrix_keeps_what_bends_enough() -> None:
    rotation = np.linalg.qr(np.random.default_rng(0).normal(size=(3, 3)))[0]
    given = rotation @ np.diag([-1.0, 1e-9, 5.0]) @ rotation.T
    assert np.allclose(positive(given, 0.1), rotation @ np.diag([0.1, 0.1, 5.0]) @ rotation.T)


def test_the_gain_of_a_step_to_the_top_of_a_parabola() -> None:
    A, step = np.array([[3.0, 1.0], [1.0, 2.0]]), np.array([0.3, -0.2])
    assert newton_gain(A, A @ step) == pytest.approx(0.5 * step @ A @ step)


def test_a_direction_that_may_be_flatter_than_is_known_may_gain_more() -> None:
    flat = np.diag([1.0, LEAST])
    assert newton_gain(flat, np.array([0.0, 0.1])) == pytest.approx(10.0 * 0.5 * 0.1**2 / LEAST)


def test_a_subset_tells_how_the_likelihood_of_all_rows_bends() -> None:
    X, y = standardised(800)
    search = Search(SquaredExponential(), X, y, seed=0, most_rows=400)
    assert search.curvature(search.theta0, 800) is None  # nothing was searched yet
    search.run()
    theta = search.candidates[0].theta
    found = search.curvature(theta, 800)
    assert found is not None
    whole = ExactTraining(SquaredExponential(), X, y).objective
    logs = LogCoordinates.from_theta(theta)
    wanted = positive(second_derivatives(LogCoordinates.objective(whole), logs) / 800, LEAST)
    ratios = eigvalsh(found, wanted)
    assert ratios.min() > 1.0 / 3.0
    assert ratios.max() < 3.0


def test_where_there_is_no_time_nothing_is_computed() -> None:
    X, y = standardised(300)
    search = Search(SquaredExponential(), X, y, seed=0)
    search.run()
    search.timer.time_limit = 1e-9
    flops = search.flops
    assert search.curvature(search.candidates[0].theta, 300) is None
    assert search.flops == pytest.approx(flops)
