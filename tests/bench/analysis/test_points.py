"""The table of points that all of the analysis starts from."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from nearexact.bench.analysis.points import last_at


@given(st.lists(st.floats(0.0, 10.0), max_size=20).map(sorted), st.lists(st.floats(0.0, 10.0), max_size=8))
def test_the_last_point_at_or_before_a_moment(times: list[float], moments: list[float]) -> None:
    expected = [max((k for k, t in enumerate(times) if t <= moment), default=-1) for moment in moments]
    assert last_at(np.array(times), moments).tolist() == expected
