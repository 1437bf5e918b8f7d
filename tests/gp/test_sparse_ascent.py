"""Steps on a sparse GP's bound, before those by conjugate gradients."""

from __future__ import annotations

import numpy as np
import pytest

from nearexact.gp import ExactObjective
from nearexact.gp.iterative_model import HeldModel
from nearexact.gp.iterative_training import IterativeTraining
from nearexact.gp.parameters import LogCoordinates
from nearexact.gp.sparse_ascent import ascend
from nearexact.kernels import SquaredExponential


def ascended(cycles: float, rows: int = 500) -> tuple[IterativeTraining, list[HeldModel]]:
    """A training whose search is done, and what an ascent from some way off its θ hands over."""
    random = np.random.default_rng(0)
    X = random.uniform(-2.0, 2.0, (rows, 2))
    y = np.sin(cycles * X[:, 0]) * np.cos(cycles * X[:, 1]) + 0.1 * random.normal(size=rows)
    training = IterativeTraining(SquaredExponential(), X, (y - y.mean()) / y.std(), seed=0)
    training._predict_costs()
    training.search.run()
    off = LogCoordinates.from_theta(training.search.candidates[0].theta) + np.array([0.2, -0.2, 0.4, 0.4])
    model = training._sparse(LogCoordinates.to_theta(off), 100)
    kept: list[HeldModel] = []
    ascend(training._workbench, training._plan, training.search, model, kept.append)
    return training, kept


def test_the_exact_likelihood_rises_with_the_bound() -> None:
    training, kept = ascended(1.0)
    assert len(kept) > 1
    lowers = [model.bounds.lower for model in kept]
    assert lowers == sorted(lowers)
    objective = ExactObjective(SquaredExponential(), 0.1, training.X, training.y)
    exact = [-objective(model.theta)[0] for model in kept]
    assert all(
        low <= value + 1e-6 <= model.bounds.upper + 2e-6 for low, value, model in zip(lowers, exact, kept, strict=True)
    )
    optimum = objective(training.search.candidates[0].theta)[0]  # all rows are the last subset here
    assert exact[0] < -optimum - 5.0
    assert exact[-1] == pytest.approx(-optimum, abs=1.0)


def test_a_loose_bound_is_not_climbed_on() -> None:
    """A function with details that the points which are cheap enough do not show."""
    training, kept = ascended(9.0)
    assert training._plan.points_of_bound() > 0
    assert not kept


def test_without_a_search_there_is_none() -> None:
    random = np.random.default_rng(0)
    X = random.uniform(-2.0, 2.0, (100, 1))
    training = IterativeTraining(SquaredExponential(), X, np.sin(X[:, 0]), seed=0)
    kept: list[HeldModel] = []
    model = training._sparse(training.search.theta0, 50)
    ascend(training._workbench, training._plan, training.search, model, kept.append)
    assert not kept
