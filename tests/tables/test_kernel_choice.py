"""The kernel that is chosen, and why."""

from __future__ import annotations

import math

import numpy as np
import pytest
from sklearn.tree import DecisionTreeRegressor

from nearexact import SGPRegressor
from nearexact.bench import datasets
from nearexact.certificate import NEAR_EXACT
from nearexact.gp.safety import NumericalError
from nearexact.kernels import ArcCosine, Composite, Linear, SquaredExponential
from nearexact.tables.kernel_choice import KERNELS, Trial, best_of, best_splits, check_kernel, choose, named

STATIONARY = ("se", "matern12", "matern32", "matern52")


def test_a_step_takes_an_arc_cosine_kernel_and_few_points() -> None:
    """The paper's example: no stationary kernel is as good there, whatever M is, nor near exact with so few points."""
    X, y = datasets.find("step").load()
    choice = choose(X, y, time_limit=15.0)
    assert choice.name.startswith("arccosine")
    model = SGPRegressor(choice.kernel, random_state=0).fit(X, y)
    assert model.certificate_.verdict in NEAR_EXACT
    m = len(model.inducing_points_)
    for name in STATIONARY:
        same_m = SGPRegressor(named(name, X, y).kernel, max_inducing=100, random_state=0, procedure="paper").fit(X, y)
        needed = [stage.m for stage in same_m.history_ if stage.gap_per_point < 0.01]
        assert m <= min(needed, default=len(y))
        assert same_m.upper_bound_ < model.elbo_
    assert {trial.kernel for trial in choice.trials} == set(KERNELS)  # it says what it tried


def test_a_linear_function_takes_a_linear_kernel() -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(80, 2))
    y = X @ [1.0, -2.0] + 0.1 * rng.normal(size=80)
    choice = choose(X, y, time_limit=8.0)
    trials = {trial.kernel: trial for trial in choice.trials}
    assert choice.name.endswith("+linear")
    assert trials[choice.name].bound > max(trials[name].bound for name in STATIONARY)
    assert isinstance(choice.kernel, Composite)
    assert isinstance(choice.kernel.parts[-1], Linear)


def test_best_bound_then_fewest_points_then_simplest() -> None:
    def trial(kernel: str, bound: float, m: int) -> Trial:
        return Trial(kernel, bound, m, 1.0)

    assert best_of([trial("se", 5.0, 10), trial("matern12", 7.0, 50)]).kernel == "matern12"
    assert best_of([trial("se", 6.95, 10), trial("matern12", 7.0, 50)]).kernel == "se"  # as good
    assert best_of([trial("se+linear", 7.0, 50), trial("se", 6.95, 50)]).kernel == "se"
    assert best_of([trial("se", -math.inf, 0), trial("matern12", -9.0, 50)]).kernel == "matern12"
    with pytest.raises(NumericalError, match="no kernel could be computed"):
        best_of([trial("se", -math.inf, 0)])


def test_splits_are_where_the_target_jumps() -> None:
    rng = np.random.default_rng(0)
    X = rng.uniform(0.0, 10.0, size=(400, 3)) * [1.0, 1.0, 0.0]
    y = 1.0 * (X[:, 0] > 7.0)
    found = np.array(best_splits(X, y)) * X.std(0) + X.mean(0)
    below, above = X[X[:, 0] <= 7.0, 0].max(), X[X[:, 0] > 7.0, 0].min()
    assert below < found[0] < above
    assert found[2] == 0.0  # a constant has no split
    assert isinstance(named("arccosine-split", X, y).kernel, ArcCosine)


def test_splits_are_those_of_trees_with_one_node() -> None:
    rng = np.random.default_rng(0)
    X = np.column_stack([rng.normal(size=(150, 120)), rng.integers(0, 4, size=(150, 3))])  # more than fit in one block
    y = np.sin(X[:, 0]) + X[:, -1] + 0.1 * rng.normal(size=150)
    trees = [DecisionTreeRegressor(max_depth=1).fit(X[:, [d]], y).tree_.threshold[0] for d in range(X.shape[1])]
    np.testing.assert_allclose(np.array(best_splits(X, y)) * X.std(0) + X.mean(0), trees, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(best_splits(X, np.ones(150)), 0.0, atol=1e-12)  # nothing to split: the mean


def test_no_time_is_no_reason_to_fail() -> None:
    X, y = datasets.find("step").load()
    told: list[Trial] = []
    choice = choose(X, y, time_limit=0.3, on_trial=lambda trial, model: told.append(trial))
    assert choice.name in KERNELS
    assert tuple(told) == choice.trials
    untried = choose(X, y, time_limit=1e-9)
    assert (untried.name, untried.kernel, untried.rows) == ("se", SquaredExponential(), 0)


def test_unknown_kernels_are_named() -> None:
    with pytest.raises(ValueError, match="there is no kernel 'rbf'; there are auto, se, matern12"):
        check_kernel("rbf")
    check_kernel("auto")
    check_kernel("matern52+linear")
