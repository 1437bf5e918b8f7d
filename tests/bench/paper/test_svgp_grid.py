"""The SVGP experiment: the grid is the paper's, and a small one runs from the command line to the figure."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from nearexact.bench.paper.svgp import GRID, PUBLISHED_BEST, Setting, SVGPExperiment, ablations, mean_curve
from nearexact.cli import main


def test_the_grid_has_96_combinations_and_each_panel_its_ablation() -> None:
    settings = SVGPExperiment(Path("out")).settings()
    assert len(settings) == len(set(settings)) == 96
    assert len({setting.name for setting in settings}) == 96
    panels = ablations(settings, PUBLISHED_BEST)
    assert {title: len(group) for title, group in panels.items()} == {
        "minibatch size": 3, "learning rate": 4, "(β₁, β₂)": 4, "learning rate scheduler": 2,
    }  # fmt: skip
    assert all(PUBLISHED_BEST in group for group in panels.values())


def test_the_ablation_alone_is_what_the_figure_needs() -> None:
    settings = SVGPExperiment(Path("out"), ablation_only=True).settings()
    assert len(settings) == 1 + 2 + 3 + 3 + 1
    whole = ablations(SVGPExperiment(Path("out")).settings(), PUBLISHED_BEST)
    assert {title: set(group) for title, group in ablations(settings, PUBLISHED_BEST).items()} == {
        title: set(group) for title, group in whole.items()
    }


def test_parts_of_the_grid_and_values_outside_it() -> None:
    grid = {"batch_size": [7], "learning_rate": [0.3, 0.1], "scheduler": [True]}
    settings = SVGPExperiment(Path("out"), grid=grid).settings()
    assert len(settings) == 2 * len(GRID["beta_1"]) * len(GRID["beta_2"])
    assert {setting.batch_size for setting in settings} == {7}


@pytest.mark.slow
def test_a_small_grid_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["paper", "svgp", "--out", str(tmp_path), "--dataset", "step", "--steps", "40", "--inducing", "10"]
    command += ["--learning-rate", "0.1", "0.0001", "--batch-size", "100", "--beta-1", "0.9", "--beta-2", "0.999"]
    command += ["--scheduler", "on", "--threads", "1", "--reference-seeds", "2", "--quiet"]
    assert main(command) == 0
    output = capsys.readouterr().out
    assert "best: batch-100_rate-0.1_betas-0.9-0.999_scheduler" in output
    table = pd.read_csv(tmp_path / "svgp.csv")
    assert table["learning_rate"].tolist() == [0.1, 0.0001]
    assert table["elbo"].is_monotonic_decreasing
    assert table["status"].tolist() == ["finished", "finished"]
    assert (tmp_path / "svgp.png").read_bytes()[:4] == b"\x89PNG"

    traces = {path: path.read_bytes() for path in tmp_path.rglob("trace.jsonl")}
    assert len(traces) == 4  # two combinations, and SGPR on two splits
    assert main(command) == 0  # nothing is run again
    assert {path: path.read_bytes() for path in tmp_path.rglob("trace.jsonl")} == traces

    experiment = SVGPExperiment(
        tmp_path,
        "step",
        {"learning_rate": [0.1], "batch_size": [100]},
        steps=40,
        inducing=10,
        threads=1,
        reference_seeds=2,
    )
    reference = experiment.curve("sgpr-paper")
    ends = [json.loads(path.read_text().splitlines()[-1]) for path in (tmp_path / "sgpr-paper").rglob("trace.jsonl")]
    assert [end["m"] for end in ends] == [10.0, 10.0]
    assert reference["negative_elbo"].iloc[-1] == pytest.approx(-np.mean([end["elbo"] for end in ends]))
    assert reference["elapsed"].iloc[-1] == max(end["elapsed"] for end in ends)
    figure = experiment.figure(Setting(100, 0.1, 0.9, 0.999, True))
    assert [len(axes.lines) for axes in figure.axes] == [2, 2, 5, 3]  # SGPR's curve is in every panel


def test_no_result_is_an_error_that_says_so(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no combination of the grid has a result"):
        SVGPExperiment(tmp_path, "step").best()


def test_the_mean_of_curves_starts_where_all_have_begun_and_keeps_last_values() -> None:
    curves = [(np.array([1.0, 3.0]), np.array([10.0, 20.0])), (np.array([2.0, 5.0]), np.array([0.0, 8.0]))]
    costs, values = mean_curve(curves)
    np.testing.assert_array_equal(costs, [2.0, 3.0, 5.0])
    np.testing.assert_array_equal(values, [5.0, 10.0, 14.0])
    assert len(mean_curve([])[0]) == 0
