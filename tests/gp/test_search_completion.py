"""The rest of a search: what was left out is tried, on every subset, and counts."""

from __future__ import annotations

import math

import numpy as np
import pytest

from nearexact.gp.budget import Timer
from nearexact.gp.known_optimum import SubsetOptimum
from nearexact.gp.search import Search
from nearexact.gp.search_completion import complete_search
from nearexact.gp.search_evidence import evidence_for
from nearexact.kernels import SquaredExponential


def two_scales(rows: int) -> tuple[np.ndarray, np.ndarray]:
    """A smooth function of one input, and fast details of another, which only rough starts find."""
    random = np.random.default_rng(0)
    X = random.normal(size=(rows, 3))
    y = np.sin(X[:, 1]) + 0.6 * np.sin(12.0 * X[:, 0]) + 0.05 * random.normal(size=rows)
    return X, (y - y.mean()) / y.std()


class Clock:
    """A little later each time that it is looked at."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1e-6
        return self.now


def cut_short(rows: int, starts: int) -> tuple[Search, Clock]:
    """A search whose time is up after so many starts on its first subset."""
    clock = Clock()
    search = Search(SquaredExponential(), *two_scales(rows), seed=0, time_limit=1.0, polishes=False, clock=clock)
    ascent, count = search.ascent, 0

    def counted(*arguments: object, **options: object) -> object:
        nonlocal count
        count += 1
        number = count  # others may begin at the same time
        result = ascent(*arguments, **options)  # type: ignore[arg-type]
        if number == starts:
            clock.now += 2.0
        return result

    search.ascent = counted  # type: ignore[method-assign, assignment]
    search.run()
    search.ascent = ascent  # type: ignore[method-assign]
    return search, clock


@pytest.mark.parametrize("rows", [200, pytest.param(520, marks=pytest.mark.slow)])
def test_what_was_left_out_is_tried_and_may_win(rows: int) -> None:
    search, _ = cut_short(rows, starts=1)
    assert not search.is_complete
    smooth = search.candidates[0].likelihood / search.rounds[-1].rows
    complete_search(search, math.inf)
    assert search.is_complete
    assert search.open_rounds == []
    last, best = search.rounds[-1], search.candidates[0]
    assert last.rows == rows
    assert best.likelihood / rows > smooth + 0.3
    assert -search.objective(rows)(best.theta)[0] == pytest.approx(best.likelihood, abs=1e-6)
    whole = Search(SquaredExponential(), *two_scales(rows), seed=0, polishes=False)
    whole.run()
    assert best.likelihood >= whole.candidates[0].likelihood - 0.01 * rows


def test_without_time_nothing_is_lost_and_nothing_is_claimed() -> None:
    search, _ = cut_short(200, starts=1)
    before = search.candidates[0]
    complete_search(search, 0.0)
    assert not search.is_complete
    assert search.candidates[0] is before
    complete_search(search, math.inf)
    assert search.is_complete


def test_a_whole_search_is_left_as_it_is() -> None:
    search = Search(SquaredExponential(), *two_scales(120), seed=0)
    search.run()
    rounds, timer = list(search.rounds), search.timer
    complete_search(search, math.inf)
    assert (search.rounds, search.timer) == (rounds, timer)
    assert isinstance(timer, Timer)


def test_who_agrees_in_the_end_agrees_with_the_best_there_is_then() -> None:
    """Not with what was the best when the search was cut short."""
    search, _ = cut_short(100, starts=4)
    best = search.candidates[0]
    far = search.layout.pack(SquaredExponential([30.0, 30.0, 0.01]), 0.5)
    search.lead(search.objective(100), SubsetOptimum(far, best.likelihood + 1000.0))
    complete_search(search, math.inf)
    assert search.is_complete
    assert search.rounds[-1].support[0] == 1


def test_a_start_that_goes_on_counts_once() -> None:
    search, _ = cut_short(200, starts=1)
    assert search.open_rounds
    complete_search(search, math.inf)
    whole = Search(SquaredExponential(), *two_scales(200), seed=0, polishes=False)
    whole.run()
    assert len(search.rounds[-1].likelihoods) <= len(whole.rounds[-1].likelihoods)


def test_what_was_left_behind_is_followed_to_the_largest_subset() -> None:
    search = Search(SquaredExponential(), *two_scales(520), seed=0, polishes=False)
    search.run()
    assert [subset.rows for subset in search.rounds] == [260, 520]
    best, objective = search.candidates[0], search.objective(520)
    smooth = search.layout.pack(SquaredExponential([30.0, 1.0, 30.0]), 0.3)
    search.candidates = [SubsetOptimum(smooth, -objective(smooth)[0])]
    search.rivals.left_behind = [SubsetOptimum(smooth, -100.0), SubsetOptimum(best.theta, -101.0)]
    assert search.is_complete
    assert search.rivals.are_left_behind
    complete_search(search, 0.0)
    assert len(search.rivals.left_behind) == 2
    complete_search(search, math.inf)
    assert not search.rivals.are_left_behind
    assert search.candidates[0].likelihood == pytest.approx(best.likelihood, abs=0.001 * 520)
    assert search.rounds[-1].support[0] == 1  # nobody else has led there


def test_what_was_left_behind_ends_what_speaks_for_a_model_also_where_all_rows_were_searched() -> None:
    search = Search(SquaredExponential(), *two_scales(120), seed=0)
    search.run()
    best = search.candidates[0]
    known = evidence_for(search, best.theta, 10.0)
    assert known is not None
    assert known.gain_per_row is not None
    search.rivals.left_behind = [best]
    unknown = evidence_for(search, best.theta, 10.0)
    assert unknown is not None
    assert unknown.gain_per_row is None
