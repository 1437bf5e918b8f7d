"""Optima of few rows get more noise where more rows show that they need it, and only there."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from nearexact.gp.enough_noise import CLEARLY, with_enough_noise
from nearexact.gp.exact import ExactObjective
from nearexact.gp.known_optimum import SubsetOptimum
from nearexact.gp.parameters import LogCoordinates
from nearexact.gp.safety import DEFAULT_NUMERICS
from nearexact.gp.search import Search
from nearexact.kernels import SquaredExponential
from tests.problems import standardised

FEW, MANY, NOISE = 100, 200, 1e-5


def pairs() -> tuple[np.ndarray, np.ndarray]:
    """A smooth function; of the second half of the rows ten are copies of others, with targets that differ."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(MANY, 2))
    X[-10:] = X[:10]
    y = np.sin(2.0 * X[:, 0]) + X[:, 1]
    y[-10:] += 0.3 * rng.normal(size=10)
    return X, y / y.std()


def objective(rows: int, **options: object) -> ExactObjective:
    X, y = pairs()
    return ExactObjective(SquaredExponential(1.0), NOISE, X[:rows], y[:rows], **options)  # type: ignore[arg-type]


def of_few_rows() -> SubsetOptimum:
    few = objective(FEW)
    return SubsetOptimum(few.theta0, -few(few.theta0)[0])


def test_an_optimum_that_falls_gets_the_noise_that_more_rows_need() -> None:
    before, many = of_few_rows(), objective(MANY)
    own = -many(before.theta)[0]
    assert own < -10_000.0
    found = with_enough_noise(many, before, FEW)
    assert found.has_fallen
    kernel, noise = many.layout.unpack(found.optimum.theta)
    assert noise > 100.0 * NOISE
    assert kernel == many.layout.unpack(before.theta)[0]
    assert found.likelihood == pytest.approx(-many(found.optimum.theta)[0], rel=1e-9)
    assert found.likelihood > own + CLEARLY * MANY
    assert found.optimum.likelihood == before.likelihood  # that of the few rows is still what they have shown


def test_an_optimum_that_holds_stays_as_it_is() -> None:
    before, same = of_few_rows(), objective(FEW)
    found = with_enough_noise(same, before, FEW)
    assert found.optimum is before
    assert not found.has_fallen
    assert found.factorisations == 1
    assert found.likelihood == pytest.approx(before.likelihood)


def test_there_is_no_more_noise_than_is_allowed() -> None:
    many = objective(MANY, numerics=replace(DEFAULT_NUMERICS, noise_bounds=(1e-5, 1e-4)))
    found = with_enough_noise(many, of_few_rows(), FEW)
    assert NOISE < many.layout.unpack(found.optimum.theta)[1] <= 1e-4


def test_what_cannot_be_computed_is_left_alone() -> None:
    many, before = objective(MANY), of_few_rows()
    beyond = replace(before, theta=LogCoordinates.to_theta(np.full_like(before.theta, 300.0)))
    assert with_enough_noise(many, beyond, FEW).optimum is beyond


def test_a_search_goes_on_with_what_more_rows_show_to_be_best() -> None:
    X, y = standardised(600)
    search = Search(SquaredExponential(), X, y, seed=0, polishes=False)
    sizes, search.sizes = search.sizes, search.sizes[:1]
    search.run()
    best, *others = search.candidates
    flat = search.layout.pack(search.layout.kernel.with_parameters({"lengthscales": np.full(3, 100.0)}), NOISE)
    fooled = SubsetOptimum(flat, best.likelihood + 1.0)
    search.candidates = [fooled, best, *others]
    carried = search.rivals.carry_on_to(sizes[1])
    assert carried[0] is best
    changed = next(optimum for optimum in carried if optimum.likelihood == fooled.likelihood)
    assert search.layout.unpack(changed.theta)[1] > 100.0 * NOISE
    assert search.earlier[-len(carried) :] == search.rivals.carried()  # as they were
