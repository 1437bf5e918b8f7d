"""Search for hyperparameters on subsets: what it finds, within which limits, and what it says."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from nearexact.gp import ExactObjective, NumericalError
from nearexact.gp.budget import Timer
from nearexact.gp.known_optimum import SubsetOptimum
from nearexact.gp.rivals import MOST_CARRIED
from nearexact.gp.rounds import Round, StartingPoint
from nearexact.gp.rows import LocalRows, nearest_rows
from nearexact.gp.search import Search
from nearexact.gp.search_evidence import evidence_for, gain_per_row
from nearexact.gp.search_starts import LIKELY_NEW, MOST_RUGGED, MOST_STARTS
from nearexact.gp.starts import random_start, rough_start, with_less_influence
from nearexact.gp.subsets import subset_order, subset_sizes
from nearexact.kernels import SquaredExponential
from tests.problems import KERNELS, many_inputs, standardised


@pytest.mark.parametrize(
    ("n", "most", "sizes"),
    [(50, 4096, [50]), (512, 4096, [512]), (1000, 4096, [500, 1000]), (10**6, 4096, [512, 1024, 2048, 4096])],
)
def test_subsets_double_up_to_the_largest(n: int, most: int, sizes: list[int]) -> None:
    assert subset_sizes(n, most, 512) == sizes


def test_subsets_are_rows_without_repetition_and_hold_neighbours() -> None:
    random = np.random.default_rng(0)
    groups = random.normal(size=(500, 3))
    X = torch.tensor(np.repeat(groups, 4, axis=0) + 1e-3 * random.normal(size=(2000, 3)))
    order = subset_order(LocalRows(X, X[:, 0]), 300, np.random.default_rng(1))
    assert len(set(order.tolist())) == len(order) == 300
    groups_with_several = 300 - len({row // 4 for row in order})
    random_rows = np.random.default_rng(2).permutation(2000)[:300]
    assert groups_with_several > 1.5 * (300 - len({row // 4 for row in random_rows}))
    rows = np.arange(0, 2000, 97)
    assert (nearest_rows(X, rows) // 4 == rows // 4).all()
    assert (nearest_rows(X, rows) != rows).all()


@pytest.mark.parametrize("name", KERNELS)
def test_every_kernel_ends_at_least_as_high_as_from_its_own_values(name: str) -> None:
    X, y = standardised(40)
    ticks = itertools.count(0.0, 1e-3)  # so that the search is the same on a busy machine
    search = Search(KERNELS[name], X, y, seed=0, time_limit=0.3, clock=lambda: next(ticks))
    search.run()
    objective = search.objective(40)
    value, _ = objective(search.theta0)
    best = search.candidates[0]
    assert best.likelihood >= -value
    assert -objective(best.theta)[0] == pytest.approx(best.likelihood, abs=1e-6)
    assert gain_per_row(search, best.theta) == pytest.approx(0.0, abs=1e-9)
    assert gain_per_row(search, search.theta0) == pytest.approx((best.likelihood + value) / 40, rel=1e-6, abs=1e-9)


def test_it_leaves_the_noise_trap_and_says_how_many_starts_agree() -> None:
    X, y = many_inputs(200, 30)
    search = Search(SquaredExponential(), X, y, seed=0)
    search.run()
    (last,) = search.rounds
    assert last.likelihoods == tuple(sorted(last.likelihoods, reverse=True))
    assert last.agreeing >= 2
    evidence = evidence_for(search, search.candidates[0].theta, math.inf)
    assert evidence is not None
    assert (evidence.rows, evidence.agreeing) == (200, last.agreeing)
    assert evidence.gain_per_row < 1e-3
    noise = search.layout.pack(SquaredExponential(np.full(30, 1e3)), 1.0)
    there = evidence_for(search, noise, math.inf)
    assert there is not None
    assert there.gain_per_row > 0.1


def test_a_rugged_likelihood_gets_more_starts_than_one_with_a_single_hill() -> None:
    random = np.random.default_rng(0)
    X, noise = random.normal(size=(60, 6)), random.normal(size=60)
    rugged, smooth = (
        Search(SquaredExponential(), X, y / y.std(), seed=0)
        for y in (noise + np.sin(2.0 * X[:, 0]), np.sin(X[:, 0]) + 0.05 * noise)
    )
    for search in (rugged, smooth):
        search.run()
    starts = [len(search.rounds[0].likelihoods) for search in (rugged, smooth)]
    assert starts[0] > MOST_STARTS > starts[1]
    assert smooth.chance_of_another_hill() <= LIKELY_NEW
    assert starts[0] >= MOST_RUGGED or rugged.chance_of_another_hill() <= LIKELY_NEW


def test_the_same_seed_gives_the_same_search() -> None:
    X, y = standardised(520)
    searches = [Search(SquaredExponential(), X, y, seed=5) for _ in range(2)]
    for search in searches:
        search.run()
    assert [r.likelihoods for r in searches[0].rounds] == [r.likelihoods for r in searches[1].rounds]
    assert [r.rows for r in searches[0].rounds] == [260, 520]


def test_starts_are_the_same_side_by_side_and_one_after_the_other() -> None:
    X, y = standardised(520)
    found = []
    threads = torch.get_num_threads()
    try:
        for number in (1, 2):
            torch.set_num_threads(number)
            search = Search(SquaredExponential(), X, y, seed=5)
            search.run()
            found.append(search)
    finally:
        torch.set_num_threads(threads)
    alone, together = found
    for one, other in zip(alone.rounds, together.rounds, strict=True):
        assert one.likelihoods == pytest.approx(other.likelihoods, abs=1e-3 * one.rows)
        assert (one.rows, one.finished, one.support) == (other.rows, other.finished, other.support)
    assert alone.flops == pytest.approx(together.flops, rel=0.05)


@pytest.mark.parametrize("threads", [1, 2])
def test_ctrl_c_ends_all_climbs_soon(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[float] = []
    evaluate = ExactObjective.__call__

    def interrupted(objective: ExactObjective, theta: np.ndarray) -> tuple[float, np.ndarray]:
        calls.append(1.0)
        if len(calls) == 20:
            raise KeyboardInterrupt
        return evaluate(objective, theta)

    monkeypatch.setattr(ExactObjective, "__call__", interrupted)
    X, y = standardised(300)
    search, before = Search(SquaredExponential(), X, y, seed=0), torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        with pytest.raises(KeyboardInterrupt):
            search.run()
        assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
    assert len(calls) <= 60  # a search takes hundreds


def test_time_and_memory_limits_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    evaluate = ExactObjective.__call__

    def slow(objective: ExactObjective, theta: np.ndarray) -> tuple[float, np.ndarray]:
        now[0] += 1.0
        return evaluate(objective, theta)

    monkeypatch.setattr(ExactObjective, "__call__", slow)
    X, y = standardised(700)
    for limit in (0.5, 5.0, 40.0):
        now[0] = 0.0
        search = Search(SquaredExponential(), X, y, seed=0, time_limit=limit, clock=lambda: now[0])
        search.run()
        assert (
            now[0] <= limit + torch.get_num_threads()
        )  # by this clock those at the same time come one after the other
        assert len(search.rounds) == 1
        assert math.isfinite(search.candidates[0].likelihood)
        assert len(search.rounds[0].likelihoods) <= MOST_STARTS
    small = Search(SquaredExponential(), X, y, seed=0, memory=12 * 10**6)
    assert small.sizes == [350]
    none = Search(SquaredExponential(), X, y, seed=0, memory=1000)
    none.run()
    assert none.rounds == []
    assert evidence_for(none, none.theta0, 1.0) is None


@pytest.mark.parametrize("name", KERNELS)
def test_starts_are_allowed_values_of_the_same_kernel(name: str) -> None:
    X, y = standardised(20)
    layout = Search(KERNELS[name], X, y).layout
    theta = layout.pack(layout.kernel, 0.01)
    random = np.random.default_rng(0)
    starts = [random_start(layout, theta, random) for _ in range(20)]
    for start in [*starts, rough_start(layout, theta, [1]), with_less_influence(layout, theta)]:
        kernel, noise = layout.unpack(start)
        layout.check(kernel)
        assert noise >= layout.numerics.floor
    assert all(not np.array_equal(a, b) for a, b in itertools.pairwise(starts))


def test_what_a_subset_was_too_short_of_time_for_is_not_forgotten() -> None:
    X, y = many_inputs(520, 4)
    cut = Search(SquaredExponential(), X, y, seed=0)
    sizes, cut.sizes = cut.sizes, cut.sizes[:1]
    assert len(sizes) > 1
    cut.run()
    waiting = [candidate.theta for candidate in cut.rivals.carried()]
    assert len(waiting) > 1
    cut.timer = Timer(0.0)  # from here on there is no time but for a first evaluation
    cut._round(sizes[1], cut.starts.following(sizes[1]))
    assert not cut.rounds[-1].finished
    assert len(cut.rivals.carried()) >= len(waiting)
    for theta in waiting[1:]:
        assert any(np.array_equal(theta, candidate.theta) for candidate in cut.candidates)


@pytest.mark.parametrize("rounds", [1, 2])
def test_the_best_can_be_climbed_from_on_the_largest_subset_alone(rounds: int) -> None:
    """Whether there was a round on it or not; nobody says that the others were followed there."""
    X, y = standardised(520)
    search = Search(SquaredExponential(), X, y, seed=0, polishes=False)
    sizes = search.sizes
    search.sizes = sizes[:rounds]
    search.run()
    search.sizes = sizes
    if rounds == 2:  # as if its best had been cut short
        theta = search.candidates[0].theta + 0.1
        value, _ = search.objective(sizes[-1])(theta)
        search.candidates[0] = replace(search.candidates[0], theta=theta, likelihood=-value)
    before, known = search.candidates[0], len(search.candidates)
    search.polish(60.0)
    best, last = search.candidates[0], search.rounds[-1]
    value, gradient = search.objective(sizes[-1])(best.theta)
    assert (last.rows, last.settled, last.finished) == (sizes[-1], True, rounds == 2)
    assert best.likelihood == last.likelihoods[0] == pytest.approx(-value, abs=1e-6)
    assert best.likelihood > -search.objective(sizes[-1])(before.theta)[0]
    assert np.abs(gradient).max() < 0.05
    assert len(search.candidates) == known
    assert search.is_complete == (rounds == 2)
    again = search.candidates[0]
    search.polish(60.0)
    assert search.candidates[0] is again  # nothing is left to do


def test_what_was_not_tried_speaks_against_every_theta() -> None:
    """Rough starts come last: a search that had no time for them says nothing about functions with fast details."""
    random = np.random.default_rng(0)
    X = random.normal(size=(300, 3))
    y = np.sin(X[:, 1]) + 0.6 * np.sin(12.0 * X[:, 0]) + 0.05 * random.normal(size=300)
    search = Search(SquaredExponential(), X, (y - y.mean()) / y.std(), seed=0)
    smooth = itertools.islice(search.starts.first(), 6)
    search._round(search.sizes[-1], smooth)
    theta = search.candidates[0].theta
    assert evidence_for(search, theta, math.inf).gain_per_row is not None  # type: ignore[union-attr]
    search.rounds[-1] = replace(search.rounds[-1], finished=False)
    assert evidence_for(search, theta, math.inf).gain_per_row is None  # type: ignore[union-attr]


def first_starts(search: Search, count: int) -> list[np.ndarray]:
    starts = itertools.chain.from_iterable(search.starts.first())
    return [start.theta for start in itertools.islice(starts, count)]


def test_starts_are_the_same_whatever_values_a_kernel_comes_with() -> None:
    """But for one, its own: else the optimum of a fit would be where the next one looks, and agree with itself."""
    X, y = standardised(60)
    unit = Search(SquaredExponential(), X, y, seed=0)
    far = Search(SquaredExponential([60.0, 2.0, 0.01][: X.shape[1]], 1e6), X, y, seed=0)
    starts, others = (first_starts(search, 14) for search in (unit, far))
    different = [not np.array_equal(a, b) for a, b in zip(starts, others, strict=True)]
    assert sum(different) == 1
    assert np.array_equal(others[different.index(True)], far.theta0)


def test_a_start_made_from_the_best_does_not_agree_with_it() -> None:
    X, y = standardised(60)
    search = Search(SquaredExponential(), X, y, seed=0)
    search._round(60, iter([[StartingPoint(search.theta0)]]))
    best = search.candidates[0]
    search.rounds.clear()
    search._round(60, iter([[StartingPoint(search.theta0), StartingPoint(best.theta, is_derived=True)]]))
    assert search.rounds[-1].own_support == search.rounds[-1].support == (1, 1)


def test_more_steps_from_the_best_leave_behind_those_who_agree() -> None:
    """Also in several small ones."""
    agreed = Round(100, (10.0, 9.9, 9.8), 30, 1.0, finished=True).counted((3, 3), 100)
    assert agreed.with_best(10.4, settled=True).support == (3, 3)
    risen = agreed.with_best(10.4, settled=False).with_best(10.8, settled=True)
    assert risen.support == (1, 3)
    assert risen.settled


def test_starts_that_all_fail_leave_no_round(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise NumericalError("no start can be computed")

    X, y = standardised(700)
    search = Search(SquaredExponential(), X, y, seed=0)
    monkeypatch.setattr(search, "ascent", fail)
    search.run()
    assert search.rounds == []
    assert evidence_for(search, search.theta0, 1.0) is None


def test_starts_do_not_agree_with_what_beats_them_all() -> None:
    """A θ far above all that the search has found shows that it has missed the best."""
    X, y = standardised(300)
    search = Search(SquaredExponential(), X, y, seed=0)
    search.run()
    best = search.candidates[0]
    found = evidence_for(search, best.theta, 10.0)
    assert found is not None
    assert found.agreeing >= 2
    assert found.gain_per_row is not None
    search.candidates[0] = replace(best, likelihood=best.likelihood - 60.0)  # as if it had ended that far below
    fallen = replace(search.rounds[-1], likelihoods=(best.likelihood - 60.0,) * 5)
    search.rounds[-1] = fallen.counted((5, 5), fallen.rows)
    missed = evidence_for(search, best.theta * 1.0, 10.0)
    assert missed is not None
    assert missed.agreeing == 1


@pytest.mark.parametrize("most_rows", [200, 400])
def test_of_two_rivals_on_a_subset_nobody_knows_which_one_wins(most_rows: int) -> None:
    """With all rows it is known."""
    X, y = many_inputs(400, 3)
    search = Search(SquaredExponential(), X, y, seed=0, most_rows=most_rows)
    search.run()
    best, rows = search.candidates[0], search.rounds[-1].rows
    search.candidates = [best]
    known = evidence_for(search, best.theta, 10.0)
    assert known is not None
    assert known.gain_per_row == 0.0
    kernel, noise = search.layout.unpack(best.theta)
    elsewhere = search.layout.pack(kernel, 10.0 * noise)
    search.candidates.append(SubsetOptimum(elsewhere, best.likelihood - 0.01 * rows))
    rivals = evidence_for(search, best.theta, 10.0)
    assert rivals is not None
    assert (rivals.gain_per_row is None) == (most_rows < 400)


def at_other_end(search: Search, best: SubsetOptimum, above: float) -> SubsetOptimum:
    """As if there were another hill a little higher than the best."""
    _, noise = search.layout.unpack(best.theta)
    far = search.layout.pack(SquaredExponential([0.05] * search.layout.n_inputs), noise)
    return SubsetOptimum(far, best.likelihood + above)


def test_nobody_agrees_with_a_new_best_on_another_hill() -> None:
    """However little higher it is."""
    X, y = standardised(300)
    search = Search(SquaredExponential(), X, y, seed=0)
    search.run()
    assert search.rounds[-1].support[0] >= 2
    search.lead(search.objective(300), at_other_end(search, search.candidates[0], above=0.001 * 300))
    assert search.rounds[-1].support[0] == 1
    assert not search.rounds[-1].settled


def test_an_optimum_on_another_hill_is_a_rival_and_one_on_the_same_is_none() -> None:
    X, y = standardised(400)
    search = Search(SquaredExponential(), X, y, seed=0, most_rows=300)
    search.run()
    best, objective = search.candidates[0], search.objective(300)
    search.candidates = [best]
    search.take_note(objective, SubsetOptimum(best.theta + 1e-3, best.likelihood - 0.1))
    assert search.candidates == [best]
    search.take_note(objective, at_other_end(search, best, above=-0.001 * 300))
    assert len(search.candidates) == 2
    assert search.rivals.on_other_hills()


def test_what_bounds_make_equal_is_tried_once() -> None:
    """All rough starts are the same where lengthscales are fixed: they would agree with each other."""
    X, y = many_inputs(80, 4)
    fixed = SquaredExponential().with_bounds(lengthscales="fixed")
    search = Search(fixed, X, y, seed=0)
    begun: list[bytes] = []
    ascent = search.ascent

    def noted(objective: object, start: StartingPoint, *rest: object, **options: object) -> object:
        begun.append(start.theta.tobytes())
        return ascent(objective, start, *rest, **options)  # type: ignore[arg-type]

    search.ascent = noted  # type: ignore[method-assign, assignment]
    search.run()
    assert len(search.rounds) == 1
    assert len(begun) == len(set(begun))


def test_optima_that_are_too_many_to_be_carried_on_end_what_speaks_for_a_model() -> None:
    X, y = standardised(300)
    search = Search(SquaredExponential(), X, y, seed=0)
    search.run()
    best = search.candidates[0]
    assert not search.rivals.are_left_behind
    search.candidates = [replace(best, likelihood=best.likelihood - 0.001 * i) for i in range(MOST_CARRIED + 2)]
    assert len(search.rivals.carry_on()) == MOST_CARRIED
    assert search.rivals.are_left_behind
    assert search.rivals.left_behind == search.candidates[MOST_CARRIED:]
    assert search.may_be_completed


def test_a_subset_that_is_not_worth_its_time_is_left_out() -> None:
    asked: list[int] = []

    def is_worth(rows: int) -> bool:
        asked.append(rows)
        return rows < 1000

    search = Search(SquaredExponential(), *standardised(1100), seed=0, is_worth=is_worth)
    search.run()
    assert asked == [550, 1100]
    assert [subset.rows for subset in search.rounds] == search.sizes == [275, 550]
    assert search.is_complete
