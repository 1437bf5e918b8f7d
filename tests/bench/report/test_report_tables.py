"""The tables of a report: golden numbers that were computed by hand from the points, and visible failures."""

from __future__ import annotations

import io
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from statistics import mean, median

import pandas as pd
import pytest

from nearexact import bench
from nearexact.bench.analysis import results
from nearexact.bench.analysis.families import ORDER, ordered
from nearexact.bench.analysis.losses import LML, RMSE
from nearexact.bench.analysis.published import load as load_published
from nearexact.bench.analysis.results import Results
from nearexact.bench.analysis.targets import compute_to_target
from nearexact.bench.report import report_tables
from nearexact.bench.report.method_styles import styles
from nearexact.bench.report.metric_tables import final_table
from nearexact.bench.report.table_format import ReportTable, uncertainty
from tests.bench.synthetic import HOSTILE, write_results


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_results(tmp_path_factory.mktemp("results"))


@pytest.fixture(scope="module")
def content(folder: Path) -> Results:
    return results.read(folder)


@pytest.fixture(scope="module")
def tables(content: Results) -> dict[str, ReportTable]:
    return {table.name: table for table in report_tables.all_tables(content)}


def test_checkpoint_cells_are_means_over_seeds(folder: Path, tables: dict[str, ReportTable]) -> None:
    points = bench.load(folder)
    points = points[points["dataset"] == "alpha"]
    sgpr = points[(points["method"] == "sgpr") & points["milestone"]]
    gpr = points[points["method"] == "gpr"]
    back = pd.read_csv(io.StringIO(tables["rmse"].to_csv()))
    rows = back[back["dataset"] == "alpha"].set_index("method")
    for m in (10, 50, 500):
        ends = sgpr[sgpr["m"] == m]
        moment = median(ends["elapsed"])
        assert rows.loc["(seconds)", f"M={m}"] == pytest.approx(moment)
        assert rows.loc["sgpr", f"M={m}"] == pytest.approx(mean(ends["rmse"]))
        before = [run[run["elapsed"] <= moment]["rmse"] for _, run in gpr.groupby("seed")]
        last = [values.iloc[-1] for values in before if len(values)]
        cell = rows.loc["gpr", f"M={m}"]
        assert cell == pytest.approx(mean(last)) if last else pd.isna(cell)
    assert rows.loc["gpr", "final"] == pytest.approx(mean(run["rmse"].iloc[-1] for _, run in gpr.groupby("seed")))


def test_the_rows_have_the_papers_order_and_plugins_come_last(tables: dict[str, ReportTable]) -> None:
    texts = tables["negative_lml"].texts()
    assert texts.loc[texts["dataset"] == "alpha", "method"].tolist() == [
        "(seconds)", "IterGP", "SGPR", "GPR", "Linear", "Mean", "Own"
    ]  # fmt: skip


def test_failures_and_what_is_not_there_are_visible(tables: dict[str, ReportTable]) -> None:
    texts = tables["nlpd"].texts()
    hostile = texts[texts["dataset"] != "alpha"].set_index("method")
    assert hostile.loc["GPR", "final"] == "failed"
    assert hostile.loc["GPR", "status"] == "3 out-of-memory"
    alpha = texts[texts["dataset"] == "alpha"].set_index("method")
    assert alpha.loc["IterGP", "final"] == "inf"
    assert alpha.loc["IterGP", "status"] == "1 error"
    assert alpha.loc["GPR", "M=10"] == "n/a"
    assert tables["rmse"].texts().set_index(["dataset", "method"]).loc[("alpha", "IterGP"), "final"] == "3.1e9"
    lml = tables["negative_lml"].texts().set_index(["dataset", "method"])
    assert lml.loc[("alpha", "IterGP"), "final"] == "nan"


def test_every_run_that_failed_is_in_every_table(tables: dict[str, ReportTable], content: Results) -> None:
    pairs = set(zip(content.failed["dataset"], content.failed["method"], strict=True))
    for name, table in tables.items():
        if "dataset" in table.frame:
            assert pairs <= set(zip(table.frame["dataset"], table.frame["method"], strict=True)), name
    assert tables["near_exact_counts"].frame.set_index("method").loc["gpr", "failed_runs"] == 3
    assert tables["failures"].frame["reason"].str.contains("what a pity").any()


