"""Which starts agree: those that have ended on one hill, not those of equal likelihood."""

from __future__ import annotations

import numpy as np
import pytest

from nearexact.gp import ExactObjective, minimise
from nearexact.gp.hills import Hills, are_on_one_hill
from nearexact.gp.known_optimum import SubsetOptimum
from nearexact.gp.parameters import LogCoordinates
from nearexact.kernels import SquaredExponential

ROWS = 120


def either_input(seed: int = 0) -> ExactObjective:
    """Two inputs, each of which explains half of the targets; a GP with one of them takes the other half for noise."""
    random = np.random.default_rng(seed)
    first = random.uniform(-2.0, 2.0, ROWS)
    X = np.column_stack([first, random.permutation(first)])
    y = np.sin(3.0 * X[:, 0]) + np.sin(3.0 * X[:, 1])
    return ExactObjective(SquaredExponential(), 0.1, X, (y - y.mean()) / y.std())


def climbed(objective: ExactObjective, lengthscales: list[float], noise: float = 0.3) -> SubsetOptimum:
    theta = objective.layout.pack(SquaredExponential(lengthscales), noise)
    optimum = minimise(LogCoordinates.objective(objective), LogCoordinates.from_theta(theta))
    return SubsetOptimum(LogCoordinates.to_theta(optimum.theta), -optimum.value)


def at(objective: ExactObjective, lengthscales: list[float], noise: float = 0.3) -> SubsetOptimum:
    theta = objective.layout.pack(SquaredExponential(lengthscales), noise)
    return SubsetOptimum(theta, -objective(theta)[0])


def test_one_optimum_reached_twice_is_one_hill() -> None:
    objective = either_input()
    best, again = climbed(objective, [0.5, 0.5]), climbed(objective, [1.0, 0.7], noise=0.05)
    assert best.likelihood == pytest.approx(again.likelihood, abs=0.1)
    assert are_on_one_hill(objective, best, again)
    assert Hills().agreeing(objective, best, [best, again]) == 2


def test_two_explanations_of_one_likelihood_do_not_agree() -> None:
    objective = either_input()
    one, other = at(objective, [0.5, 1e4], 0.6), at(objective, [1e4, 0.5], 0.6)
    middle = at(objective, [np.sqrt(0.5 * 20.0)] * 2, 0.6)
    assert middle.likelihood < min(one.likelihood, other.likelihood) - 5.0
    alike = SubsetOptimum(other.theta, one.likelihood)  # as if by chance
    assert not are_on_one_hill(objective, one, alike)
    assert Hills().agreeing(objective, one, [one, alike]) == 1


def test_who_is_alone_on_a_hill() -> None:
    objective = either_input()
    one, other = at(objective, [0.5, 1e4], 0.6), at(objective, [1e4, 0.5], 0.6)
    both, again = climbed(objective, [0.5, 0.5]), climbed(objective, [1.0, 0.7], noise=0.05)
    assert Hills().alone(objective, [one, other, both, again]) == 2
    assert Hills().alone(objective, [both, again]) == 0
    assert Hills().alone(objective, [both]) == 1


@pytest.mark.parametrize("length", [25.0, 1e4, 1e15])
def test_how_far_an_input_is_off_makes_no_hill(length: float) -> None:
    objective = either_input()
    assert are_on_one_hill(objective, at(objective, [0.5, 1e4], 0.6), at(objective, [0.5, length], 0.6))


def test_what_is_far_lower_does_not_agree_wherever_it_is() -> None:
    objective = either_input()
    best = climbed(objective, [0.5, 0.5])
    lower = SubsetOptimum(best.theta, best.likelihood - 0.01 * ROWS)
    assert Hills().agreeing(objective, best, [lower]) == 0
