"""Rows next to each other in one input show what a random subset does not."""

from __future__ import annotations

import numpy as np
import pytest

from nearexact.gp.budget import TimeIsUpError
from nearexact.gp.search import Search
from nearexact.gp.search_evidence import evidence_for
from nearexact.gp.window_scan import starts_with_details
from nearexact.kernels import SquaredExponential
from tests.test_traps import panel

Data = tuple[np.ndarray, np.ndarray]


def searched(X: np.ndarray, y: np.ndarray, rows: int) -> Search:
    X, y = (X - X.mean(0)) / X.std(0), (y - y.mean()) / y.std()
    search = Search(SquaredExponential(), X, y, seed=0, most_rows=rows, polishes=False)
    search.run()
    return search


def ripples(rows: int) -> Data:
    """So fine that a few hundred random rows do not show them."""
    random = np.random.default_rng(0)
    X = random.uniform(-1.0, 1.0, size=(rows, 3))
    return X, X[:, 1] + 0.7 * np.sin(500.0 * X[:, 0]) + 0.3 * random.normal(size=rows)


@pytest.mark.parametrize("data", [ripples(3000), panel(3000, 1)])
def test_details_of_one_input_are_found(data: Data) -> None:
    search = searched(*data, rows=256)
    best = search.candidates[0].theta
    kernel, _ = search.layout.unpack(best)
    assert kernel.parameters["lengthscales"][0] > 0.05  # the search has not seen them
    starts = starts_with_details(search, best)
    assert starts
    for theta in starts:
        kernel, _ = search.layout.unpack(theta)
        assert kernel.parameters["lengthscales"][0] < 0.03


def test_a_smooth_function_has_none() -> None:
    random = np.random.default_rng(0)
    X = random.normal(size=(1500, 3))
    search = searched(X, np.sin(X[:, 0]) + 0.1 * random.normal(size=1500), rows=256)
    assert starts_with_details(search, search.candidates[0].theta) == []


def test_nothing_is_looked_for_where_the_search_has_seen_all_rows_and_no_time_is_no_answer() -> None:
    for rows, all_rows in [(200, 200), (256, 320)]:  # or nearly all of them
        search = searched(*panel(all_rows, 0), rows=rows)
        assert search.sizes[0] == rows
        assert starts_with_details(search, search.candidates[0].theta, seconds=-1.0) == []
    search = searched(*ripples(1500), rows=256)
    with pytest.raises(TimeIsUpError):
        starts_with_details(search, search.candidates[0].theta, seconds=-1.0)


def test_what_only_all_rows_show_ends_what_a_subset_says() -> None:
    search = searched(*ripples(2000), rows=300)
    assert search.is_complete
    assert search.rivals.are_left_behind
    best = search.candidates[0].theta
    evidence = evidence_for(search, best, 10.0)
    assert evidence is not None
    assert evidence.gain_per_row is None
