"""Smoothing and median curves against their definitions, computed step by step."""

from __future__ import annotations

import math
from statistics import median

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nearexact.bench.analysis import curves
from tests.bench.synthetic import points

values = st.floats(-1e3, 1e3) | st.just(math.nan)
runs = st.lists(st.tuples(st.integers(1, 4), values, st.booleans()), min_size=1, max_size=25)


def naive_smoothing(m: list[int], elbo: list[float], milestone: list[bool]) -> list[int]:
    """Appendix E, step by step; a fall within an M counts as a discontinuity too."""
    finite = [value for value in elbo if math.isfinite(value)]
    tolerance = 0.001 * (max(finite) - min(finite)) if finite else 0.0
    shown = [0]
    holding = False
    for i in range(1, len(m)):
        before = shown[i - 1]
        if not holding and (milestone[i - 1] or m[i] != m[i - 1] or elbo[i] < elbo[i - 1] - tolerance):
            holding = True
        if holding and (math.isnan(elbo[before]) or elbo[i] >= elbo[before] - tolerance):
            holding = False
        shown.append(before if holding else i)
    return shown


@given(runs)
@settings(deadline=None)
def test_smoothing_holds_the_last_value_until_the_elbo_has_caught_up(run: list[tuple[int, float, bool]]) -> None:
    m, elbo, milestone = ([step[k] for step in run] for k in range(3))
    positions = curves.held_positions(np.array(m, dtype=float), np.array(elbo), np.array(milestone))
    assert positions.tolist() == naive_smoothing(m, elbo, milestone)


def test_a_restart_with_fewer_or_as_many_points_is_held_too() -> None:
    """Where selection runs out of variance M does not rise; both runs are real ones."""
    fewer = points(
        {"elapsed": k, "m": m, "elbo": e, "milestone": k == 1}
        for k, (m, e) in enumerate([(50, -100.0), (50, 5.6), (14, -159.6), (14, -23.0), (61, 5.7)])
    )
    assert curves.smooth(fewer)["elbo"].tolist() == [-100.0, 5.6, 5.6, 5.6, 5.7]
    as_many = points(
        {"method": "fitc", "elapsed": k, "m": 15, "elbo": e, "milestone": k == 1, "scheduled_m": 20}
        for k, e in enumerate([-590.0, -87.9, -593.0, -184.6])
    )
    assert curves.smooth(as_many)["elbo"].tolist() == [-590.0, -87.9, -87.9, -87.9]


def test_a_rescue_does_not_spike() -> None:
    """A second start within an M begins far below; the model that is kept is the better one."""
    trace = [(50, -100.0, 0.9), (50, -10.0, 0.3), (50, -400.0, 5.0), (50, -30.0, 0.5), (50, -9.0, 0.2)]
    rows = [{"elapsed": k, "m": m, "elbo": e, "rmse": r} for k, (m, e, r) in enumerate(trace)]
    assert curves.smooth(points(rows))["rmse"].tolist() == [0.9, 0.3, 0.3, 0.3, 0.2]
    svgp = points({**row, "method": "svgp"} for row in rows)  # no restarts: noise of its own is shown
    assert curves.smooth(svgp)["rmse"].tolist() == [0.9, 0.3, 5.0, 0.5, 0.2]


@pytest.mark.parametrize("name", ["gpr", "gpr{kernel=matern32}", "nearexact"])
def test_an_exact_gp_keeps_its_best_start(name: str) -> None:
    """A real run: the budget ended it within the second start, whose model nobody would be given."""
    trace = [(-406.9, 0.712), (-405.9, 0.710), (-488.6, 0.837), (-446.5, 0.791), (-417.0, 0.724)]
    rows = [
        {"method": name, "elapsed": k, "elbo": e, "upper_bound": e, "rmse": r, "milestone": k == 1}
        for k, (e, r) in enumerate(trace)
    ]
    smoothed = curves.smooth(points(rows))
    assert smoothed["elbo"].tolist() == smoothed["upper_bound"].tolist() == [-406.9, *[-405.9] * 4]
    assert smoothed["rmse"].tolist() == [0.712, *[0.71] * 4]
    own = points({**row, "method": "other"} for row in rows)  # a plug-in is taken at its word
    assert curves.smooth(own)["rmse"].tolist() == [r for _, r in trace]


def test_a_plugin_is_not_smoothed_for_being_called_like_sgpr() -> None:
    rows = [{"elapsed": k, "m": m, "elbo": e} for k, (m, e) in enumerate([(10, -5.0), (20, -9.0), (20, -4.0)])]
    for name in ("sgpr_fast", "sgpr_fast.py:SGPR", "sgpr-mine"):
        assert curves.smooth(points({**row, "method": name} for row in rows))["elbo"].tolist() == [-5.0, -9.0, -4.0]
    variant = points({**row, "method": "sgpr{kernel=matern32}"} for row in rows)
    assert curves.smooth(variant)["elbo"].tolist() == [-5.0, -5.0, -4.0]


def test_smoothing_changes_values_and_leaves_the_raw_points_alone() -> None:
    trace = [(10, -100.0, 0.9), (10, -50.0, 0.5), (20, -90.0, 0.8), (20, -50.04, 0.49), (20, -40.0, 0.4)]
    raw = points({"elapsed": k, "m": m, "elbo": e, "rmse": r} for k, (m, e, r) in enumerate(trace))
    before = raw.copy()
    assert curves.smooth(raw)["rmse"].tolist() == [0.9, 0.5, 0.5, 0.49, 0.4]  # 0.06 nats are 0.1 % of the range
    assert raw.equals(before)
    assert curves.smooth(raw)["elapsed"].tolist() == raw["elapsed"].tolist()


def test_what_is_no_bound_is_held_until_its_m_is_done_and_what_does_not_grow_not_at_all() -> None:
    trace = [(10, -50.0, True), (20, -90.0, False), (20, -80.0, True)]
    rows = [{"elapsed": k, "m": m, "elbo": e, "milestone": d} for k, (m, e, d) in enumerate(trace)]
    fitc = points({**row, "method": "fitc", "scheduled_m": row["m"]} for row in rows)
    assert curves.smooth(fitc)["elbo"].tolist() == [-50.0, -50.0, -80.0]
    other = points({**row, "method": "other"} for row in rows)
    assert curves.smooth(other)["elbo"].tolist() == [-50.0, -90.0, -80.0]


curve = st.lists(st.tuples(st.floats(0.1, 10.0), st.floats(-5.0, 5.0)), max_size=8)


@given(st.lists(curve, min_size=1, max_size=4))
def test_the_median_curve_is_the_median_of_what_each_run_had_last(runs: list[list[tuple[float, float]]]) -> None:
    ordered = [sorted(c, key=lambda p: p[0]) for c in runs]
    x, y = curves.median_curve([(np.array([p[0] for p in c]), np.array([p[1] for p in c])) for c in ordered])
    having = [c for c in ordered if c]
    expected = []
    for cost in sorted({p[0] for c in ordered for p in c}):
        last = [[p[1] for p in c if p[0] <= cost][-1] for c in having if c[0][0] <= cost]
        if 2 * len(last) >= len(having):
            expected.append((cost, median(last)))
    assert x.tolist() == [cost for cost, _ in expected]
    assert y.tolist() == pytest.approx([value for _, value in expected])
