"""The best losses and the compute to come near them, against their definitions."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nearexact.bench.analysis.families import bounding_methods
from nearexact.bench.analysis.losses import LML, NLPD, RMSE
from nearexact.bench.analysis.targets import best_losses, compute_to_target, first_within
from tests.bench.synthetic import NOISE, N, as_results, points

values = st.floats(-1e3, 1e3) | st.just(math.nan)


@given(st.lists(values, max_size=20), st.floats(-1e3, 1e3), st.floats(0.0, 100.0))
def test_the_first_loss_within_a_range(losses: list[float], goal: float, slack: float) -> None:
    expected = next((k for k, loss in enumerate(losses) if goal - slack <= loss <= goal + slack), -1)
    assert first_within(np.array(losses), goal - slack, goal + slack) == expected


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
    needed = compute_to_target(as_results(points(rows)), RMSE, share).set_index("method")
    for k, curve in enumerate(losses):
        first = next((t for t, loss in enumerate(curve) if loss <= goal), None)
        assert needed.loc[f"m{k}", "elapsed"] == (math.inf if first is None else first + 1.0)
        assert needed.loc[f"m{k}", "flops"] == (math.inf if first is None else 10.0 * first)


def test_only_bounds_set_the_best_log_marginal_likelihood_and_estimates_may_err_on_both_sides() -> None:
    rows = [
        {"method": "gpr", "elapsed": 1.0, "elbo": -500.0, "upper_bound": -500.0},
        {"method": "other", "elapsed": 1.0, "elbo": -200.0},  # far above: no better than far below
        {"method": "other", "elapsed": 2.0, "elbo": -497.0},
    ]
    frame = points(rows)
    assert best_losses(as_results(frame), LML).tolist() == [500.0]
    needed = compute_to_target(as_results(frame), LML, 0.01).set_index("method")["elapsed"]
    assert needed.to_dict() == {"gpr": 1.0, "other": 2.0}


def test_a_better_lower_bound_has_reached_the_target_and_sets_it() -> None:
    """SVGP knows no upper bound, but its own is one below: far above SGPR's is better, not off."""
    losses = {"sgpr": (1400.0, 1300.0), "svgp": (1400.0, 500.0), "itergp": (450.0, 100.0), "linear": (90.0,)}
    frame = points(
        {"method": method, "elapsed": k + 1.0, "elbo": -loss}
        for method, own in losses.items()
        for k, loss in enumerate(own)
    )
    assert bounding_methods(frame) == {"sgpr", "svgp"}
    assert best_losses(as_results(frame), LML).tolist() == [500.0]
    needed = compute_to_target(as_results(frame), LML, 0.05).set_index("method")["elapsed"]
    assert needed.to_dict() == {"sgpr": math.inf, "svgp": 2.0, "itergp": math.inf, "linear": math.inf}
    estimates = frame[frame["method"].isin(["itergp", "linear"])]
    assert best_losses(as_results(estimates), LML).tolist() == [100.0]
    assert best_losses(as_results(estimates[estimates["method"] == "linear"]), LML).tolist() == [90.0]


def test_fitc_is_no_bound_even_with_an_upper_one() -> None:
    frame = points([{"method": name, "elapsed": 1.0, "elbo": -1.0, "upper_bound": 0.0} for name in ("fitc", "own")])
    assert bounding_methods(frame) == {"own"}


def test_the_constant_predictor_is_where_targets_start() -> None:
    assert LML.constant(N) == pytest.approx(-NOISE)
    assert NLPD.constant(None) == pytest.approx(-NOISE / N)
    assert RMSE.constant(N) == 1.0
