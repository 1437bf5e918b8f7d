"""Results folders that are damaged or foreign: what cannot be used is left out or named, and never a traceback."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from nearexact.bench.analysis.points import EVIDENCE
from nearexact.bench.analysis.results import Size, read
from nearexact.bench.analysis.verdicts import near_exactness
from nearexact.bench.report.figures import all_figures
from nearexact.bench.report.page import write_report
from tests.bench.synthetic import NOISE, N, constant_trace, curve_trace, sgpr_trace, write_run

STRANGE = ["text", "", [1.0], {"a": [1]}, True, None, 10**300, 1e308, -1e308, math.inf, math.nan, -3, 0.5]
NUMBERS = ("elbo", "upper_bound", "rmse", "nlpd", "m", "flops", "peak_memory_mb", "predict_seconds")


def change_record(folder: Path, **changes: Any) -> None:
    """Overwrite entries of every run.json."""
    for path in folder.rglob("run.json"):
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def write_mixture(folder: Path, damage: dict[str, Any], info: dict[str, Any]) -> None:
    """Runs in which every third point has these values."""
    traces = {
        "sgpr": sgpr_trace(0),
        "gpr": curve_trace(0, final=300.0, exact=True),
        "itergp": curve_trace(1, final=300.0),
        "mean": constant_trace(NOISE, 1.0, 1.4),
    }
    for method, trace in traces.items():
        for point in trace[2::3]:
            point["info"] = point.get("info", {}) | info
            point |= damage
        write_run(folder, "alpha", method, 0, trace)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("value", STRANGE, ids=str)
def test_strange_values_in_the_information_of_points_are_no_numbers(value: Any, tmp_path: Path) -> None:
    names = ("scheduled_m", "stopped", "complete", "cut_short", "lower_bound", "exact_lml", "jitter", *EVIDENCE)
    write_mixture(tmp_path / "r", {}, dict.fromkeys(names, value))
    write_report(tmp_path / "r", tmp_path / "out", with_figures=False)
    assert (tmp_path / "out" / "report.html").exists()


@pytest.mark.parametrize(
    "value",
    [pytest.param(1e308, marks=pytest.mark.slow), -math.inf, math.nan, pytest.param(0.0, marks=pytest.mark.slow)],
    ids=str,
)
@pytest.mark.filterwarnings("error")
def test_extreme_numbers_do_not_stop_a_report(value: float, tmp_path: Path) -> None:
    write_mixture(tmp_path / "r", dict.fromkeys(NUMBERS, value), dict.fromkeys(EVIDENCE, value))
    write_report(tmp_path / "r", tmp_path / "out", with_figures=False)
    content = read(tmp_path / "r")
    figures = dict(all_figures(content, near_exactness(content)))
    assert {"near_exactness", "alpha_curves", "alpha_frontiers"} <= figures.keys()
    for figure in figures.values():
        figure.draw_without_rendering()  # all of the drawing; files take as long again


@pytest.mark.parametrize("value", ["many", 0, -3, 0.5, None])
def test_without_a_recorded_size_the_constant_predictor_tells_the_number_of_rows(value: Any, tmp_path: Path) -> None:
    write_run(tmp_path, "alpha", "sgpr", 0, sgpr_trace(0))
    write_run(tmp_path, "alpha", "mean", 0, constant_trace(NOISE, 1.0, 1.4))
    change_record(tmp_path, data={"n_train": value, "inputs": 3})
    with pytest.warns(UserWarning, match="data must be an object with the whole numbers n_train and inputs"):
        assert read(tmp_path).sizes["alpha"] == Size(N, None)


@pytest.mark.parametrize("elbo", [math.inf, -math.inf, math.nan, 5.0, 1e308])
def test_an_impossible_likelihood_gives_no_size(elbo: float, tmp_path: Path) -> None:
    write_run(tmp_path, "alpha", "mean", 0, constant_trace(elbo, 1.0, 1.4), n=None)
    assert read(tmp_path).sizes["alpha"] == Size(None, None)


@pytest.mark.parametrize(
    "content",
    ["{}", "[1]", "[[]]", "{", '"text"', "[" * 100_000, '[{"dataset": "alpha", "seed": 0}]',
     '[{"dataset": "alpha", "method": 1}]', '[{"dataset": "alpha", "method": "sgpr", "kl": [1]}]'],
    ids=lambda content: content[:40],
)  # fmt: skip
def test_a_fidelity_file_of_another_shape_is_named(content: str, tmp_path: Path) -> None:
    write_run(tmp_path, "alpha", "sgpr", 0, sgpr_trace(0))
    (tmp_path / "fidelity.json").write_text(content)
    with pytest.raises(ValueError, match=r"fidelity\.json") as error:
        read(tmp_path)
    assert "\n" not in str(error.value)
