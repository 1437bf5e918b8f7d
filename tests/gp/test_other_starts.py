"""Starts that may lead higher with all rows: which they are, and what speaks for the best after them."""

from __future__ import annotations

import math

import numpy as np
import pytest

from nearexact.gp.budget import Timer
from nearexact.gp.other_starts import OtherEnd, OtherStart, OtherStarts
from nearexact.gp.search import Search
from nearexact.kernels import SquaredExponential
from nearexact.typing import FloatArray
from tests.problems import many_inputs

LOW = OtherEnd(-1000.0, 1.0)


@pytest.fixture(scope="module")
def search() -> Search:
    """Of half of the rows."""
    search = Search(
        SquaredExponential(), *many_inputs(520, 4), seed=0, most_rows=260, polishes=False, looks_for_details=False
    )
    search.run()
    assert search.is_complete
    return search


def taken(others: OtherStarts, best: list[FloatArray], *, follows: bool = True) -> list[OtherStart]:
    starts = []
    for start in others.take(lambda: best[-1], Timer(), lambda: 0.0):
        starts.append(start)
        if follows:
            others.followed(start, LOW, agrees=False)
    return starts


def test_only_when_all_of_them_were_followed_nothing_is_open(search: Search) -> None:
    best = search.candidates[0].theta
    others = OtherStarts(search, best)
    assert not others.are_followed
    assert taken(others, [best], follows=False)
    assert not others.are_followed
    assert not others.lack_time
    again = OtherStarts(search, best)
    starts = taken(again, [best])
    assert again.are_followed
    assert not any(np.array_equal(start.theta, best) for start in starts)  # which was followed before
    assert again.support() == max((1, 1), search.support_of(best))


def test_starts_of_a_subset_do_not_speak_for_a_theta_far_from_its_optimum(search: Search) -> None:
    best = search.candidates[0].theta
    assert search.support_of(best)[0] > 1
    assert OtherStarts(search, best, has_moved=True).support() == (1, 1)


def test_without_time_to_look_for_details_something_is_open(search: Search) -> None:
    best = search.candidates[0].theta
    others = OtherStarts(search, best)
    for start in others.take(lambda: best, Timer(1.0), lambda: math.inf):
        others.followed(start, LOW, agrees=False)
    assert others.lack_time
    assert not others.are_followed


def test_one_optimum_with_two_values_of_the_noise_is_one_start(search: Search) -> None:
    best = search.candidates[0].theta
    kernel, noise_variance = search.layout.unpack(best)
    others = OtherStarts(search, search.layout.pack(kernel, 2.0 * noise_variance))
    assert others.support() == (0, 0)
    start = next(others.take(lambda: best, Timer(), lambda: 0.0))
    assert start.theta is best
    others.followed(start, LOW, agrees=True)
    assert others.support() == (1, 1)


def test_what_leads_higher_is_started_from_again(search: Search) -> None:
    first = search.candidates[0].theta
    kernel, _ = search.layout.unpack(first)
    better = search.layout.pack(kernel, 0.37)
    others, best, made_from_better = OtherStarts(search, first), [first], 0
    for start in others.take(lambda: best[-1], Timer(), lambda: 0.0):
        if start.is_made and len(best) == 1:
            best.append(better)
            others.lead(start)
        elif start.is_made:
            made_from_better += search.layout.unpack(start.theta)[1] == pytest.approx(0.037)  # finer details
        others.followed(start, LOW, agrees=False)
    assert made_from_better
    assert others.support()[0] < 2  # what was made from the first one has led there, and nobody else


def test_each_of_several_that_lead_higher_is_started_from_again(search: Search) -> None:
    first = search.candidates[0].theta
    kernel, _ = search.layout.unpack(first)
    others, best = OtherStarts(search, first), [first]
    for start in others.take(lambda: best[-1], Timer(), lambda: 0.0):
        if start.is_made and len(best) <= 4:
            best.append(search.layout.pack(kernel, 0.37 + 0.1 * len(best)))
            others.lead(start)
        others.followed(start, LOW, agrees=False)
    assert len(best) == 5
    assert others.are_followed


def test_how_much_higher_another_may_be_counts_all_that_is_uncertain(search: Search) -> None:
    others = OtherStarts(search, search.candidates[0].theta)
    assert others.excess(5.0, 1.0) == 0.0
    start = next(others.take(lambda: search.candidates[0].theta, Timer(), lambda: 0.0))
    others.followed(start, OtherEnd(10.0, 3.0, 0.5), agrees=False)
    assert others.excess(9.0, 4.0) == pytest.approx(10.0 + 0.5 - 9.0 + 2.0 * 5.0)
