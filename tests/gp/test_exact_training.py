"""Training of the exact GP: starts, limits, records."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from nearexact.evidence import MOST_LIKELY_MISSED
from nearexact.gp import (
    ExactObjective,
    ExactPosterior,
    ExactTraining,
    NumericalError,
    Progress,
    Stage,
    exact_starts,
    exact_training,
    rivals,
    search,
)
from nearexact.gp.exact import exact_memory
from nearexact.gp.exact_training import SEARCHED_AT_ONCE
from nearexact.gp.known_optimum import SubsetOptimum
from nearexact.gp.starts import Start
from nearexact.kernels import SquaredExponential
from nearexact.kernels.stationary import PAIRS_AT_ONCE
from nearexact.noise_only import noise_only_likelihood
from tests.problems import KERNELS, many_inputs, standardised
from tests.tensors import Allocations
from tests.test_traps import groups


def test_finds_an_optimum_and_leaves_the_noise_trap() -> None:
    X, y = many_inputs(200, 30)
    training = ExactTraining(SquaredExponential(), X, y)
    training.run()
    assert [stage.rescues for stage in training.history] == list(range(len(training.history)))
    assert training.history[-1].ended == "optimum found"
    lower, upper = training.bounds()
    assert lower == upper == training.history[-1].objective
    assert lower > noise_only_likelihood(torch.tensor(y)) + 50.0
    kernel, noise = training.posterior().kernel, training.posterior().noise_variance
    objective = ExactObjective(kernel, noise, X, y)
    assert np.abs(objective(objective.theta0)[1]).max() < 0.05


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("n", [150, pytest.param(600, marks=pytest.mark.slow)])
def test_memory_is_what_was_announced(name: str, n: int) -> None:
    X, y = (torch.tensor(values) for values in standardised(n))
    with Allocations() as allocations:
        training = ExactTraining(KERNELS[name], X, y, time_limit=1e-9 if n > 200 else 0.5)
        training.objective(training.objective.theta0)
        training.run()
    # Where a start makes rows nearly coincide, the kernel looks at such pairs one by one; at most all of them.
    pairs = 8 * (12 + 3) * min(n * n, PAIRS_AT_ONCE)
    assert allocations.peak_bytes <= 1.05 * exact_memory(KERNELS[name].for_inputs(3), n) + pairs


@pytest.mark.parametrize("limit", [0.5, 3.0, 10.0, 40.0])
def test_time_limit_is_kept_within_one_evaluation(limit: float, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    factorise, value_and_gradient = ExactObjective.factorise, ExactObjective.value_and_gradient

    def slow_factorise(objective: ExactObjective, *args: object) -> object:
        now[0] += 1.0
        return factorise(objective, *args)  # type: ignore[arg-type]

    def slow_gradient(objective: ExactObjective, *args: object) -> object:
        now[0] += 2.0
        return value_and_gradient(objective, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(ExactObjective, "factorise", slow_factorise)
    monkeypatch.setattr(ExactObjective, "value_and_gradient", slow_gradient)
    X, y = standardised(60)
    training = ExactTraining(SquaredExponential(), X, y, time_limit=limit, clock=lambda: now[0])
    training.run()
    assert now[0] <= limit + 3.0 + 1.0
    assert training.history[-1].ended == "time limit"
    assert torch.isfinite(training.posterior().predict(X)[0]).all()


def test_a_second_start_that_fails_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    X, y = many_inputs(200, 30)
    evaluate, broken = ExactObjective.__call__, [False]

    def failing(objective: ExactObjective, theta: np.ndarray) -> tuple[float, np.ndarray]:
        if broken[0]:
            raise NumericalError("no luck")
        return evaluate(objective, theta)

    def break_it(stage: Stage, posterior: ExactPosterior) -> None:
        broken[0] = True

    monkeypatch.setattr(ExactObjective, "__call__", failing)
    training = ExactTraining(SquaredExponential(), X, y, on_stage=break_it)
    training.run()
    assert training.history[1].stopped.startswith("failed: ")
    assert training.bounds()[0] == training.history[0].elbo


def test_a_stage_may_end_the_training() -> None:
    def stop(stage: Stage, posterior: ExactPosterior) -> str:
        return "enough"

    X, y = many_inputs(200, 30)
    training = ExactTraining(SquaredExponential(), X, y, on_stage=stop)
    training.run()
    assert len(training.history) == 1


def in_a_hurry(
    monkeypatch: pytest.MonkeyPatch, X: np.ndarray, y: np.ndarray, start: Start | None = None
) -> tuple[ExactTraining, float]:
    """Training whose limit allows two factorisations of all rows and no climb, and how long it takes by its clock."""
    now = [0.0]
    factorise = ExactObjective.factorise

    def slow_factorise(objective: ExactObjective, *args: object) -> object:
        now[0] += (len(objective.X) / len(X)) ** 3
        return factorise(objective, *args)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(ExactObjective, "factorise", slow_factorise)
        training = ExactTraining(SquaredExponential(), X, y, time_limit=15.0, start=start, seed=0, clock=lambda: now[0])
        training.run()
    return training, now[0]


def test_without_time_to_climb_the_model_is_exact_at_the_hyperparameters_of_a_subset(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    X, y = standardised(400)
    training, seconds = in_a_hurry(monkeypatch, X, y)
    assert seconds <= 15.0
    assert (training.history[-1].ended, training.history[-1].evaluations) == ("time limit", 0)
    assert training.search.rounds[-1].rows < len(X)
    objective = ExactObjective(SquaredExponential(), 0.1, X, y)
    at_subset, at_start = (-objective(theta)[0] for theta in (training.search.candidates[0].theta, objective.theta0))
    assert training.bounds() == pytest.approx((at_subset, at_subset))
    assert at_subset > at_start


def test_in_a_hurry_a_start_that_is_better_for_all_rows_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    X, y = standardised(400)
    best = ExactTraining(SquaredExponential(), X, y, seed=0)
    best.run()
    start = (best.posterior().kernel, best.posterior().noise_variance)
    training, _ = in_a_hurry(monkeypatch, X, y, start)
    assert training.bounds()[0] == pytest.approx(best.bounds()[0])
    assert training.posterior().noise_variance == start[1]


def test_where_not_all_starts_can_be_followed_the_first_is_what_all_rows_speak_for() -> None:
    rng = np.random.default_rng(0)
    X = rng.uniform(-2.0, 2.0, size=(1500, 2))
    y = np.sin(3.0 * X[:, 0]) + np.sqrt(0.1) * rng.normal(size=1500)
    training = ExactTraining(SquaredExponential(), X, y, time_limit=1e4, seed=0)
    without_noise = training.layout.pack(SquaredExponential([0.6, 1.0]), 1e-4)
    training.search.candidates = [SubsetOptimum(without_noise, 0.0)]
    assert _noises_of_starts(training, 0.0) == pytest.approx([1e-4])
    assert _noises_of_starts(training, 1e4) == pytest.approx([1e-4])  # there is no time to climb at all
    assert _noises_of_starts(training, 1e3) == pytest.approx([0.1, 1e-4], rel=0.5)
    assert training.evidence().gain_per_row is None  # neither has been followed
    right = training.layout.pack(SquaredExponential([0.6, 1.0]), 0.1)
    training.search.candidates.append(SubsetOptimum(right, -0.1))
    assert _noises_of_starts(training, 1e3) == pytest.approx([0.1, 1e-4])  # each of them once
    assert training.starts.pending == pytest.approx([0.1, 0.0])


def _noises_of_starts(training: ExactTraining, evaluation_seconds: float) -> list[float]:
    training.evaluation_seconds = evaluation_seconds
    return [training.layout.unpack(theta)[1] for theta in training.starts.first()]


def test_ctrl_c_on_the_way_to_a_better_optimum_leaves_nothing_settled() -> None:
    """What was known of the optimum that the start has left says nothing about where it is now."""
    random = np.random.default_rng(0)
    X = random.normal(size=(300, 3))
    y = np.sin(X[:, 1]) + 0.6 * np.sin(12.0 * X[:, 0]) + 0.05 * random.normal(size=300)
    climbs: list[int] = []

    def interrupt(_: Progress) -> None:
        climbs.append(len(training.history))
        if climbs.count(1) == 3:
            raise KeyboardInterrupt

    training = ExactTraining(SquaredExponential(), X, (y - y.mean()) / y.std(), seed=0, on_step=interrupt)
    layout = training.layout
    smooth, rough = SquaredExponential([20.0, 1.5, 20.0]), SquaredExponential([0.15, 1.5, 20.0])
    starts = [layout.pack(smooth, 0.3), layout.pack(rough, 0.01)]
    training.starts.first = lambda: starts  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        training.run()
    first = training.record._starts[0].end.likelihood
    assert training.best_lml > first + 0.1 * 300
    training.interrupted()
    assert training.evidence().gain_per_row is None
    assert training.evidence().agreeing == 0


def test_what_the_search_had_no_time_for_is_tried_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    X, y = many_inputs(600, 3)
    whole = ExactTraining(SquaredExponential(), X, y, seed=0)
    whole.run()
    monkeypatch.setattr(exact_training, "SEARCH_SHARE", 1e-4)  # of ten minutes: 60 ms
    cut = ExactTraining(SquaredExponential(), X, y, seed=0, time_limit=600.0)
    cut._search_after_first_model(0.0)
    assert not cut.search.is_complete
    cut = ExactTraining(SquaredExponential(), X, y, seed=0, time_limit=600.0)
    cut.run()
    assert cut.search.is_complete
    assert cut.best_lml == pytest.approx(whole.best_lml, abs=1e-3 * len(y))
    assert cut.evidence().gain_per_row == 0.0
    assert cut.evidence().agreeing >= 2


def test_rivals_beyond_those_that_are_carried_on_are_followed_if_there_is_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rivals, "CARRIED", 1)
    monkeypatch.setattr(rivals, "MOST_CARRIED", 1)
    X, y = groups(520)
    X, y = (X - X.mean(0)) / X.std(0), (y - y.mean()) / y.std()
    training = ExactTraining(SquaredExponential(), X, y, seed=0)
    seen: list[int] = []
    training.on_stage = lambda stage, posterior: seen.append(len(training.starts.beyond))  # type: ignore[func-returns-value]
    training.run()
    assert seen[0] > 0  # while these wait, nothing speaks for the best
    assert training.starts.beyond == []
    followed = [start.theta for start in training.record._starts]
    for rival in training.search.rivals.on_other_hills():
        assert any(np.array_equal(rival.theta, theta) for theta in followed)


@pytest.mark.parametrize("most", [0, exact_starts.MOST_RANDOM])
def test_what_one_start_alone_has_found_random_ones_confirm_while_there_is_time(
    most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search.Search, "support_of", lambda self, theta: (0, 0))  # nobody agrees on any subset
    monkeypatch.setattr(exact_starts, "MOST_RANDOM", most)
    training = ExactTraining(SquaredExponential(), *many_inputs(120, 2), seed=0)
    training.run()
    assert training.evidence().gain_per_row == 0.0
    assert training.evidence().agreeing >= 2 if most else training.evidence().agreeing == 1


@pytest.mark.parametrize("n", [120, 420])
def test_where_starts_agree_on_a_subset_some_with_all_rows_tell_whether_these_have_another_optimum(
    n: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search.Search, "support_of", lambda self, theta: (9, 13))
    monkeypatch.setattr(exact_starts, "CONFIRMING_SHARE", math.inf)
    training = ExactTraining(SquaredExponential(), *many_inputs(n, 2), seed=0)
    training.run()
    assert training.record.is_confirmed()
    assert training.record.chance_of_missing() <= MOST_LIKELY_MISSED
    rows = training.search.rounds[-1].rows
    assert (rows == n) == (n <= SEARCHED_AT_ONCE)
    fresh = training.record._support_of_fresh()[1]
    assert (fresh > 0) == (rows < n)


def test_noise_is_not_searched_for_agreement(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search.Search, "support_of", lambda self, theta: (0, 0))
    random = np.random.default_rng(0)
    training = ExactTraining(SquaredExponential(), random.standard_normal((80, 2)), random.standard_normal(80), seed=0)
    training.run()
    assert training.explains_nothing
    assert [*training.starts._at_random()] == []
