"""The presets: their names and folders, and what the toy problems show next to what the paper says."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from nearexact.bench.paper import presets
from nearexact.bench.paper.kernels import KERNELS, KernelStudy
from nearexact.bench.paper.presets import PRESETS
from nearexact.bench.paper.toys import TOYS, Toy, ToyStudy, converged_from, exact_likelihoods, train
from nearexact.cli import main
from nearexact.evidence import CERTIFIED_GAP

SCALED = [(name, scale) for name, preset in PRESETS.items() for scale in preset.scales or [None]]


@pytest.mark.parametrize(("name", "scale"), SCALED)
def test_every_preset_has_a_study_at_each_of_its_scales(name: str, scale: str | None, tmp_path: Path) -> None:
    study = PRESETS[name].study(tmp_path, scale, threads=1)
    assert study.total == {
        ("uci", "full"): 12 * 5 * 5, ("uci", "laptop"): 12 * 3 * 5, ("uci", "smoke"): 3 * 5,
        ("svgp", "full"): 96 + 5, ("svgp", "laptop"): 10 + 3, ("svgp", "smoke"): 10 + 2,
        ("kernels", "full"): 5 * 4 * 3, ("kernels", "laptop"): 5 * 4, ("kernels", "smoke"): 5 * 4,
    }.get((name, str(scale)), 0)  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["paper", "run", "uci", "--out", "out"], "scales of uci are full, laptop, smoke: choose one with --scale"),
        (["paper", "run", "snelson", "--out", "out", "--scale", "full"], "scales of snelson are none: leave it out"),
        (["paper", "run", "snellson", "--out", "out"], "there is no preset 'snellson'; there are snelson, step-"),
        (["paper", "figures", "out"], "out has no preset.json: make results with `nearexact paper run"),
    ],
)
def test_wrong_commands_are_explained(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_folder_belongs_to_one_preset_at_one_scale(tmp_path: Path) -> None:
    presets.claim(tmp_path, PRESETS["uci"], "smoke")
    presets.claim(tmp_path, PRESETS["uci"], "smoke")
    with pytest.raises(ValueError, match=r"has results of .*smoke.*, not of .*laptop.*: choose another folder"):
        presets.claim(tmp_path, PRESETS["uci"], "laptop")
    assert presets.recorded(tmp_path).total == 15
    (tmp_path / presets.RECORD).write_text("[1]")
    with pytest.raises(ValueError, match="must say which preset"):
        presets.recorded(tmp_path)


def test_the_list_names_all_presets_and_scales(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["paper", "list"]) == 0
    words = capsys.readouterr().out.split()
    assert {*PRESETS, "full", "laptop", "smoke"} <= set(words)


def test_convergence_is_from_the_last_time_outside_on() -> None:
    bounds = pd.DataFrame({"m": [1, 2, 3, 4]})
    assert converged_from(bounds, pd.Series([5.0, 0.1, -3.0, 0.2]), 1.0) == 4
    assert converged_from(bounds, pd.Series([0.0, 0.1, 0.3, 0.2]), 1.0) == 1
    assert converged_from(bounds, pd.Series([0.0, 0.1, 0.3, 2.0]), 1.0) is None


@pytest.mark.data("snelson")
def test_on_snelson_the_elbo_has_converged_at_about_12_and_the_upper_bound_after_about_16(tmp_path: Path) -> None:
    """As the paper says below figure 1; also at the optimum that the exact GP finds itself."""
    X, y = ToyStudy("snelson", tmp_path).data
    bounds, example = train(Toy("snelson", "se", (10, 12, 14, 16, 18, 20), 12, ""), X, y)
    exact = exact_likelihoods(X, y, ["se", "matern52"]).set_index("kernel")
    lml, near = exact["log_marginal_likelihood"]["se"], CERTIFIED_GAP * len(y)
    assert lml > exact["log_marginal_likelihood"]["matern52"]
    assert converged_from(bounds, bounds["elbo"] - lml, near) == 12
    assert converged_from(bounds, bounds["upper_bound"] - lml, near) == 18
    assert bounds["lengthscales"].iloc[-1] == pytest.approx(exact["lengthscales"]["se"], rel=0.01)
    assert example["inducing"].sum() == 12


def test_on_the_step_the_bounds_of_matern_do_not_meet_and_those_of_arc_cosine_do(tmp_path: Path) -> None:
    """As the paper says below figure 2 and in the appendix."""
    X, y = ToyStudy("step-matern12", tmp_path).data
    matern, _ = train(Toy("step", "matern12", (50, 150, 200), 50, ""), X, y)
    gaps = matern["upper_bound"] - matern["elbo"]
    assert (gaps.iloc[:2] > 50.0).all()
    assert gaps.iloc[2] == pytest.approx(0.0, abs=1e-3)  # with all points
    assert (np.diff(matern["lengthscales"]) < -0.2).all()  # still shrinking
    arc_cosine, _ = train(Toy("step", "arccosine", (4,), 4, ""), X, y)
    exact = exact_likelihoods(X, y, ["se", "matern12", "arccosine"]).set_index("kernel")["log_marginal_likelihood"]
    assert exact["arccosine"] > exact["matern12"] > exact["se"]
    assert arc_cosine["elbo"].iloc[0] == pytest.approx(exact["arccosine"], abs=CERTIFIED_GAP * len(y))
    # How near the upper bound is depends on which rows are selected; Matérn's is farther away with 150 points.
    assert (arc_cosine["upper_bound"] - arc_cosine["elbo"]).iloc[0] < 20.0


def test_a_toy_from_the_command_line_to_the_figure_and_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(TOYS, "step-matern12", Toy("step", "matern12", (5, 200), 5, "they do not meet"))
    monkeypatch.setattr("nearexact.bench.paper.toys.KERNELS", ("matern12",))
    command = ["paper", "run", "step-matern12", "--out", str(tmp_path)]
    assert main(command) == 0
    first = capsys.readouterr().out
    assert "paper: they do not meet" in first
    assert "here: the bounds meet to 2 nats from M = 200 on" in first
    assert (tmp_path / "step-matern12.png").read_bytes()[:4] == b"\x89PNG"
    bounds = pd.read_csv(tmp_path / "bounds.csv")
    assert (bounds["elbo"] <= bounds["exact_lml"] + 1e-6).all()
    assert (bounds["exact_lml"] <= bounds["upper_bound"] + 1e-6).all()
    changed = (tmp_path / "bounds.csv").stat().st_mtime_ns
    assert main(["paper", "figures", str(tmp_path)]) == 0
    assert capsys.readouterr().out == first
    assert main(command) == 0
    assert (tmp_path / "bounds.csv").stat().st_mtime_ns == changed  # nothing is trained again


def test_the_points_that_near_exactness_takes_are_read_off_the_traces(tmp_path: Path) -> None:
    study = PRESETS["kernels"].study(tmp_path, "smoke", threads=1)
    assert isinstance(study, KernelStudy)
    n = 170  # training rows of the step
    for spec in study.experiment.specs():
        if spec.dataset != "step":
            continue
        folder = spec.folder(study.experiment.out)
        folder.mkdir(parents=True)
        run = {"version": 1, "status": "finished", "spec": {**vars(spec)}}
        (folder / "run.json").write_text(json.dumps(run))
        meets = {"se": 50, "arccosine": 10}.get(spec.options["kernel"])
        points = [
            {
                "elapsed": float(m), "m": m, "elbo": -100.0, "upper_bound": -100.0 + gap, "milestone": True,
                "rmse": 0.5, "nlpd": 0.5, "info": {"lower_bound": -100.0},
            }
            for m in (10, 20, 50)
            for gap in [0.5 * CERTIFIED_GAP * n if meets is not None and m >= meets else 5.0 * n]
        ]  # fmt: skip
        (folder / "trace.jsonl").write_text("".join(json.dumps(point) + "\n" for point in points))
    table = study.table.set_index("kernel")
    assert table.index.tolist() == list(KERNELS)
    assert table["near_exact_m"].isna().tolist() == [False, True, True, True, False]
    assert (table["near_exact_m"]["se"], table["near_exact_m"]["arccosine"]) == (50, 10)
    assert table["gap_per_point"]["matern12"] == pytest.approx(5.0)
    (line,) = [line for line in study.findings() if line.startswith("step:")]
    assert "se 50, matern52 more than 50 (gap 5), matern32 more" in line
    (panel,) = study.figure().axes
    assert len(panel.lines) == len(KERNELS) + 1  # and the gap that counts as near