def test_a_cell_that_not_all_seeds_have_says_how_many(tmp_path: Path, content: Results) -> None:
    points = content.points
    last = points["milestone"] & (points["m"] == 500) & (points["seed"] > 1)
    fewer = Results(points[~last].reset_index(drop=True), content.runs, 0, content.sizes, [])
    texts = report_tables.checkpoint_table(fewer, RMSE).texts()
    cell = texts[(texts["dataset"] == "alpha") & (texts["method"] == "SGPR")]["M=500"].iloc[0]
    assert cell.endswith(" (2 of 3)")
    last = points["milestone"] & (points["m"] == 500) & (points["seed"] > 0)
    fewer = Results(points[~last].reset_index(drop=True), content.runs, 0, content.sizes, [])
    assert "M=500" not in report_tables.checkpoint_table(fewer, RMSE).frame  # most never finished it


def test_means_come_with_standard_errors_and_the_best_are_bold(
    content: Results, tables: dict[str, ReportTable]
) -> None:
    final = tables["final"]
    ends = content.final[(content.final["dataset"] == "alpha") & (content.final["method"] == "gpr")]["rmse"]
    back = pd.read_csv(io.StringIO(final.to_csv())).set_index(["dataset", "method"])
    assert back.loc[("alpha", "gpr"), "rmse"] == pytest.approx(ends.mean())
    assert back.loc[("alpha", "gpr"), "rmse_standard_error"] == pytest.approx(ends.sem())
    assert back.loc[("alpha", "gpr"), "rmse_runs"] == 3
    assert "negative_lml" in back
    text = final.texts().set_index(["dataset", "method"]).loc[("alpha", "GPR"), "rmse"]
    assert text == f"{ends.mean():.3f} ± {uncertainty(ends.sem())}"
    assert final.bold is not None
    rows = final.frame.assign(bold=final.bold["rmse"]).set_index("dataset").loc["alpha"]
    best = rows.loc[rows["rmse"].idxmin() if rows.index.is_unique else rows["rmse"] == rows["rmse"].min()]
    assert bool(best["bold"].all())
    assert not rows.loc[rows["method"] == "mean", "bold"].any()


def test_a_mean_over_fewer_seeds_says_so_at_the_end_too(content: Results) -> None:
    kept = ~((content.points["method"] == "gpr") & (content.points["seed"] == 2))
    fewer = replace(content, points=content.points[kept].reset_index(drop=True))
    texts = final_table(fewer).texts().set_index(["dataset", "method"])
    assert texts.loc[("alpha", "GPR"), "nlpd"].endswith(" (2 of 3)")
    assert texts.loc[("alpha", "GPR"), "elapsed"].endswith(" (2 of 3)")


def test_a_table_for_a_paper_has_what_was_asked_for(content: Results) -> None:
    chosen = all_tables_by_name(content, columns=["nlpd", "verdict"], methods=["gpr", "sgpr"])["paper"]
    assert list(chosen.frame) == ["dataset", "method", "nlpd", "verdict"]
    assert chosen.texts().loc[chosen.frame["dataset"] == "alpha", "method"].tolist() == ["SGPR", "GPR"]
    assert "nlpd_standard_error" in chosen.to_csv().splitlines()[0]
    assert chosen.to_latex().count("textbf") == int(chosen.bold["nlpd"].sum()) > 0  # type: ignore[index]
    alone = all_tables_by_name(content, methods=["mean"])["paper"]
    assert alone.bold["nlpd"].all()  # type: ignore[index]  # the best of the methods that are shown
    with pytest.raises(ValueError, match=r"there is no column 'speed': choose from status, negative_lml"):
        all_tables_by_name(content, columns=["speed"])
    with pytest.raises(ValueError, match=r"there is no method 'svgp': choose from itergp, sgpr"):
        all_tables_by_name(content, methods=["svgp"])


