"""Curves, checkpoints and targets against what they say, computed without any tricks."""

from __future__ import annotations

import math
from statistics import median
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nearexact.bench.analysis import curves
from nearexact.bench.analysis.curves import LML, NLPD, RMSE
from tests.bench.synthetic import NOISE, N, points

values = st.floats(-1e3, 1e3) | st.just(math.nan)
runs = st.lists(st.tuples(st.integers(1, 4), values, st.booleans()), min_size=1, max_size=25)


def naive_smoothing(m: list[int], elbo: list[float], done: list[bool]) -> list[int]:
    """Appendix E, read out loud."""
    finite = [value for value in elbo if math.isfinite(value)]
    tolerance = 0.001 * (max(finite) - min(finite)) if finite else 0.0
    shown = [0]
    holding = False
    for i in range(1, len(m)):
        before = shown[i - 1]
        if not holding and (done[i - 1] or m[i] != m[i - 1]):
            holding = True
        if holding and (math.isnan(elbo[before]) or elbo[i] >= elbo[before] - tolerance):
            holding = False
        shown.append(before if holding else i)
    return shown


@given(runs)
def test_smoothing_holds_the_last_value_until_the_elbo_has_caught_up(run: list[tuple[int, float, bool]]) -> None:
    m, elbo, done = ([step[k] for step in run] for k in range(3))
    found = curves.held_positions(np.array(m, dtype=float), np.array(elbo), np.array(done))
    assert found.tolist() == naive_smoothing(m, elbo, done)


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


@given(st.lists(st.floats(0.0, 10.0), max_size=20).map(sorted), st.lists(st.floats(0.0, 10.0), max_size=8))
def test_the_last_point_at_or_before_a_moment(times: list[float], moments: list[float]) -> None:
    expected = [max((k for k, t in enumerate(times) if t <= moment), default=-1) for moment in moments]
    assert curves.last_at(np.array(times), moments).tolist() == expected


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


# ---- checkpoints -----------------------------------------------------------------------------------------------------

times = st.lists(st.floats(0.1, 20.0), min_size=1, max_size=6).map(sorted)


@st.composite
def traces(draw: Any) -> list[dict[str, Any]]:
    """Up to three seeds of SGPR, which may end early, and of a method beside it."""
    rows: list[dict[str, Any]] = []
    for seed in range(draw(st.integers(1, 3))):
        for k, time in enumerate(draw(times)):
            end = {"m": (10, 20, 50, 100, 200, 500)[k], "milestone": True, "method": "sgpr"}
            rows.append({**end, "seed": seed, "elapsed": time, "elbo": draw(st.floats(-9.0, 9.0)), "rmse": 0.5})
        other = {"method": "other", "seed": seed, "rmse": 0.4}
        rows += [{**other, "elapsed": time, "elbo": draw(st.floats(-9.0, 9.0))} for time in draw(times)]
    return rows


@settings(deadline=None, max_examples=50)
@given(traces())
def test_checkpoints_and_what_runs_had_at_them(rows: list[dict[str, Any]]) -> None:
    seeds = {row["seed"] for row in rows}
    marks = {}
    for m in {row["m"] for row in rows if row["method"] == "sgpr"}:
        ended = {row["seed"]: row["elapsed"] for row in rows if row.get("m") == m}
        if 2 * len(ended) > len(seeds):  # the others count as never
            marks[m] = median(ended.get(seed, math.inf) for seed in seeds)
    found = curves.checkpoints(points(rows))
    assert dict(zip(found["m"], found["seconds"], strict=True)) == pytest.approx(marks)
    assert found["seconds"].tolist() == sorted(found["seconds"])

    expected = {}
    for seed in {row["seed"] for row in rows}:
        mine = [row for row in rows if row["seed"] == seed]
        for row in mine:
            if row["method"] == "sgpr" and row["m"] in marks:
                expected["sgpr", seed, row["m"]] = -row["elbo"]
        other = sorted((row for row in mine if row["method"] == "other"), key=lambda row: row["elapsed"])
        expected["other", seed, "final"] = -other[-1]["elbo"]
        for m, moment in marks.items():
            before = [row for row in other if row["elapsed"] <= moment]
            if before:
                expected["other", seed, m] = -before[-1]["elbo"]
    table = curves.checkpoint_values(points(rows))
    got = {(row.method, row.seed, row.checkpoint): row.lml for row in table.itertuples()}
    finals = {key: got.pop(key) for key in list(got) if key[0] == "sgpr" and key[2] == "final"}
    assert got == pytest.approx(expected)
    assert len(finals) == len({row["seed"] for row in rows})


