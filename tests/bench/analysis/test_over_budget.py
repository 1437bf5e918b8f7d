"""Values beyond the budget: left out, unless they are asked for, and marked wherever they are."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from nearexact.bench.analysis import results, verdicts
from nearexact.bench.analysis.losses import RMSE
from nearexact.bench.analysis.targets import best_losses, compute_to_target
from nearexact.bench.report.figures import curves
from nearexact.bench.report.metric_tables import final_table
from nearexact.bench.report.report_tables import run_table
from nearexact.bench.report.table_cells import LATE, OVER_BUDGET
from nearexact.bench.store import RunStatus
from tests.bench.synthetic import curve_trace, sgpr_trace, write_run


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """SGPR within its budget; an exact GP whose better half, and one whose first value, came after it."""
    folder = tmp_path_factory.mktemp("results")
    for seed in range(2):
        write_run(folder, "a", "sgpr", seed, sgpr_trace(seed))
        exact = curve_trace(seed, final=320.0, seconds=40.0)
        write_run(folder, "a", "gpr", seed, exact, RunStatus.BUDGET, budget=20.0)
        write_run(folder, "a", "slow", seed, [exact[-1]], RunStatus.BUDGET, budget=20.0)
    return folder


def final(folder: Path, **options: bool) -> dict[str, str]:
    content = results.read(folder, **options)
    table = final_table(content)
    return dict(zip(table.frame["method"], table.texts()["rmse"], strict=True))


def test_they_are_no_end_no_target_and_no_frontier(folder: Path) -> None:
    content, whole = results.read(folder), results.read(folder, with_over_budget=True)
    ends = content.final.set_index(["method", "seed"])["elapsed"]
    assert ends.loc["gpr"].max() <= 20.0 < whole.final.set_index(["method", "seed"])["elapsed"].loc["gpr"].min()
    assert "slow" not in set(content.final["method"])
    assert (best_losses(content, RMSE) > best_losses(whole, RMSE)).any()
    needed = compute_to_target(content, RMSE, 0.05)
    assert (needed["elapsed"][needed["elapsed"] < math.inf] <= 60.0).all()
    assert not needed["over_budget"].any()
    assert compute_to_target(whole, RMSE, 0.05)["over_budget"].any()
    assert content.frontiers["rmse", "elapsed"]["a"]["gpr"][0].max() <= 20.0
    assert whole.frontiers["rmse", "elapsed"]["a"]["gpr"][0].max() > 20.0


def test_tables_say_so(folder: Path) -> None:
    assert final(folder)["slow"] == OVER_BUDGET
    assert LATE not in final(folder)["gpr"]
    asked = final(folder, with_over_budget=True)
    assert asked["gpr"].endswith(LATE)
    assert asked["slow"].endswith(LATE)
    assert LATE not in asked["sgpr"]
    runs = run_table(results.read(folder)).frame
    assert (runs.loc[runs["method"] == "gpr", "late_points"] > 0).all()
    judged = verdicts.run_verdicts(results.read(folder)).set_index(["method", "seed"])
    assert judged.loc[("slow", 0), ["verdict", "basis"]].tolist() == [
        "not reached", "its first value came after the budget"
    ]  # fmt: skip


def test_figures_show_them_hollow_and_name_them(folder: Path) -> None:
    content = results.read(folder)
    figure = curves(content, "a", content.smoothed, "elapsed")
    hollow = [line for line in figure.axes[1].get_lines() if line.get_markerfacecolor() == "white"]
    assert hollow
    assert all(min(line.get_xdata()) > 20.0 for line in hollow)
    assert "beyond the budget" in [text.get_text() for text in figure.legends[0].get_texts()]
