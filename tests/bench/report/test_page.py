"""`nearexact bench report`: from a results folder, whatever is in it, to a page, tables and figures."""

from __future__ import annotations

import cProfile
import json
import pstats
import re
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nearexact.bench import store
from nearexact.bench.analysis import verdicts
from nearexact.bench.analysis.checkpoints import checkpoint_values
from nearexact.bench.analysis.curves import smooth
from nearexact.bench.analysis.losses import COSTS, METRICS
from nearexact.bench.analysis.pareto import frontiers
from nearexact.bench.analysis.results import read
from nearexact.bench.report import report_tables
from nearexact.bench.report.chart_data import thin
from nearexact.bench.report.page import render, write_report
from nearexact.bench.store import PLAN, RunStatus
from nearexact.certificate import CERTIFIED_GAP, CONVERGED_CHANGE, CONVERGED_STEPS, PALETTES
from nearexact.cli import main
from tests.bench.synthetic import HOSTILE, NOISE, constant_trace, curve_trace, sgpr_trace, write_results, write_run


def embedded(page: str, name: str) -> object:
    match = re.search(rf'id="{name}">(.*?)</script>', page, flags=re.DOTALL)
    assert match is not None
    return json.loads(match[1])


def test_the_command_writes_page_tables_and_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(tmp_path / "results", "naval", "sgpr", 0, sgpr_trace(0), n=10143)
    out = tmp_path / "out"
    assert main(["bench", "report", str(tmp_path / "results"), "-o", str(out), "--published", "--x", "flops"]) == 0
    assert capsys.readouterr().out.split() == [str(out / "report.html"), str(out / "tables"), str(out / "figures")]
    for name in (
        "near_exactness",
        "near_exact_counts",
        "lml",
        "rmse",
        "nlpd",
        "compute_to_target",
        "area",
        "final",
        "runs",
    ):
        for suffix in ("csv", "md", "tex"):
            assert (out / "tables" / f"{name}.{suffix}").stat().st_size > 20
    assert (out / "figures" / "naval_curves.pdf").exists()
    page = (out / "report.html").read_text(encoding="utf-8")
    assert "SGPR (published, A6000)" in page
    assert len(page.encode()) < 8_000_000
    files = embedded(page, "files-data")
    assert isinstance(files, dict)
    assert files["lml.csv"] == (out / "tables" / "lml.csv").read_text(encoding="utf-8")
    assert files["lml.tex"] == (out / "tables" / "lml.tex").read_text(encoding="utf-8")


def test_a_folder_with_only_failures_still_gives_a_report(tmp_path: Path) -> None:
    for seed in range(2):
        write_run(
            tmp_path / "r", "alpha", "gpr", seed, [], RunStatus.OUT_OF_MEMORY, "MemoryError: far too much", n=None
        )
    write_run(tmp_path / "r", "beta", "sgpr", 0, [], RunStatus.ERROR, "ZeroDivisionError: no", n=None)
    write_report(tmp_path / "r", tmp_path / "out")
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert "MemoryError: far too much" in page
    assert "no result" in page
    assert "2 out-of-memory" in (tmp_path / "out" / "tables" / "rmse.md").read_text(encoding="utf-8")
    assert (tmp_path / "out" / "figures" / "near_exactness.png").exists()


