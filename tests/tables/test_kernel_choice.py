"""The kernel that is chosen, and why."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import multivariate_normal
from sklearn.tree import DecisionTreeRegressor

from nearexact import SGPRegressor
from nearexact.bench import datasets
from nearexact.certificate import NEAR_EXACT
from nearexact.kernels import ArcCosine, Composite, Kernel, Linear, SquaredExponential
from nearexact.tables.kernel_choice import Choice, KernelOptimum, Trial, best_of, choose, finalists, named
from nearexact.tables.kernel_names import COMPARED, check_kernel
from nearexact.tables.splits import best_splits

STATIONARY = ("se", "matern12", "matern32", "matern52")


@pytest.mark.slow
def test_a_step_takes_an_arc_cosine_kernel_and_few_points() -> None:
    """The paper's example: no stationary kernel is as good there, whatever M is, nor near exact with so few points."""
    X, y = datasets.find("step").load()
    choice = choose(X, y)
    assert choice.name.startswith("arccosine")
    model = SGPRegressor(choice.kernel, random_state=0).fit(X, y)
    assert model.certificate_.verdict in NEAR_EXACT
    m = len(model.inducing_points_)
    for name in STATIONARY:
        same_m = SGPRegressor(named(name, X, y).kernel, max_inducing=100, random_state=0, procedure="paper").fit(X, y)
        needed = [stage.m for stage in same_m.history_ if stage.gap_per_point < 0.01]
        assert m <= min(needed, default=len(y))
        assert same_m.upper_bound_ < model.elbo_
    assert {trial.kernel for trial in choice.trials} == set(COMPARED)  # it says what it tried


def test_a_linear_function_takes_a_linear_kernel() -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(80, 2))
    y = X @ [1.0, -2.0] + 0.1 * rng.normal(size=80)
    choice = choose(X, y)
    trials = {trial.kernel: trial for trial in choice.trials}
    assert choice.name.endswith("+linear")
    assert trials[choice.name].bound > max(trials[name].bound for name in STATIONARY)
    assert isinstance(choice.kernel, Composite)
    assert isinstance(choice.kernel.parts[-1], Linear)


def trial(kernel: str, bound: float, parameters: int = 3) -> Trial:
    return Trial(kernel, bound, 200, 1.0, parameters=parameters)


def test_the_highest_likelihood_wins_and_of_equals_the_simplest() -> None:
    assert best_of([trial("se", 5.0), trial("matern12", 7.5)]).kernel == "matern12"
    assert best_of([trial("se", 5.5), trial("matern12", 7.0)]).kernel == "se"  # as good
    assert best_of([trial("matern32", 6.0), trial("matern12", 7.0)]).kernel == "matern12"  # as simple, and better
    assert best_of([trial("se+linear", 7.0), trial("matern52", 6.0)]).kernel == "matern52"
    assert best_of([trial("matern52+linear", 7.0), trial("se+linear", 6.0)]).kernel == "se+linear"


def test_a_parameter_has_to_earn_what_it_gains_by_itself() -> None:
    """Seven more, each ½ log 200 = 2.65 nats, and two nats that do not tell kernels apart."""
    assert best_of([trial("se", 5.0, 3), trial("se+linear", 25.0, 10)]).kernel == "se"
    assert best_of([trial("se", 5.0, 3), trial("se+linear", 26.0, 10)]).kernel == "se+linear"


def test_se_goes_on_whatever_its_rank() -> None:
    trials = [trial("se", -50.0), *(trial(name, -1.0 * rank) for rank, name in enumerate(list(COMPARED)[1:]))]
    assert finalists(trials, 0)[:3] == ["se", "matern12", "matern32"]
    assert [len(finalists(trials, number)) for number in (0, 1, 2, 9)] == [7, 5, 4, 4]


def wavy(n: int, d: int = 2) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, d)) * 3.0 + 1.0
    return X, 10.0 * np.sin(X[:, 0]) + X[:, -1] + rng.normal(size=n)


