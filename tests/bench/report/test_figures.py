"""Figures are written for whatever is in the results, as PDF and PNG."""

from __future__ import annotations

import shutil
from pathlib import Path

import matplotlib as mpl
import pytest
from matplotlib.figure import Figure

from nearexact.bench.analysis import results, verdicts
from nearexact.bench.report import figures
from nearexact.bench.report.method_styles import styles
from tests.bench.synthetic import write_results, write_run


@pytest.fixture(scope="module")
def content(tmp_path_factory: pytest.TempPathFactory) -> results.Results:
    folder = tmp_path_factory.mktemp("results")
    write_results(folder / "all", seeds=2)
    shutil.copytree(folder / "all" / "alpha", folder / "one" / "alpha")
    write_run(folder / "one", "alpha", "$cost$.py:$Own$", 0, [], "killed", "it cost $5 and $6")
    return results.read(folder / "one")


def test_all_figures_are_written_and_no_state_is_left(content: results.Results, tmp_path: Path) -> None:
    before = dict(mpl.rcParams)
    written = figures.write_figures(content, verdicts.near_exactness(content), tmp_path / "deep" / "down")
    assert dict(mpl.rcParams) == before
    names = {path.name for path in written}
    assert {f"alpha_{what}.{end}" for what in ("curves", "calibration", "frontiers") for end in ("pdf", "png")} < names
    assert {"near_exactness.pdf", "near_exactness.png"} < names
    for path in written:
        head = path.read_bytes()[:8]
        assert head.startswith(b"%PDF" if path.suffix == ".pdf" else b"\x89PNG")
        assert path.stat().st_size > 5000


@pytest.mark.parametrize("x", ["elapsed", "flops", "peak_memory_mb", "predict_seconds"])
def test_curves_can_be_drawn_over_every_cost(x: str, content: results.Results) -> None:
    points = content.smoothed
    figure = figures.curves(content, "alpha", points[points["dataset"] == "alpha"].reset_index(drop=True), x)
    assert isinstance(figure, Figure)
    panels = figure.axes
    assert [ax.get_title(loc="left") for ax in panels] == ["nLB and nUB", "RMSE", "NLPD", "CRPS"]
    assert figure.get_suptitle() == "alpha (n = 1000, d = 3)"
    drawn = {line.get_color() for line in panels[1].get_lines()}
    assert {styles(["sgpr"])["sgpr"].colour, styles(["gpr"])["gpr"].colour} <= drawn
    assert panels[1].get_ylim()[1] < 2.0  # an RMSE of 3.1e9 does not set the scale
