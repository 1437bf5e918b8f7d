"""Comparisons of methods split by split, profiles and areas, against their definitions."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from nearexact.bench.analysis import profiles, results
from nearexact.bench.analysis.areas import areas
from nearexact.bench.analysis.comparisons import against_best, pairwise
from nearexact.bench.analysis.losses import LML, RMSE
from nearexact.bench.report.compute_tables import area_tables
from tests.bench.synthetic import as_results, curve_trace, points, sgpr_trace, write_run

LOSSES = {"a": [0.5, 0.6, 0.7, 0.4], "b": [0.51, 0.61, 0.70, 0.42], "c": [0.9, 0.8, 0.9, 0.7], "d": [0.1, 0.1]}


def ends(losses: dict[str, list[float]], dataset: str = "x") -> list[dict[str, object]]:
    return [
        {"dataset": dataset, "method": method, "seed": seed, "elapsed": 1.0, "rmse": loss, "elbo": -loss}
        for method, own in losses.items()
        for seed, loss in enumerate(own)
    ]


def test_who_is_within_a_standard_error_of_the_best_is_tied_with_it() -> None:
    frame = points([*ends(LOSSES), {"dataset": "x", "method": "d", "seed": 2, "elapsed": 1.0, "rmse": math.inf}])
    table = against_best(as_results(frame), RMSE).set_index("method")
    assert set(table["best"]) == {"a"}  # d is better on fewer splits only: one of its runs has no value
    assert table.loc["b", "p"] == pytest.approx(stats.ttest_rel(LOSSES["b"], LOSSES["a"]).pvalue)
    assert table.loc["b", "difference"] == pytest.approx(np.mean(LOSSES["b"]) - np.mean(LOSSES["a"]))
    assert table["tied"].to_dict() == {"a": True, "b": False, "c": False, "d": False}
    assert table.loc["d", "splits"] == 2
    near = {"a": [0.5, 0.6, 0.7], "b": [0.4, 0.7, 0.71], "c": [0.52, 0.61, 0.74]}
    tied = against_best(as_results(points(ends(near))), RMSE).set_index("method")["tied"]
    for method in near:
        difference = np.array(near[method]) - np.array(near["a"])
        assert tied[method] == (difference.mean() <= stats.sem(difference))
    assert tied["b"]
    assert not tied["c"]


def test_who_is_worse_by_nothing_that_can_be_seen_is_tied_with_the_best() -> None:
    losses = {"a": [0.5, 0.6], "b": [0.50001, 0.60001], "c": [0.502, 0.602]}  # always the same distance: no error
    table = against_best(as_results(points(ends(losses))), RMSE).set_index("method")
    assert table["tied"].to_dict() == {"a": True, "b": True, "c": False}


def test_only_chosen_methods_compete() -> None:
    table = against_best(as_results(points(ends(LOSSES))), RMSE, methods=["b", "c"]).set_index("method")
    assert table["tied"].to_dict() == {"b": True, "c": False}


def test_only_bounds_are_compared_by_their_likelihood() -> None:
    frame = points(ends({"gpr": [0.5, 0.6], "itergp": [0.1, 0.1], "sgpr": [0.7, 0.8]}))
    table = against_best(as_results(frame), LML).set_index("method")
    assert set(table["best"]) == {"gpr"}
    assert table.loc["itergp", "splits"] == 0
    assert pairwise(as_results(frame), LML)[["method", "other"]].to_numpy().tolist() == [["sgpr", "gpr"]]


def test_every_two_methods_are_compared_over_all_data_sets() -> None:
    frame = points([*ends(LOSSES), *ends({"a": [0.5, 0.5], "b": [0.3, 0.6], "linear": [0.9, 0.9]}, "y")])
    table = pairwise(as_results(frame), RMSE).set_index(["method", "other"])
    assert "linear" not in table.index.get_level_values("method")
    row = table.loc[("a", "b")]
    assert row[["datasets", "splits", "wins", "losses"]].tolist() == [2, 6, 4 - 1 + 1, 1]  # one split is a draw
    best = [np.minimum.reduce([LOSSES[m][k] if k < len(LOSSES[m]) else 1.0 for m in LOSSES]) for k in range(4)]
    on_x = np.mean([(LOSSES["a"][k] - LOSSES["b"][k]) / (1.0 - best[k]) for k in range(4)])
    on_y = np.mean([(0.5 - 0.3) / (1.0 - 0.3), (0.5 - 0.6) / (1.0 - 0.5)])
    assert row["difference"] == pytest.approx(100.0 * (on_x + on_y) / 2.0)
    assert row["low"] <= row["difference"] <= row["high"]


times = st.lists(st.floats(0.5, 50.0) | st.none(), min_size=3, max_size=3)


@settings(deadline=None, max_examples=25)
@given(st.dictionaries(st.sampled_from("pqr"), times, min_size=1), st.sampled_from([1.0, 2.0, 10.0, math.inf]))
def test_a_profile_is_the_share_of_splits_within_a_factor_of_the_fastest(
    needed: dict[str, list[float | None]], factor: float
) -> None:
    rows = [{"method": "best", "seed": seed, "elapsed": 100.0, "rmse": 0.1} for seed in range(3)]
    for method, own in needed.items():
        for seed, time in enumerate(own):
            rows.append({"method": method, "seed": seed, "elapsed": time or 0.5, "rmse": 0.1 if time else 0.8})
    table = profiles.ratios(as_results(points(rows)), RMSE)
    for method, own in needed.items():
        solved = 0
        for seed, time in enumerate(own):
            fastest = min([100.0, *(others[seed] or math.inf for others in needed.values())])
            solved += time is not None and time / fastest <= factor
        share, low, high = profiles.profile(table, method, np.array([factor]))
        assert share[0] == pytest.approx(solved / 3)
        assert low[0] <= share[0] <= high[0]


def test_a_run_that_has_counted_no_operations_has_no_area_over_them(tmp_path: Path) -> None:
    write_run(tmp_path, "a", "sgpr", 0, sgpr_trace(0))
    silent = [
        {name: value for name, value in point.items() if name != "flops"} for point in curve_trace(0, final=200.0)
    ]
    write_run(tmp_path, "a", "silent", 0, silent)
    write_run(tmp_path, "a", "failed", 0, [], "error")
    content = results.read(tmp_path)
    table = areas(content).set_index(["method", "metric", "cost"])["area"]
    assert math.isnan(table["silent", "rmse", "flops"])
    assert 0.0 < table["silent", "rmse", "elapsed"] < 1.0
    assert table["failed", "rmse", "flops"] == 1.0
    tables = {table.name: table for table in area_tables(content)}
    shown = tables["area_by_dataset"].texts().set_index("method")
    assert shown.loc["silent", "RMSE over FLOPs"] == "n/a"
    assert tables["area"].texts().set_index("method").loc["silent", "RMSE over FLOPs"] == "n/a"
