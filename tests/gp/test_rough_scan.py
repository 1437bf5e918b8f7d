"""The likelihood tells in which input a function is rough, before anything is climbed from."""

from __future__ import annotations

import numpy as np
import pytest

from nearexact.gp import ExactObjective
from nearexact.gp.rough_scan import roughest_first
from nearexact.gp.starts import UNRELATED, unit_start, with_related_values
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


@pytest.mark.parametrize("d", [0, 5, 11])
def test_the_input_with_details_comes_first(d: int) -> None:
    objective = ExactObjective(SquaredExponential(), 0.1, *rough_in(d, seed=d))
    theta = unit_start(objective.layout, 0.1)
    starts = roughest_first(objective, theta, np.random.default_rng(0))
    assert len(starts) == INPUTS
    kernel, _ = objective.layout.unpack(starts[0])
    assert int(np.argmin(kernel.parameters["lengthscales"])) == d
    assert [int(np.argmin(objective.layout.unpack(at)[0].parameters["lengthscales"])) for at in starts].count(d) == 1


def test_without_time_the_inputs_come_in_any_order() -> None:
    objective = ExactObjective(SquaredExponential(), 0.1, *rough_in(3, seed=0))
    starts = roughest_first(objective, unit_start(objective.layout, 0.1), np.random.default_rng(0), seconds=-1.0)
    shortest = [int(np.argmin(objective.layout.unpack(at)[0].parameters["lengthscales"])) for at in starts]
    assert sorted(shortest) == list(range(INPUTS))


@pytest.mark.parametrize("kernel", [Linear(), ArcCosine(), SquaredExponential() + Linear()])
def test_every_kernel_has_such_starts(kernel: Kernel) -> None:
    objective = ExactObjective(kernel, 0.1, *rough_in(3, seed=0))
    starts = roughest_first(objective, unit_start(objective.layout, 0.1), np.random.default_rng(0))
    assert len(starts) == INPUTS
    assert all(np.isfinite(objective(at)[0]) for at in starts)


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
