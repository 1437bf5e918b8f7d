"""Estimates of the log marginal likelihood against the exact value that was recorded beside them."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from nearexact.bench.analysis import results
from nearexact.bench.analysis.estimates import estimates
from nearexact.bench.report import report_tables
from nearexact.bench.report.page import write_report
from tests.bench.synthetic import N, curve_trace, sgpr_trace, write_run


def write(folder: Path, seed: int, excesses: list[float]) -> None:
    trace = curve_trace(seed, final=300.0, points=len(excesses))
    for point, excess in zip(trace, excesses, strict=True):
        point["info"] = {"exact_lml": point["elbo"] - excess}
    write_run(folder, "a", "itergp", seed, trace)


def test_each_run_has_its_last_pair_and_its_largest_error(tmp_path: Path) -> None:
    write(tmp_path, 0, [-50.0, 20.0, 10.0])
    write(tmp_path, 1, [5.0, -8.0, math.nan])  # the exact value could not be computed at the end
    write(tmp_path, 2, [math.nan] * 3)
    write_run(tmp_path, "a", "sgpr", 0, sgpr_trace(0))
    content = results.read(tmp_path)
    table = estimates(content)
    assert table[["method", "seed", "points"]].to_numpy().tolist() == [["itergp", 0, 3], ["itergp", 1, 2]]
    assert (table["excess_per_point"] * N).tolist() == pytest.approx([10.0, -8.0])
    assert (table["largest_excess"] * N).tolist() == pytest.approx([-50.0, -8.0])
    assert (table["negative_lml_exact"] - table["negative_lml_estimate"]).tolist() == pytest.approx([10.0, -8.0])
    last = content.points[(content.points["method"] == "itergp") & (content.points["seed"] == 0)].iloc[-1]
    assert table["negative_lml_estimate"].iloc[0] == -last["elbo"]


def test_the_page_and_the_tables_show_them_if_there_are_any(tmp_path: Path) -> None:
    write_run(tmp_path / "r", "a", "sgpr", 0, sgpr_trace(0))
    assert "estimates" not in {table.name for table in report_tables.all_tables(results.read(tmp_path / "r"))}
    write(tmp_path / "r", 0, [-50.0, 20.0, 10.0])
    write_report(tmp_path / "r", tmp_path / "out", with_figures=False)
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert 'href="#estimates"' in page
    assert "Estimates next to the exact value" in page
    lines = (tmp_path / "out" / "tables" / "estimates.md").read_text(encoding="utf-8").splitlines()
    assert lines[0].startswith("| data set | method | seed | −LML, estimated | −LML, exact | LML too high by")
    assert lines[2].startswith("| a | IterGP | 0 |")
    assert lines[2].endswith("| 0.0100 | -0.0500 | 3 |")
