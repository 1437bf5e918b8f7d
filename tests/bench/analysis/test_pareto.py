"""Frontiers against the definition of dominance, areas against sums over a fine grid."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nearexact.bench.analysis import pareto, results
from nearexact.bench.analysis.areas import area, areas, cost_range
from nearexact.bench.analysis.losses import LML, RMSE
from tests.bench.synthetic import constant_trace, curve_trace, sgpr_trace, write_results, write_run

small = st.integers(0, 6).map(float)  # so that points are often equal in one or both
numbers = small | st.floats(0.0, 10.0) | st.sampled_from([math.nan, math.inf, -math.inf])


def dominates(a: tuple[float, float], b: tuple[float, float]) -> bool:
    return a[0] <= b[0] and a[1] <= b[1] and a != b


@given(st.lists(st.tuples(numbers, numbers), max_size=30))
def test_the_frontier_is_what_no_point_dominates(points: list[tuple[float, float]]) -> None:
    array = np.array(points).reshape(-1, 2)
    undominated = [points[i] for i in pareto.frontier(array[:, 0], array[:, 1])]
    finite = {p for p in points if all(math.isfinite(x) for x in p)}
    assert undominated == sorted(p for p in finite if not any(dominates(q, p) for q in finite))


run = st.lists(st.tuples(small, small), max_size=6)


@given(st.lists(run, min_size=1, max_size=5))
def test_the_median_frontier_is_the_median_of_the_best_at_each_cost(runs: list[list[tuple[float, float]]]) -> None:
    arrays = [np.array(points).reshape(-1, 2) for points in runs]
    costs, losses = pareto.median_frontier([(a[:, 0], a[:, 1]) for a in arrays])
    steps = []
    for cost in sorted({p[0] for points in runs for p in points}):
        best = sorted(min((p[1] for p in points if p[0] <= cost), default=math.inf) for points in runs)
        steps.append((cost, best[len(best) // 2]))
    finite = [p for p in steps if math.isfinite(p[1])]
    assert list(zip(costs.tolist(), losses.tolist(), strict=True)) == [
        p for p in finite if not any(dominates(q, p) for q in finite)
    ]


falling = st.lists(st.tuples(st.floats(0.5, 20.0), st.floats(-0.5, 1.5)), max_size=6)


@given(falling)
def test_the_area_is_the_mean_of_the_scaled_loss_over_the_logarithm_of_cost(points: list[tuple[float, float]]) -> None:
    array = np.array(points).reshape(-1, 2)
    keep = pareto.frontier(array[:, 0], array[:, 1])
    costs, losses = array[keep, 0], array[keep, 1]
    low, high = 1.0, 10.0
    grid = np.exp(np.linspace(math.log(low), math.log(high), 20_001))
    grid = np.sqrt(grid[1:] * grid[:-1])
    last = np.searchsorted(costs, grid, side="right") - 1
    heights = np.where(last >= 0, np.clip(losses[last] if len(losses) else 1.0, 0.0, 1.0), 1.0)
    assert area((costs, losses), (low, high), 0.0, 1.0) == pytest.approx(heights.mean(), abs=5e-4)


def test_ends_of_the_scale() -> None:
    assert area((np.array([1.0]), np.array([0.2])), (1.0, 100.0), 0.2, 1.0) == 0.0
    assert area((np.empty(0), np.empty(0)), (1.0, 100.0), 0.2, 1.0) == 1.0
    assert area((np.array([10.0]), np.array([0.2])), (1.0, 100.0), 0.2, 1.0) == pytest.approx(0.5)
    assert area((np.array([3.0]), np.array([0.6])), (3.0, 3.0), 0.2, 1.0) == pytest.approx(0.5)


def test_a_method_that_failed_everywhere_has_area_one_and_no_frontier(tmp_path: Path) -> None:
    content = results.read(write_results(tmp_path, seeds=2))
    hostile = next(name for name in content.sizes if name != "alpha")
    assert content.frontiers[RMSE.name, "elapsed"][hostile]["gpr"][0].size == 0
    table = areas(content).groupby(["dataset", "method", "metric", "cost"])["area"].mean()
    assert table[hostile, "gpr", "rmse", "elapsed"] == 1.0
    assert 0.0 < table[hostile, "sgpr", "rmse", "elapsed"] < 1.0
    assert table[hostile, "gpr", "negative_lml", "elapsed"] == 1.0
    assert table["alpha", "mean", "nlpd", "elapsed"] == pytest.approx(1.0, abs=1e-4)
    best = pareto.overall(content.frontiers[RMSE.name, "elapsed"]["alpha"])
    assert [cost for cost, *_ in best] == sorted(cost for cost, *_ in best)
    assert {"sgpr", "gpr"} & {method for *_, method in best}


def test_estimates_and_other_models_have_no_frontier_of_the_likelihood(tmp_path: Path) -> None:
    write_run(tmp_path, "a", "sgpr", 0, sgpr_trace(0))
    write_run(tmp_path, "a", "svgp", 0, curve_trace(0, final=200.0))
    for name in ("itergp", "fitc", "plugin"):
        write_run(tmp_path, "a", name, 0, curve_trace(0, final=900.0))
    write_run(tmp_path, "a", "linear", 0, constant_trace(950.0, 0.1, -1.0))
    write_run(tmp_path, "b", "itergp", 0, curve_trace(0, final=900.0))  # nothing to compare with
    content = results.read(tmp_path)
    curves = content.frontiers[LML.name, "elapsed"]
    assert {name: set(methods) for name, methods in curves.items()} == {"a": {"sgpr", "svgp"}, "b": set()}
    assert pareto.overall(curves["a"])[-1][2] == "sgpr"
    assert set(content.frontiers[RMSE.name, "elapsed"]["a"]) == set(content.runs["method"])
    table = areas(content)
    assert set(table.loc[table["metric"] == "negative_lml", "method"]) == {"sgpr", "svgp"}


def test_baselines_do_not_widen_the_range_of_costs() -> None:
    sgpr = (np.array([0.0, 2.0, 9.0]), np.array([3.0, 2.0, 1.0]))
    linear = (np.array([1e-4]), np.array([0.5]))
    assert cost_range([(True, linear), (False, sgpr)]) == (2.0, 9.0)
    assert cost_range([(True, linear)]) == (1e-4, 1e-4)
    assert cost_range([(False, (np.empty(0), np.empty(0)))]) is None
