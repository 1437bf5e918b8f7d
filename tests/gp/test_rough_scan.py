"""The likelihood tells in which input a function is rough, before anything is climbed from."""

from __future__ import annotations

import numpy as np
import pytest

from nearexact.gp import ExactObjective
from nearexact.gp.rough_scan import MOST_INPUTS, RoughScan, likelihood_at, rougher_in_all
from nearexact.gp.starts import UNRELATED, rough_start, unit_start, with_related_values
from nearexact.kernels import ArcCosine, Linear, SquaredExponential
from nearexact.kernels.base import Kernel
from nearexact.typing import FloatArray

ROWS, INPUTS = 200, 12


def rough_in(d: int, seed: int) -> tuple[FloatArray, FloatArray]:
    """Groups of equal values of one input, in no order, each with its own level."""
    random = np.random.default_rng(seed)
    X = random.normal(size=(ROWS, INPUTS))
    X[:, d] = random.normal(size=50)[random.integers(0, 50, size=ROWS)]
    _, group = np.unique(X[:, d], return_inverse=True)
    y = random.normal(size=50)[group] + 0.3 * random.normal(size=ROWS)
    return X, (y - y.mean()) / y.std()


def scan(kernel: Kernel, X: FloatArray, y: FloatArray) -> RoughScan:
    objective = ExactObjective(kernel, 0.1, X, y)
    return RoughScan(objective, unit_start(objective.layout, 0.1), np.random.default_rng(0))


def taken(scan: RoughScan, most: int = 100, *, has_time: bool = True) -> list[FloatArray]:
    starts = (scan.take(lambda: has_time) for _ in range(most))
    return [theta for theta in starts if theta is not None]


def shortest(scan: RoughScan, starts: list[FloatArray]) -> list[int]:
    return [int(np.argmin(scan.objective.layout.unpack(at)[0].parameters["lengthscales"])) for at in starts]


@pytest.mark.parametrize("d", [0, 5, 11])
def test_the_input_with_details_comes_first_and_twice(d: int) -> None:
    found = scan(SquaredExponential(), *rough_in(d, seed=d))
    inputs = shortest(found, taken(found))
    assert inputs[:2] == [d, d]
    assert sorted(inputs[1:]) == list(range(INPUTS))
    assert found.is_complete


def test_a_scan_that_had_no_time_goes_on_where_it_was() -> None:
    found = scan(SquaredExponential(), *rough_in(3, seed=0))
    assert len(taken(found, 2, has_time=False)) == 2  # some start, so that a search knows that it is not done
    assert not found.is_complete
    assert shortest(found, taken(found))[:2] == [3, 3]
    assert found.is_complete


def test_of_many_inputs_some_are_looked_at_and_constant_ones_never() -> None:
    X, y = rough_in(3, seed=0)
    X[:, 5] = 1.0
    assert len(taken(scan(SquaredExponential(), X, y))) == INPUTS
    many = np.random.default_rng(0).normal(size=(20, MOST_INPUTS + 10))
    assert len(taken(scan(SquaredExponential(), many, many[:, 0]))) == MOST_INPUTS + 1


@pytest.mark.parametrize("kernel", [Linear(), ArcCosine(), SquaredExponential() + Linear()])
def test_every_kernel_has_such_starts(kernel: Kernel) -> None:
    found = scan(kernel, *rough_in(3, seed=0))
    starts = taken(found)
    assert len(starts) == INPUTS + 1
    assert all(np.isfinite(found.objective(at)[0]) for at in starts)


def test_values_that_have_nothing_to_do_with_each_other_may_get_related_again() -> None:
    """Levels of an ordered input: with a very short lengthscale each of them is a category."""
    layout = ExactObjective(SquaredExponential(), 0.1, *rough_in(0, seed=0)).layout
    gaps = np.full(INPUTS, 0.3)
    lengthscales = np.full(INPUTS, 2.0)
    assert with_related_values(layout, layout.pack(SquaredExponential(lengthscales), 0.1), gaps) is None
    lengthscales[4] = 0.3 / UNRELATED / 10.0
    related = with_related_values(layout, layout.pack(SquaredExponential(lengthscales), 0.1), gaps)
    assert related is not None
    kernel, noise = layout.unpack(related)
    assert noise == pytest.approx(0.1)
    assert kernel.parameters["lengthscales"] == pytest.approx(np.where(np.arange(INPUTS) == 4, 0.3, 2.0))


def test_where_only_rows_that_nearly_coincide_are_alike_all_inputs_are_rough_further_than_usual() -> None:
    random = np.random.default_rng(0)
    places = random.uniform(-0.2, 0.2, size=(100, 3))
    member = random.integers(0, 100, size=256)
    X, y = places[member], random.normal(size=100)[member] + 0.3 * random.normal(size=256)
    objective = ExactObjective(SquaredExponential(), 0.1, X, y)
    theta = unit_start(objective.layout, 0.1)
    found, usual = rougher_in_all(objective, theta), rough_start(objective.layout, theta, range(3))
    assert found is not None
    assert (found < usual).any()
    assert likelihood_at(objective, found) > likelihood_at(objective, usual)
    smooth = ExactObjective(SquaredExponential(), 0.1, X, X.sum(1))
    assert rougher_in_all(smooth, theta) is None
