"""Greedy variance selection: the blocked algorithm against the literal one."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nearexact.gp import greedy_variance, inducing, select
from nearexact.kernels import Kernel, Linear, Matern12, Matern32, SquaredExponential
from tests.gp.helpers import literal, residuals_along
from tests.problems import KERNELS, SIMPLE


@pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS.keys())
def test_pivots_are_those_of_the_literal_algorithm(kernel: Kernel) -> None:
    X = np.random.default_rng(7).normal(size=(800, 3))
    for seed in (0, 1):
        expected = literal(kernel, X, 80, seed)
        got = greedy_variance(kernel, X, 80, seed=seed)
        assert got.tolist() == expected.tolist()


def test_pivots_are_the_same_across_many_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    X = np.random.default_rng(7).normal(size=(4000, 2))
    kernel = Matern32(0.7)
    expected = literal(kernel, X, 400, 3)
    assert greedy_variance(kernel, X, 400, seed=3).tolist() == expected.tolist()
    monkeypatch.setattr(inducing, "CANDIDATES", 16)
    monkeypatch.setattr(inducing, "BLOCK", 5)
    monkeypatch.setattr(inducing, "ROWS_AT_ONCE", 333)
    assert greedy_variance(kernel, X, 400, seed=3).tolist() == expected.tolist()


def grid() -> np.ndarray:
    return np.stack(np.meshgrid(np.arange(20.0), np.arange(20.0)), -1).reshape(-1, 2)


TIED = {
    "grid": (SquaredExponential(2.0), grid()),
    "grid, rough": (Matern12(5.0), grid()),
    "duplicated rows": (SquaredExponential(1.0), np.repeat(np.random.default_rng(0).normal(size=(100, 2)), 5, axis=0)),
    "past the numerical rank": (SquaredExponential(30.0), grid()),
    "few distinct rows": (Matern32(1.0), np.repeat(np.eye(4), 50, axis=0)),
    "low rank": (Linear(1.0), np.random.default_rng(0).normal(size=(800, 5))),
}


@pytest.mark.parametrize(("kernel", "X"), TIED.values(), ids=TIED.keys())
def test_with_ties_every_pivot_is_as_good_as_the_best(kernel: Kernel, X: np.ndarray) -> None:
    chosen = greedy_variance(kernel, X, 200, seed=1)
    own, largest = residuals_along(kernel, X, chosen)
    assert len(np.unique(chosen)) == len(chosen)
    assert (own >= largest - 1e-9 * kernel.diag(X).max()).all()


def test_equal_variances_are_taken_in_the_order_of_the_permutation() -> None:
    """K = I: all residuals are equal until their row is taken, so that only the permutation decides."""
    X = 100.0 * np.arange(2000.0)[:, None]
    for seed in (0, 1):
        order = np.random.default_rng(seed).permutation(len(X))
        assert greedy_variance(SquaredExponential(), X, 700, seed=seed).tolist() == order[:700].tolist()


def test_ties_do_not_break_a_block_up(monkeypatch: pytest.MonkeyPatch) -> None:
    updates = []
    update = inducing._Residuals._update
    monkeypatch.setattr(inducing._Residuals, "_update", lambda *args: (updates.append(1), update(*args)))
    greedy_variance(SquaredExponential(), 100.0 * np.arange(2000.0)[:, None], 640, seed=0)
    assert len(updates) <= 2 * 640 / inducing.BLOCK


def test_selection_ends_when_the_variance_has_run_out() -> None:
    X = np.repeat(np.eye(4), 50, axis=0)
    result = select(Matern32(1.0), X, 100, seed=0)
    assert sorted(X[result.indices].argmax(1).tolist()) == [0, 1, 2, 3]
    assert result.residual <= 1e-12
    assert len(greedy_variance(Linear(1.0), np.random.default_rng(0).normal(size=(300, 5)), 50, seed=0)) == 6


def test_a_smaller_selection_is_a_prefix_of_a_larger_one() -> None:
    X = np.random.default_rng(2).normal(size=(900, 3))
    for kernel in SIMPLE.values():
        large = greedy_variance(kernel, X, 100, seed=5)
        assert greedy_variance(kernel, X, 33, seed=5).tolist() == large[:33].tolist()


def test_the_seed_breaks_ties_and_nothing_else() -> None:
    X = np.random.default_rng(2).normal(size=(400, 3))
    kernel = SIMPLE["arc_cosine_2"]  # no ties: norms differ
    assert greedy_variance(kernel, X, 20, seed=1).tolist() == greedy_variance(kernel, X, 20, seed=2).tolist()
    stationary = SIMPLE["squared_exponential"]  # all variances equal at the start
    firsts = {int(greedy_variance(stationary, X, 1, seed=seed)[0]) for seed in range(20)}
    assert len(firsts) > 10


@pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS.keys())
def test_an_extension_continues_the_selection(kernel: Kernel) -> None:
    X = np.random.default_rng(2).normal(size=(900, 3))
    whole = greedy_variance(kernel, X, 120, seed=5)
    extended = greedy_variance(kernel, X, 120, seed=5, start=whole[:70])
    assert extended.tolist() == whole.tolist()


def test_an_extension_keeps_points_chosen_for_other_hyperparameters() -> None:
    """Copies among the given points add nothing to the factor, but stay selected."""
    X = np.random.default_rng(2).normal(size=(900, 3))
    X[800:] = X[:100]
    start = np.concatenate([greedy_variance(Matern12(0.1), X[:800], 150, seed=1), [800, 801, 802]])
    kernel = SquaredExponential(2.0)
    extended = greedy_variance(kernel, X, 220, seed=1, start=start)
    assert extended[: len(start)].tolist() == start.tolist()
    assert len(np.unique(extended)) == len(extended) <= 220
    own, largest = residuals_along(kernel, X, extended)
    assert (own[len(start) :] >= largest[len(start) :] - 1e-9).all()


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 60), st.integers(1, 3), st.integers(0, 10**6), st.sampled_from(list(SIMPLE.values())), st.data())
def test_any_data_give_distinct_rows(n: int, repeats: int, seed: int, kernel: Kernel, data: st.DataObject) -> None:
    X = np.repeat(np.round(np.random.default_rng(seed).normal(size=(n, 3)), 1), repeats, axis=0)
    m = data.draw(st.integers(1, len(X)))
    chosen = greedy_variance(kernel, X, m, seed=seed)
    assert 1 <= len(chosen) <= m
    assert len(np.unique(chosen)) == len(chosen)
    own, largest = residuals_along(kernel, X, chosen)
    assert (own >= largest - 1e-9 * kernel.diag(X).max()).all()


def test_tensors_are_accepted() -> None:
    X = np.random.default_rng(2).normal(size=(100, 3))
    kernel = SIMPLE["matern52"]
    assert (
        greedy_variance(kernel, torch.tensor(X), 9, seed=0).tolist() == greedy_variance(kernel, X, 9, seed=0).tolist()
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"m": 0}, "m must be a whole number between 1 and the number of rows, 10, got 0"),
        ({"m": 11}, "got 11"),
        ({"m": 2, "start": [0, 1, 2]}, "start must be at most m=2 different row numbers below 10"),
        ({"m": 5, "start": [0, 0]}, "different row numbers"),
        ({"m": 5, "start": [10]}, "row numbers below 10"),
        ({"m": 5, "start": [0.7]}, "different row numbers"),
        ({"m": 5.0}, "whole number .* got 5.0"),
        ({"m": 5, "X": [[0.0, np.nan]] * 10}, "X must be finite, got 10 NaN"),
    ],
)
def test_wrong_arguments_are_named(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        greedy_variance(**({"kernel": SquaredExponential(), "X": np.ones((10, 2)), "seed": 0} | arguments))  # type: ignore[arg-type]