def all_tables_by_name(content: Results, **options: list[str]) -> dict[str, ReportTable]:
    return {table.name: table for table in report_tables.all_tables(content, **options)}


def test_the_checkpoints_say_whose_they_are(tables: dict[str, ReportTable]) -> None:
    texts = tables["rmse"].texts()
    assert texts.loc[texts["method"] == "(seconds)", "status"].unique().tolist() == ["M of SGPR"]


def test_targets_are_medians_over_all_runs(tables: dict[str, ReportTable], content: Results) -> None:
    frame = tables["compute_to_target"].frame.set_index(["dataset", "metric", "method"])
    needed = compute_to_target(content, RMSE, 0.05)
    sgpr = needed[(needed["dataset"] == "alpha") & (needed["method"] == "sgpr")]
    assert frame.loc[("alpha", "RMSE", "sgpr"), "seconds_5"] == pytest.approx(median(sgpr["elapsed"]))
    hostile = next(name for name in content.sizes if name != "alpha")
    assert frame.loc[(hostile, "RMSE", "gpr"), "reached_5"] == "0 of 3"
    texts = tables["compute_to_target"].texts()
    row = texts[(texts["dataset"] == hostile) & (texts["method"] == "GPR") & (texts["metric"] == "RMSE")]
    assert row["seconds_5"].tolist() == ["never"]


def test_published_rows_stand_beside_ours_with_their_own_times(content: Results) -> None:
    renamed = Results(
        content.points.replace({"dataset": {"alpha": "naval"}}),
        content.runs.replace({"dataset": {"alpha": "naval"}}),
        0,
        {"naval": content.sizes["alpha"]} | {name: size for name, size in content.sizes.items() if name != "alpha"},
        [],
    )
    frame = report_tables.checkpoint_table(renamed, LML, with_published=True).frame
    rows = frame[frame["dataset"] == "naval"].set_index("method")
    table = load_published()
    value = table[
        (table["metric"] == "negative_lml") & (table["dataset"] == "naval") & (table["method"] == "sgpr-paper")
    ]
    value = value.set_index("checkpoint")
    assert rows.loc["sgpr-paper (published, A6000)", "M=500"] == value.loc["500", "value"]
    assert rows.loc["sgpr-paper (published, A6000)", "final"] == value.loc["final", "value"]
    assert rows.loc["(seconds, published, A6000)", "M=500"] == value.loc["500", "seconds"]
    texts = report_tables.checkpoint_table(renamed, LML, with_published=True).texts().set_index("method")
    assert texts.loc["IterGP (paper) (published, A6000)", "M=500"] == "nan"  # as printed


def test_labels_are_short_unless_two_are_the_same() -> None:
    assert styles(["a.py:Own"])["a.py:Own"].label == "Own"
    both = styles(["a.py:Own", "b.py:Own", "c.py:SGPR", "sgpr"])
    assert len({style.label for style in both.values()}) == 4
    assert ordered(["zeta", "mean", "gpr", "sgpr", "itergp"]) == ["itergp", "sgpr", "gpr", "mean", "zeta"]
    assert HOSTILE in styles([HOSTILE])[HOSTILE].label
    assert list(styles(ORDER)) == list(ORDER)
    assert len({style.colour for style in styles(ORDER).values()}) == len(ORDER)


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="needs pdflatex, of Debian's texlive-latex-base")
def test_latex_takes_all_tables(tables: dict[str, ReportTable], tmp_path: Path) -> None:
    for table in tables.values():
        table.write(tmp_path)
    inputs = "".join(rf"\input{{{name}}}\clearpage" for name in tables)
    packages = r"\usepackage{booktabs}\usepackage[T1]{fontenc}"
    document = rf"\documentclass{{article}}{packages}\begin{{document}}{inputs}\end{{document}}"
    (tmp_path / "document.tex").write_text(document, encoding="utf-8")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "document.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, errors="replace", check=False)
    assert done.returncode == 0, done.stdout[-2000:]
    assert "Missing character" not in (tmp_path / "document.log").read_text(encoding="utf-8", errors="replace")