def test_a_stage_that_was_cut_short_makes_no_checkpoint() -> None:
    rows = [
        {"elapsed": 1.0, "m": 10, "elbo": -5.0, "milestone": True, "stopped": "converged"},
        {
            "elapsed": 2.0,
            "m": 10,
            "scheduled_m": 20,
            "elbo": -5.0,
            "milestone": True,
            "stopped": "no better than a smaller M",
        },
        {"elapsed": 3.0, "m": 50, "elbo": -9.0, "milestone": True, "stopped": "time limit"},
    ]
    assert curves.checkpoints(points(rows))["m"].tolist() == [10, 20]


def test_without_sgpr_its_family_makes_the_checkpoints_and_without_that_nobody() -> None:
    row = {"elapsed": 1.0, "m": 10, "elbo": -5.0, "milestone": True}
    assert curves.reference_method(points([row | {"method": "sgpr-paper"}, row | {"method": "other"}])) == "sgpr-paper"
    assert curves.reference_method(points([row | {"method": "other"}])) is None
    values = curves.checkpoint_values(points([row | {"method": "other"}]))
    assert values["checkpoint"].tolist() == ["final"]


# ---- targets ---------------------------------------------------------------------------------------------------------


@given(st.lists(values, max_size=20), st.floats(-1e3, 1e3), st.floats(0.0, 100.0))
def test_the_first_loss_within_a_range(losses: list[float], goal: float, slack: float) -> None:
    expected = next((k for k, loss in enumerate(losses) if goal - slack <= loss <= goal + slack), -1)
    assert curves.first_within(np.array(losses), goal - slack, goal + slack) == expected


loss_curves = st.lists(st.lists(st.floats(0.01, 2.0), min_size=1, max_size=8), min_size=1, max_size=4)


@settings(deadline=None)
@given(loss_curves, st.sampled_from([0.01, 0.05, 0.5]))
def test_compute_to_target_is_what_had_been_spent_when_the_loss_was_first_near_the_best(
    losses: list[list[float]], share: float
) -> None:
    rows = [
        {"method": f"m{k}", "elapsed": t + 1.0, "flops": 10.0 * t, "peak_memory_mb": 5.0, "rmse": loss}
        for k, curve in enumerate(losses)
        for t, loss in enumerate(curve)
    ]
    best = min(curve[-1] for curve in losses)
    goal = best + share * max(1.0 - best, 0.0)
    found = curves.compute_to_target(points(rows), RMSE, share, {"a": N}).set_index("method")
    for k, curve in enumerate(losses):
        first = next((t for t, loss in enumerate(curve) if loss <= goal), None)
        assert found.loc[f"m{k}", "elapsed"] == (math.inf if first is None else first + 1.0)
        assert found.loc[f"m{k}", "flops"] == (math.inf if first is None else 10.0 * first)


def test_only_bounds_set_the_best_log_marginal_likelihood_and_estimates_may_err_on_both_sides() -> None:
    rows = [
        {"method": "gpr", "elapsed": 1.0, "elbo": -500.0, "upper_bound": -500.0},
        {"method": "other", "elapsed": 1.0, "elbo": -200.0},  # far above: no better than far below
        {"method": "other", "elapsed": 2.0, "elbo": -497.0},
    ]
    frame = points(rows)
    assert curves.best_losses(frame, LML).tolist() == [500.0]
    found = curves.compute_to_target(frame, LML, 0.01, {"a": N}).set_index("method")["elapsed"]
    assert found.to_dict() == {"gpr": 1.0, "other": 2.0}


def test_a_better_lower_bound_has_reached_the_target_and_sets_it() -> None:
    """SVGP knows no upper bound, but its own is one below: far above SGPR's is better, not off."""
    losses = {"sgpr": (1400.0, 1300.0), "svgp": (1400.0, 500.0), "itergp": (450.0, 100.0), "linear": (90.0,)}
    frame = points(
        {"method": method, "elapsed": k + 1.0, "elbo": -loss}
        for method, mine in losses.items()
        for k, loss in enumerate(mine)
    )
    assert curves.bounded(frame) == {"sgpr", "svgp"}
    assert curves.best_losses(frame, LML).tolist() == [500.0]
    found = curves.compute_to_target(frame, LML, 0.05, {"a": N}).set_index("method")["elapsed"]
    assert found.to_dict() == {"sgpr": math.inf, "svgp": 2.0, "itergp": math.inf, "linear": math.inf}
    estimates = frame[frame["method"].isin(["itergp", "linear"])]
    assert curves.best_losses(estimates, LML).tolist() == [100.0]
    assert curves.best_losses(estimates[estimates["method"] == "linear"], LML).tolist() == [90.0]


def test_fitc_is_no_bound_even_with_an_upper_one() -> None:
    frame = points([{"method": name, "elapsed": 1.0, "elbo": -1.0, "upper_bound": 0.0} for name in ("fitc", "own")])
    assert curves.bounded(frame) == {"own"}


def test_the_constant_predictor_is_where_targets_start() -> None:
    assert LML.constant(N) == pytest.approx(-NOISE)
    assert NLPD.constant(None) == pytest.approx(-NOISE / N)
    assert RMSE.constant(N) == 1.0
