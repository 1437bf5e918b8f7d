"""Kernels by name, and bounds on their parameters: what users write, and what comes of it."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from nearexact.gp import gpr_objective, greedy_variance, sgpr_objective
from nearexact.kernel_names import SIMPLE_NAMES
from nearexact.kernels import (
    ArcCosine,
    Kernel,
    Linear,
    Matern12,
    Matern52,
    Periodic,
    SquaredExponential,
    named_kernel,
)
from nearexact.kernels.names import MAKERS
from tests.problems import regression


@pytest.mark.parametrize(
    ("name", "kernel"),
    [
        ("se", SquaredExponential()),
        ("arccosine2", ArcCosine(2)),
        ("se+linear", SquaredExponential() + Linear()),
        ("matern52*periodic", Matern52() * Periodic()),
        ("se + matern12*linear", SquaredExponential() + Matern12() * Linear()),
        ("(se + matern12)*linear", (SquaredExponential() + Matern12()) * Linear()),
        ("se+se+se", SquaredExponential() + SquaredExponential() + SquaredExponential()),
    ],
)
def test_a_name_is_the_kernel_that_one_would_write(name: str, kernel: Kernel) -> None:
    assert named_kernel(name) == kernel


@pytest.mark.parametrize(
    "name", ["", "rbf", "se+", "+se", "se se", "(se", "se)", "se-linear", "se/linear", "se**linear"]
)
def test_names_that_are_none_are_refused_with_those_that_there_are(name: str) -> None:
    with pytest.raises(ValueError, match=r"there is no kernel .*; there are se, matern12, .* sums \(\+\) and products"):
        named_kernel(name)


def test_the_core_takes_names_too() -> None:
    X, y = regression(20)
    for name, kernel in (("matern52", Matern52()), ("se+linear", SquaredExponential() + Linear())):
        for objective in (lambda k: gpr_objective(k, 0.1, X, y), lambda k: sgpr_objective(k, 0.1, X, y, X[:5])):
            named, written = objective(name), objective(kernel)
            assert named(named.theta0)[0] == written(written.theta0)[0]
        assert greedy_variance(name, X, 5, seed=0).tolist() == greedy_variance(kernel, X, 5, seed=0).tolist()


def test_there_is_a_kernel_for_each_simple_name() -> None:
    assert tuple(MAKERS) == SIMPLE_NAMES


def test_bounds_are_part_of_the_value() -> None:
    kernel = SquaredExponential(variance=2.0).with_bounds(variance="fixed", lengthscales=(0.1, 10.0))
    assert repr(kernel) == (
        "SquaredExponential(lengthscales=1, variance=2).with_bounds(variance='fixed', lengthscales=(0.1, 10))"
    )
    assert eval(repr(kernel)) == kernel == pickle.loads(pickle.dumps(kernel))
    assert kernel != SquaredExponential(variance=2.0)
    assert kernel.with_bounds(variance=None, lengthscales=None) == SquaredExponential(variance=2.0)
    for changed in (kernel.with_parameters({"variance": 3.0}), kernel.for_inputs(3)):
        assert changed.bounds.keys() == {"variance", "lengthscales"}
    assert SquaredExponential().bounds == {}  # kernels are values: the one above is another


def test_parts_of_a_sum_keep_their_bounds() -> None:
    kernel = SquaredExponential().with_bounds(variance="fixed") + Linear()
    assert kernel.bounds == {"0.variance": "fixed"}
    assert eval(repr(kernel)) == kernel
    assert kernel.with_bounds(**{"1.variances": "fixed", "0.variance": None}).bounds == {"1.variances": "fixed"}
    assert kernel.for_inputs(2).size == 5  # two lengthscales, two weights and a bias are free


def test_bounds_can_differ_from_input_to_input() -> None:
    kernel = SquaredExponential([1.0, 5.0]).with_bounds(lengthscales=([0.5, 5.0], [2.0, 5.0]))
    low, high = kernel.intervals()["lengthscales"]
    assert (low.tolist(), high.tolist()) == ([0.5, 5.0], [2.0, 5.0])
    assert kernel.size == 2  # the first lengthscale and the variance
    with pytest.raises(ValueError, match="lengthscales has 3 values, but bounds on it have 2"):
        SquaredExponential().with_bounds(lengthscales=([0.5, 5.0], [2.0, 5.0])).for_inputs(3).intervals()


@pytest.mark.parametrize(
    ("bounds", "message"),
    [
        ({"variance": "free"}, r'bounds on variance must be "fixed" or \(low, high\), got \'free\''),
        ({"variance": 1.0}, r'bounds on variance must be "fixed" or \(low, high\), got 1.0'),
        ({"variance": (2.0, 1.0)}, "0 <= low <= high"),
        ({"variance": (-1.0, 1.0)}, "0 <= low <= high"),
        ({"variance": (np.nan, 1.0)}, "0 <= low <= high"),
        ({"variance": ([1.0, 2.0], 3.0)}, r"bounds on variance must be numbers, got shape \(2,\)"),
        ({"lengthscales": ([1.0, 2.0], [3.0, 4.0, 5.0])}, "must be equally many, got 2 and 3"),
        ({"scale": "fixed"}, r"has the parameters \['lengthscales', 'variance'\], got \['scale'\]"),
    ],
)
def test_bounds_that_are_none_are_refused(bounds: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SquaredExponential().with_bounds(**bounds)  # type: ignore[arg-type]
