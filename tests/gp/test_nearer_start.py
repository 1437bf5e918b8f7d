"""A start far below the best comes nearer on few rows, and keeps the details that it stands for."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from nearexact.gp.exact import ExactObjective
from nearexact.gp.known_optimum import WORTH_CARRYING
from nearexact.gp.nearer_start import nearer_start
from nearexact.gp.rough_scan import likelihood_at
from nearexact.gp.search import Search
from nearexact.gp.window_scan import starts_with_details
from nearexact.typing import FloatArray
from tests.gp.test_window_scan import Data, ripples, searched
from tests.test_traps import panel

ROWS = 1500


def likelihood(search: Search, theta: FloatArray) -> float:
    """Of all rows."""
    X, y, _ = search.data.take(np.arange(ROWS))
    return likelihood_at(ExactObjective(search.layout.kernel, 0.1, X, y), theta)


def with_noise(search: Search, theta: FloatArray, noise_variance: float) -> FloatArray:
    return search.layout.pack(search.layout.unpack(theta)[0], noise_variance)


def lengthscales(search: Search, theta: FloatArray) -> FloatArray:
    return np.asarray(search.layout.unpack(theta)[0].parameters["lengthscales"])


@pytest.mark.parametrize("data", [ripples(ROWS), panel(ROWS, 1)])
def test_it_is_nearer_with_all_rows_too_and_keeps_its_details(data: Data) -> None:
    search = searched(*data, rows=256)
    best = search.candidates[0].theta
    for start in starts_with_details(search, best):
        far = with_noise(search, start, 1e-4)
        nearer = nearer_start(search, far, best, 60.0)
        below = likelihood(search, best) - WORTH_CARRYING * ROWS
        assert likelihood(search, far) < below
        assert likelihood(search, nearer) > likelihood(search, far) + 0.5 * (below - likelihood(search, far))
        assert lengthscales(search, nearer)[np.argmin(lengthscales(search, far))] < 0.1


def test_a_start_that_is_near_enough_stays_where_it_is_as_it_does_without_time() -> None:
    search = searched(*ripples(ROWS), rows=256)
    best = search.candidates[0].theta
    near = with_noise(search, best, 1.2 * search.layout.unpack(best)[1])
    assert nearer_start(search, near, best, 60.0) is near
    far = with_noise(search, best, 1e-4)
    assert nearer_start(search, far, best, 0.0) is far
    assert nearer_start(search, far, best, 60.0) is not far


def test_as_far_as_time_allows_is_better_than_not_at_all() -> None:
    search = searched(*ripples(ROWS), rows=256)
    best = search.candidates[0].theta
    far = with_noise(search, best, 1e-4)
    now = itertools.count().__next__  # a second for each time that it is asked
    search.timer.clock = lambda: float(now())
    reached = [nearer_start(search, far, best, seconds) for seconds in (0.0, 15.0, 1000.0)]
    likelihoods = [likelihood(search, theta) for theta in reached]
    assert likelihoods[0] < likelihoods[1] < likelihoods[2]
