"""Kernels as values: names, readable representations, and errors that say what was expected and what was given."""

from __future__ import annotations

import numpy as np
import pytest

from nearexact.kernels import ArcCosine, Kernel, Linear, Matern12, Periodic, SquaredExponential
from tests.kernels.formulas import RationalQuadratic
from tests.problems import features
from tests.tensors import Allocations


def test_a_scalar_is_broadcast_over_the_inputs() -> None:
    X = np.random.default_rng(0).normal(size=(6, 4))
    assert np.array_equal(SquaredExponential(0.5)(X), SquaredExponential([0.5] * 4)(X))
    assert SquaredExponential(0.5).for_inputs(4) == SquaredExponential([0.5] * 4)
    assert Periodic(2.0, 0.5).for_inputs(2).parameters["period"].tolist() == [2.0, 2.0]


def test_parameters_have_names_and_an_order() -> None:
    kernel = ArcCosine(1, [1.0, 2.0], 3.0, 4.0) + Linear(5.0)
    values = {name: value.tolist() for name, value in kernel.parameters.items()}
    assert values == {
        "0.weight_variances": [1.0, 2.0],
        "0.bias_variance": 3.0,
        "0.variance": 4.0,
        "1.variances": 5.0,
        "1.bias_variance": 1.0,
    }
    changed = kernel.with_parameters({"1.variances": 6.0})
    assert changed == ArcCosine(1, [1.0, 2.0], 3.0, 4.0) + Linear(6.0)


def test_kernels_cannot_be_changed() -> None:
    kernel = SquaredExponential([1.0, 2.0])
    with pytest.raises(AttributeError):
        kernel.variance = 2.0  # type: ignore[misc]
    with pytest.raises(ValueError, match="read-only"):
        kernel.parameters["lengthscales"][0] = 3.0


@pytest.mark.parametrize(
    ("kernel", "expected"),
    [
        (SquaredExponential(), "SquaredExponential(lengthscales=1, variance=1)"),
        (Matern12([0.123456, 1e6], 2), "Matern12(lengthscales=[0.1235, 1e+06], variance=2)"),
        (ArcCosine(2), "ArcCosine(order=2, weight_variances=1, bias_variance=1, variance=1)"),
        (
            (Linear() + Linear()) * Linear(),
            "(Linear(variances=1, bias_variance=1) + Linear(variances=1, bias_variance=1))"
            " * Linear(variances=1, bias_variance=1)",
        ),
    ],
)
def test_repr_is_readable(kernel: Kernel, expected: str) -> None:
    assert repr(kernel) == expected


def test_equal_means_same_formula_and_same_values() -> None:
    assert SquaredExponential(2.0) == SquaredExponential(2.0)
    assert SquaredExponential() != Matern12()
    assert ArcCosine(0) != ArcCosine(1)
    assert ArcCosine(origin=1) == ArcCosine(origin=1.0) != ArcCosine()
    assert ArcCosine(origin=np.array([1.0, 2.0])) == ArcCosine(origin=(1.0, 2.0))
    assert Linear() + Matern12() != Linear() * Matern12()
    assert SquaredExponential(2.0) != SquaredExponential([2.0, 2.0])


def test_another_origin_is_a_shift_of_the_inputs() -> None:
    X, Z = np.random.default_rng(0).normal(size=(2, 7, 3))
    origin = [0.5, -2.0, 1.0]
    for order in (0, 1, 2):
        np.testing.assert_allclose(
            ArcCosine(order, origin=origin)(X, Z), ArcCosine(order)(X - origin, Z - origin), rtol=1e-12
        )


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: SquaredExponential(-1.0), "lengthscales must be positive and finite, got -1"),
        (lambda: SquaredExponential([1.0, np.nan]), "lengthscales must be positive and finite, got \\[1, nan\\]"),
        (lambda: SquaredExponential(1.0, np.inf), "variance must be positive and finite, got inf"),
        (lambda: SquaredExponential(1.0, [1.0, 2.0]), "variance must be one number, got shape \\(2,\\)"),
        (lambda: SquaredExponential([[1.0]]), "lengthscales must be a number or one number per input"),
        (lambda: SquaredExponential([]), "got shape \\(0,\\)"),
        (lambda: ArcCosine(3), "order must be 0, 1 or 2, got 3"),
        (lambda: ArcCosine(origin=[0.0, np.inf]), "origin must be a finite number or one per input"),
        (lambda: ArcCosine(origin="here"), "origin must be a number or one per input, got 'here'"),
        (lambda: ArcCosine(origin=[1.0, 2.0])(np.ones((3, 3))), "origin has 2 values, but the inputs have 3 columns"),
        (lambda: Linear().with_parameters({"variance": 1.0}), "has the parameters .*'variances'.*got \\['variance'\\]"),
        (lambda: (Linear() + Linear()).with_parameters({"2.variances": 1.0}), "got \\['2.variances'\\]"),
        (lambda: SquaredExponential([1.0, 2.0])(np.ones((3, 3))), "lengthscales has 2 values.*3 columns"),
        (lambda: SquaredExponential()(np.ones(3)), "X must be a matrix .* got shape \\(3,\\)"),
        (lambda: SquaredExponential()(np.ones((3, 0))), "at least one column"),
        (lambda: SquaredExponential()(np.ones((3, 2)), np.ones((3, 1))), "Z must have 2 columns, got 1"),
        (lambda: SquaredExponential()(np.array([["a", "b"]])), "X must be a numeric matrix"),
    ],
)
def test_wrong_arguments_are_named(wrong, message: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ValueError, match=message):
        wrong()


def test_dotted_names_work_after_importing_the_package() -> None:
    import nearexact

    assert nearexact.kernels.SquaredExponential is SquaredExponential
    assert callable(nearexact.gp.sgpr_objective)


def test_composites_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        (Linear() + Linear()).operation = "*"  # type: ignore[misc]


def test_empty_inputs_give_empty_matrices() -> None:
    X = np.ones((3, 2))
    assert SquaredExponential()(X, X[:0]).shape == (3, 0)
    assert SquaredExponential()(X[:0]).shape == (0, 0)
    assert SquaredExponential().diag(X[:0]).shape == (0,)


def test_only_kernels_can_be_added() -> None:
    with pytest.raises(TypeError):
        SquaredExponential() + 1.0  # type: ignore[operator]
    with pytest.raises(TypeError):
        SquaredExponential() * 2.0  # type: ignore[operator]


@pytest.mark.parametrize(
    "kernel",
    [SquaredExponential(), Matern12(), Periodic(), Linear(), ArcCosine(1), RationalQuadratic(), Matern12() + Linear()],
    ids=repr,
)
def test_no_array_grows_with_the_square_of_the_number_of_columns(kernel: Kernel) -> None:
    n, m, d = 20, 5, 2000
    X = np.random.default_rng(0).normal(size=(n, d))
    kernel = kernel.for_inputs(d)
    with Allocations() as allocations:
        A, B = features(kernel, X, X[:m])
        kernel.cross_vjp(A, B, kernel.cross(A, B))
        kernel.diagonal_vjp(A, kernel.diagonal(A))
    assert allocations.largest_elements <= n * (4 * d + 2)