def test_likelihoods_are_exact_and_those_of_the_hyperparameters_that_were_found() -> None:
    """By the dense formula, on the rows that the choice says; and no small change of a hyperparameter is better."""
    X, y = wavy(260)
    seen: dict[tuple[str, int], KernelOptimum] = {}

    def look(trial: Trial, found: KernelOptimum | None) -> None:
        assert found is not None
        seen[trial.kernel, trial.rows] = found
        assert found.likelihood == trial.bound

    choice = choose(X, y, on_trial=look)
    assert choice.order is not None
    assert {name for name, rows in seen if rows == 130} == set(COMPARED)
    assert choice.rows == 260
    rows = np.sort(choice.order)
    assert np.array_equal(rows, np.arange(260))
    X, y = (X - X.mean(0)) / X.std(0), (y - y.mean()) / y.std()
    for (_, size), found in seen.items():
        x, targets = X[choice.order[:size]], y[choice.order[:size]]

        def likelihood(kernel: Kernel, noise: float, x: np.ndarray = x, targets: np.ndarray = targets) -> float:
            covariance = kernel(x) + noise * np.eye(len(x))
            return float(multivariate_normal(np.zeros(len(x)), covariance).logpdf(targets))

        assert found.likelihood == pytest.approx(likelihood(found.kernel, found.noise_variance), abs=1e-3)
        for factor in (0.8, 1.25):
            assert likelihood(found.kernel, factor * found.noise_variance) < found.likelihood + 0.05
            for name, value in found.kernel.parameters.items():
                other = found.kernel.with_parameters({**found.kernel.parameters, name: factor * value})
                assert likelihood(other, found.noise_variance) < found.likelihood + 0.05


def test_a_second_start_never_ends_below_the_first() -> None:
    X, y = wavy(50)
    trials = choose(X, y).trials
    assert len(trials) == 2 * len(COMPARED)
    for first, second in zip(trials[: len(COMPARED)], trials[len(COMPARED) :], strict=True):
        assert (first.kernel, first.rows) == (second.kernel, second.rows)
        assert second.bound >= first.bound


def test_the_same_seed_gives_the_same_choice() -> None:
    X, y = wavy(260)
    first, second, other = (choose_until(len(COMPARED), X, y, seed) for seed in (1, 1, 2))
    assert first.name == second.name
    assert [trial.bound for trial in first.trials] == [trial.bound for trial in second.trials]
    assert [trial.bound for trial in first.trials] != [trial.bound for trial in other.trials]


def choose_until(trials: int, X: np.ndarray, y: np.ndarray, seed: int = 0) -> Choice:
    """With a clock that stands still until so many trials are done, and then time is up."""
    told: list[Trial] = []

    def clock() -> float:
        return 0.0 if len(told) < trials else 100.0

    return choose(X, y, time_limit=10.0, seed=seed, on_trial=lambda trial, _: told.append(trial), clock=clock)


def test_what_no_time_was_left_for_is_named() -> None:
    X, y = wavy(60)
    choice = choose_until(3, X, y)
    assert choice.tried == ["se", "matern12", "matern32"]
    assert choice.untried == list(COMPARED)[3:]
    assert choice.name in choice.tried
    assert all("no time was left" in trial.note for trial in choice.trials[3:])


def test_a_round_that_time_cuts_short_does_not_count() -> None:
    X, y = wavy(260)
    choice = choose_until(2 * len(COMPARED) + 1, X, y)  # all of them twice on 130 rows, and one on 260
    assert choice.rows == 130
    assert [trial.rows for trial in choice.trials[: 2 * len(COMPARED) + 1]] == [130] * 2 * len(COMPARED) + [260]
    assert choice.untried == []
    assert choice.cut_short == []


def test_a_kernel_that_was_not_optimised_to_the_end_is_named() -> None:
    X, y = wavy(60)
    told: list[Trial] = []
    looks = 0

    def clock() -> float:
        """Time is up a few steps into the fourth kernel."""
        nonlocal looks
        looks += len(told) >= 3
        return 0.0 if looks < 8 else 100.0

    choice = choose(X, y, time_limit=10.0, seed=0, on_trial=lambda trial, _: told.append(trial), clock=clock)
    assert choice.tried == list(COMPARED)[:4]
    assert choice.cut_short == [COMPARED[3]]
    assert choice.untried == list(COMPARED)[4:]


def test_no_memory_is_no_reason_to_fail() -> None:
    X, y = wavy(60)
    choice = choose(X, y, memory_limit="1kB")
    assert (choice.name, choice.rows, choice.tried) == ("se", 0, [])
    assert "the memory limit" in choice.trials[0].note


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
    choice = choose(X, y, time_limit=0.3, on_trial=lambda trial, _: told.append(trial))
    assert choice.name in COMPARED
    assert tuple(told) == choice.trials
    untried = choose(X, y, time_limit=1e-9)
    assert (untried.name, untried.kernel, untried.rows) == ("se", SquaredExponential(), 0)


def test_unknown_kernels_are_named() -> None:
    with pytest.raises(ValueError, match="there is no kernel 'rbf'; there are auto, se, matern12"):
        check_kernel("rbf")
    check_kernel("auto")
    check_kernel("matern52+linear")
