"""`nearexact bench report`: from a results folder, whatever is in it, to a page, tables and figures."""

from __future__ import annotations

import json
import re
import resource
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.figure import Figure

from nearexact.bench import store
from nearexact.bench.analysis import published, verdicts
from nearexact.bench.analysis.checkpoints import checkpoint_values
from nearexact.bench.analysis.curves import smooth
from nearexact.bench.analysis.losses import COSTS, METRICS
from nearexact.bench.analysis.pareto import frontiers
from nearexact.bench.analysis.results import read
from nearexact.bench.report import report_tables
from nearexact.bench.report.chart_data import thin
from nearexact.bench.report.figures import write_figures
from nearexact.bench.report.page import render, write_report
from nearexact.bench.store import PLAN, RunStatus
from nearexact.certificate import CONVERGED_CHANGE, CONVERGED_STEPS, SUBSET_CAUTION
from nearexact.cli import main
from nearexact.evidence import CERTIFIED_GAP, FEWEST_AGREEING
from nearexact.verdict_colours import PALETTES
from tests.bench.synthetic import HOSTILE, NOISE, constant_trace, curve_trace, sgpr_trace, write_results, write_run

PUBLISHED = "published_results.csv"
READ_ONCE = (store.RUN, store.TRACE, PUBLISHED)


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
        "negative_lml",
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
    assert "SGPR (paper) (published, A6000)" in page
    assert len(page.encode()) < 8_000_000
    files = embedded(page, "files-data")
    assert isinstance(files, dict)
    assert files["negative_lml.csv"] == (out / "tables" / "negative_lml.csv").read_text(encoding="utf-8")
    assert files["negative_lml.tex"] == (out / "tables" / "negative_lml.tex").read_text(encoding="utf-8")


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


def counted(function: Any, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Counts the calls of a function, under whatever name a module holds it: a 1 for each."""
    calls: list[int] = []

    def counting(*args: Any, **options: Any) -> Any:
        calls.append(1)
        return function(*args, **options)

    for module in [module for name, module in sys.modules.items() if name.startswith("nearexact.")]:
        for name, value in list(vars(module).items()):
            if value is function:
                monkeypatch.setattr(module, name, counting)
    return calls


def test_a_report_computes_and_reads_everything_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "r"
    write_run(folder, "naval", "sgpr", 0, sgpr_trace(0))
    write_run(folder, "naval", "gpr", 0, curve_trace(0, final=302.0, exact=True))
    opened: list[Path] = []

    def note(event: str, arguments: tuple[object, ...]) -> None:  # stays for the process, so that it must be cheap
        if event == "open" and str(arguments[0]).endswith(READ_ONCE):
            opened.append(Path(str(arguments[0])))

    sys.addaudithook(note)
    calls = {function: counted(function, monkeypatch) for function in (smooth, checkpoint_values, frontiers)}
    monkeypatch.setattr(
        Figure, "savefig", lambda _, path, **__: path.touch()
    )  # drawing takes long and computes nothing
    write_report(folder, tmp_path / "out", with_published=True)
    assert len(calls[smooth]) == len(calls[checkpoint_values]) == 1
    assert len(calls[frontiers]) == len(METRICS) * len(COSTS)
    runs = [path for path in opened if path.is_relative_to(folder)]
    assert sorted(runs) == sorted([*folder.rglob(store.RUN), *folder.rglob(store.TRACE)])
    assert len([path for path in opened if path.name == PUBLISHED]) <= 1  # or another test has read them


def test_published_results_are_everyones_own_copy() -> None:
    table = published.load()
    table["value"] = 0.0
    assert (published.load()["value"] != 0.0).any()


def test_a_report_that_cannot_be_written_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A limit on the size of files stands for the full disk."""
    write_run(tmp_path / "r", "alpha", "sgpr", 0, sgpr_trace(0))
    out = tmp_path / "out"
    write_report(tmp_path / "r", out, with_figures=False)
    (out / "figures").mkdir()
    (out / "figures" / "near_exactness.pdf").write_text("old")
    before = {path: path.read_bytes() for path in out.rglob("*.*") if path.is_file()}
    assert len(before) > 10
    write_run(tmp_path / "r", "alpha", "gpr", 0, curve_trace(0, final=302.0, exact=True))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
    try:
        with pytest.raises(OSError, match="File too large"):
            write_report(tmp_path / "r", out)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    def half(_: Figure, path: Path, **__: object) -> None:  # matplotlib itself would leave the file open
        path.write_text("half a figure")
        raise OSError("File too large")

    monkeypatch.setattr(Figure, "savefig", half)
    content = read(tmp_path / "r")
    with pytest.raises(OSError, match="File too large"):
        write_figures(content, verdicts.near_exactness(content), out / "figures")
    assert {path: path.read_bytes() for path in out.rglob("*.*") if path.is_file()} == before


def test_the_page_shows_what_speaks_for_hyperparameters(tmp_path: Path) -> None:
    write_run(tmp_path, "alpha", "sgpr", 0, sgpr_trace(0))
    write_run(tmp_path, "alpha", "sgpr-paper", 0, sgpr_trace(0, search={}))
    write_run(tmp_path, "beta", "sgpr-paper", 0, sgpr_trace(0, search={}))
    write_run(tmp_path, "alpha", "nearexact", 0, curve_trace(0, final=300.0, exact=True))
    content = read(tmp_path)
    tables = {table.name: table for table in report_tables.all_tables(content)}
    page = render(content, list(tables.values()), "r")
    near = page.split('id="table-near_exactness"')[1].split("</table>")[0]
    for words in (
        "5 of 9 starts agree on 500 rows, 0.001 nats per row left",
        "5 of 9 starts agree, 0 nats per row left",
        "same value as ",
        "nobody has looked for better hyperparameters; certified at its own",
        '<span class="tag good">exact</span>',
    ):
        assert words in near
    for text in (tables["near_exactness"].to_latex(), tables["near_exactness"].to_markdown()):
        assert "5 of 9 starts agree" in text
        assert "exact" in text
    counts = tables["near_exact_counts"].frame.set_index("method")
    assert counts.loc["nearexact", ["exact", "near_exact"]].tolist() == [1, 1]
    explained = page.split('id="two-halves"')[1].split("</p>")[0]
    assert f"at least {FEWEST_AGREEING} end near the best" in explained
    assert f"{CERTIFIED_GAP / SUBSET_CAUTION:g} if it was on a part of the rows" in explained


def test_evaluation_time_stands_beside_training_time(tmp_path: Path) -> None:
    write_run(tmp_path, "alpha", "sgpr", 0, sgpr_trace(0))
    write_run(tmp_path, "alpha", "gpr", 0, [], RunStatus.ERROR, "no")
    for path in tmp_path.rglob(store.RUN):
        store.RunFolder(path.parent).update(training_seconds=12.0, evaluation_seconds=3.25)
    write_run(tmp_path, "alpha", "svgp", 0, [], RunStatus.ERROR, "an older run, which has no such entry")
    tables = {table.name: table for table in report_tables.all_tables(read(tmp_path))}
    runs = tables["runs"].texts().set_index("method")["evaluation_seconds"]
    assert runs.to_dict() == {"SGPR": "3.25", "GPR": "3.25", "SVGP": "n/a"}
    assert tables["failures"].texts()["evaluation_seconds"].tolist() == ["3.25", "n/a"]


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
