"""Relevance orders columns by how much the function may change with them."""

from __future__ import annotations

import math

import numpy as np
import pytest

from nearexact.kernels import ArcCosine, Kernel, Linear, SquaredExponential
from nearexact.tables.columns import Column
from nearexact.tables.recipe import Recipe
from nearexact.tables.relevance import relevances


@pytest.mark.parametrize(
    "kernel",
    [
        SquaredExponential([0.5, 2.0, 1e3]),
        ArcCosine(0, [5.0, 1.0, 1e-5]),
        Linear([3.0, 1.0, 1e-5]),
        SquaredExponential([0.5, 3.0, 1e3]) + Linear([1e-5, 0.5, 1e-5]),
    ],
    ids=str,
)
def test_relevance_orders_columns_for_every_kernel(kernel: Kernel) -> None:
    recipe = Recipe("y", tuple(Column(name, "number") for name in "abc"))
    rows = np.random.default_rng(0).normal(size=(60, 3))
    found = relevances(kernel, rows, recipe)
    assert [entry.column for entry in found] == ["a", "b", "c"]
    assert found[0].relevance == 1.0
    assert found[2].relevance < 0.1
    assert all(entry.lengthscale is None or math.isfinite(entry.lengthscale) for entry in found)


def test_a_category_counts_as_one_column() -> None:
    recipe = Recipe("y", (Column("x", "number"), Column("k", "category", ("a", "b", "c"))))
    first, second = relevances(SquaredExponential([1.0, 10.0, 0.5, 10.0]), np.zeros((1, 4)), recipe)
    assert (first.column, first.lengthscale) == ("k", 0.5)
    ratio = math.sqrt((1.0 - math.exp(-0.5)) / (1.0 - math.exp(-2.0)))  # of 1 − k over a standard deviation
    assert (second.column, second.relevance) == ("x", pytest.approx(ratio))


def test_a_tiny_lengthscale_is_no_more_relevant_than_the_signal_allows() -> None:
    recipe = Recipe("y", (Column("x", "number"), Column("k", "boolean")))
    kernel = SquaredExponential([1.0, 1e-5]) + Linear([9.0, 1e-5])
    assert [entry.column for entry in relevances(kernel, np.zeros((1, 2)), recipe)] == ["x", "k"]


def test_relevance_of_many_inputs_takes_few_evaluations(monkeypatch: pytest.MonkeyPatch) -> None:
    """It took one for each input, and so a time that grew with the square of their number."""
    calls, evaluate = [], Kernel.__call__

    def counted(self: Kernel, *matrices: np.ndarray) -> np.ndarray:
        calls.append(matrices)
        return evaluate(self, *matrices)

    monkeypatch.setattr(Kernel, "__call__", counted)
    d = 1500
    lengthscales = np.random.default_rng(0).uniform(0.5, 5.0, size=d)
    recipe = Recipe("y", tuple(Column(f"x{i}", "number") for i in range(d)))
    rows = np.random.default_rng(1).normal(size=(60, d))
    ranking = relevances(SquaredExponential(lengthscales), rows, recipe)
    order = np.argsort(lengthscales)
    assert [entry.column for entry in ranking] == [f"x{i}" for i in order]
    changes = np.sqrt(1.0 - np.exp(-0.5 / lengthscales[order] ** 2))
    np.testing.assert_allclose([entry.relevance for entry in ranking], changes / changes[0], rtol=1e-6)
    assert len(calls) < d / 10