@pytest.mark.parametrize("what", ["empty", "missing"])
def test_a_folder_without_runs_is_a_clear_error(what: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / what
    if what == "empty":
        folder.mkdir()
    assert main(["bench", "report", str(folder), "-o", str(tmp_path / "out")]) == 2
    message = capsys.readouterr().err
    assert str(folder) in message
    assert ("holds no runs" if what == "empty" else "there is no folder") in message
    assert not (tmp_path / "out").exists()


def test_two_runs_of_the_same_are_refused(tmp_path: Path) -> None:
    for part in ("first", "second"):
        write_run(tmp_path / part, "alpha", "mean", 0, constant_trace(NOISE, 1.0, 1.4))
    with pytest.raises(ValueError, match="more than one run of dataset alpha, method mean, seed 0"):
        write_report(tmp_path, tmp_path / "out")


def test_fidelity_is_shown_if_somebody_has_computed_it(tmp_path: Path) -> None:
    write_run(tmp_path, "alpha", "sgpr", 0, sgpr_trace(0))
    records = [
        {"dataset": "alpha", "method": "sgpr", "seed": 0, "diagnosis": "faithful", "kl_at_exact": 1.25e-7, "lml": -4.0},
        {"dataset": "alpha", "method": "fitc", "seed": 0, "diagnosis": "the approximation itself is unfaithful"},
    ]
    (tmp_path / "fidelity.json").write_text(json.dumps(records))
    write_report(tmp_path, tmp_path / "out", with_figures=False)
    assert "the approximation itself is unfaithful" in (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    table = (tmp_path / "out" / "tables" / "fidelity.md").read_text(encoding="utf-8")
    assert table.startswith("| data set | method | seed | diagnosis | KL at exact | LML |")
    assert "| 1.2e-7 | -4.00 |" in table
    (tmp_path / "fidelity.json").write_text("{}")
    with pytest.raises(ValueError, match="must hold a list of records, got dict"):
        write_report(tmp_path, tmp_path / "out", with_figures=False)


def test_hostile_names_are_escaped_and_runs_to_come_are_counted(tmp_path: Path) -> None:
    folder = write_results(tmp_path / "r", seeds=1)
    waiting = store.RunSpec("alpha", "svgp", 0, 60.0, 240.0)
    (folder / PLAN).write_text(json.dumps({"alpha/svgp/seed-0": waiting.__dict__}))
    write_report(folder, tmp_path / "out", with_figures=False)
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert HOSTILE not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert "<strong>1</strong><span>not made yet</span>" in page


def test_linear_is_as_good_only_if_it_is_as_good_as_the_best_gp(tmp_path: Path) -> None:
    folder = tmp_path / "r"
    for dataset in ("bound", "estimate", "near", "nothing"):
        write_run(folder, dataset, "linear", 0, constant_trace(-900.0, 0.8, 1.1))
    write_run(folder, "near", "sgpr", 0, sgpr_trace(0))
    write_run(folder, "near", "svgp", 0, curve_trace(0, final=-950.0))  # linear beats this one
    write_run(folder, "bound", "svgp", 0, curve_trace(0, final=-950.0))
    write_run(folder, "bound", "itergp", 0, curve_trace(0, final=900.0))  # no bound
    write_run(folder, "estimate", "itergp", 0, curve_trace(0, final=900.0))
    write_run(folder, "estimate", "plugin", 0, curve_trace(0, final=-950.0))
    write_run(folder, "nothing", "gpr", 0, [], RunStatus.ERROR, "no")
    content = read(folder)
    page = render(content, report_tables.all_tables(content), "r")
    table = page.split('id="table-verdicts"')[1].split("</table>")[0]
    rows = [re.findall(r">([^<>]+)(?:</a>)?</td>", row) for row in table.split("<tr>")[2:]]
    assert {row[0]: row[-1] for row in rows} == {"bound": "yes", "estimate": "no", "near": "no", "nothing": "n/a"}


def test_the_page_explains_verdicts_with_the_thresholds_and_colours_of_the_certificate(tmp_path: Path) -> None:
    write_run(tmp_path, "alpha", "sgpr", 0, sgpr_trace(0))
    content = read(tmp_path)
    page = render(content, report_tables.all_tables(content), "r")
    explained = page.split("What the verdicts mean")[1].split("</details>")[0]
    assert f"less than {CERTIFIED_GAP:g} nats per data point apart" in explained
    change = f"less than {100.0 * CONVERGED_CHANGE:g} % of what the model explains"
    assert f"Each of the last {CONVERGED_STEPS} steps up in M changed the bound by {change}" in explained
    for verdict, kind in verdicts.KINDS.items():
        if verdict != verdicts.BASELINE:
            assert f'<span class="tag {kind}">{verdict}</span>' in explained
    for kind, palette in PALETTES.items():
        assert f"--{kind}: {palette.light.text}; --{kind}-back: {palette.light.back};" in page
        assert f"--{kind}: {palette.dark.text}; --{kind}-back: {palette.dark.back};" in page
        assert f".tag.{kind} {{ color: var(--{kind}); background: var(--{kind}-back); }}" in page or kind == "plain"


@given(st.integers(0, 500), st.integers(2, 60), st.data())
def test_thinning_keeps_the_ends_and_the_number(n: int, most: int, data: st.DataObject) -> None:
    marked = np.array(sorted(data.draw(st.sets(st.integers(0, max(n - 1, 0)), max_size=20 if n else 0))), dtype=int)
    kept = thin(n, marked, most)
    assert len(kept) <= max(most, min(n, most))
    assert kept.tolist() == sorted(set(kept.tolist()))
    if n > 1 and most - min(len(marked), most // 2) > 1:
        assert (kept[0], kept[-1]) == (0, n - 1)
    if len(marked) <= most // 2 or n <= most:
        assert set(marked.tolist()) <= set(kept.tolist())


def test_a_report_smooths_once_computes_each_frontier_once_and_reads_each_run_once(tmp_path: Path) -> None:
    folder = write_results(tmp_path / "r", seeds=1)
    opened: list[Path] = []

    def note(event: str, arguments: tuple[object, ...]) -> None:  # stays for the process, so that it must be cheap
        if event == "open" and str(arguments[0]).startswith(str(folder)):
            opened.append(Path(str(arguments[0])))

    sys.addaudithook(note)
    profile = cProfile.Profile()
    profile.runcall(write_report, folder, tmp_path / "out")
    stats = pstats.Stats(profile).stats  # type: ignore[attr-defined]

    def calls(function: Any) -> int:
        code = function.__code__
        number: int = stats[code.co_filename, code.co_firstlineno, code.co_name][1]
        return number

    assert calls(smooth) == calls(checkpoint_values) == 1
    assert calls(frontiers) == len(METRICS) * len(COSTS)
    assert sorted(path for path in opened if path.name == store.RUN) == sorted(folder.rglob(store.RUN))


@pytest.mark.slow
def test_a_thousand_runs_are_analysed_within_thirty_seconds(tmp_path: Path) -> None:
    for k in range(10):
        for seed in range(20):
            write_run(tmp_path / "r", f"set{k}", "sgpr", seed, sgpr_trace(seed, steps=12))
            write_run(tmp_path / "r", f"set{k}", "gpr", seed, curve_trace(seed, final=300.0, exact=True, points=60))
            for method in ("itergp", "svgp"):
                write_run(tmp_path / "r", f"set{k}", method, seed, curve_trace(seed, final=299.0, points=60))
            write_run(tmp_path / "r", f"set{k}", "mean", seed, constant_trace(NOISE, 1.0, 1.4))
    started = time.perf_counter()
    write_report(tmp_path / "r", tmp_path / "out", with_figures=False)
    assert time.perf_counter() - started < 30.0
    assert (tmp_path / "out" / "report.html").stat().st_size < 8_000_000
