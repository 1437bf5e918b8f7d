"""The table of points that all of the analysis starts from."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nearexact.bench.analysis.points import last_at
from tests.bench.synthetic import points


@given(st.lists(st.floats(0.0, 10.0), max_size=20).map(sorted), st.lists(st.floats(0.0, 10.0), max_size=8))
def test_the_last_point_at_or_before_a_moment(times: list[float], moments: list[float]) -> None:
    expected = [max((k for k, t in enumerate(times) if t <= moment), default=-1) for moment in moments]
    assert last_at(np.array(times), moments).tolist() == expected


@pytest.mark.parametrize(
    ("stopped", "complete", "cut_short"),
    [
        ("converged", True, False),
        (None, True, False),
        (math.nan, True, False),
        (7, True, False),
        ("time limit", False, True),
        ("interrupted", False, True),
        ("failed: no Cholesky factor", False, False),
        ("no better than a smaller M", False, False),
    ],
)
def test_whether_a_stage_counts_is_read_from_the_reason_where_nothing_else_is_recorded(
    stopped: object, complete: bool, cut_short: bool
) -> None:
    row = {"elapsed": 1.0, "milestone": True, "stopped": stopped}
    table = points([row, {"elapsed": 2.0}])
    assert (table["complete"].tolist(), table["cut_short"].tolist()) == ([complete, True], [cut_short, False])
    assert table["complete"].dtype == table["cut_short"].dtype == bool
    recorded = points([row | {"complete": not complete}, {"elapsed": 2.0, "complete": "yes"}])
    assert recorded["complete"].tolist() == [not complete, True]
