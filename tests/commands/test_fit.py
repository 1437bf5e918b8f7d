"""`nearexact fit` on real files, also through the real command."""

from __future__ import annotations

import itertools
import json
import os
import pkgutil
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from scipy.stats import norm
from sklearn.datasets import load_diabetes

import nearexact
from nearexact import tables
from nearexact.cli import main
from nearexact.gp import ExactObjective, SparseObjective
from nearexact.gp.exact import exact_memory
from nearexact.kernels import SquaredExponential
from nearexact.kernels.base import as_kernel
from nearexact.tables import load_with_recipe
from tests.commands.helpers import (
    QUICK,
    assert_nothing_is_overwritten,
    assert_refused,
    command,
    damaged_files,
    houses,
)


def test_diabetes_from_csv_to_predictions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, model, page, out = (tmp_path / name for name in ("diabetes.csv", "model.nx", "fit.html", "out.parquet"))
    frame = load_diabetes(as_frame=True).frame
    frame.to_csv(data, index=False)
    options = ("-o", model, "--report", page, "--json", "--kernel", "se", "--no-refit")
    fit = command("fit", data, "--target", "target", *options)
    assert fit.returncode == 0, fit.stderr
    assert "gap per point" in fit.stderr  # the progress display
    result = json.loads(fit.stdout)
    scores = {score["predictor"]: score for score in result["scores"]}
    assert (result["rows_train"], result["rows_test"], result["rows"], result["refitted"]) == (376, 66, 376, False)
    assert scores["nearexact"]["rmse"] < 0.8 * scores["mean"]["rmse"]
    assert scores["nearexact"]["nlpd"] < scores["mean"]["nlpd"]
    assert (result["verdict"], result["method"], result["doubt"]) == ("exact", "cholesky", None)
    assert result["relevance"][0]["relevance"] == 1.0
    assert {entry["column"] for entry in result["relevance"][:3]} & {"bmi", "s5"}
    assert 0.8 < result["coverage"]["0.95"] <= 1.0
    assert "<html" in page.read_text(encoding="utf-8")

    assert main(["predict", str(model), str(data), "-o", str(out)]) == 0
    assert capsys.readouterr().out == f"442 rows: {out}\n"
    predictions = pd.read_parquet(out)
    assert list(predictions) == ["mean", "std", "lower", "upper"]
    estimator = nearexact.load(model)
    mean, std = estimator.predict(frame.drop(columns="target"), return_std=True)
    np.testing.assert_allclose(predictions["mean"], mean, rtol=1e-9)
    np.testing.assert_allclose(predictions["upper"], mean + norm.ppf(0.975) * std, rtol=1e-9)

    assert main(["certify", str(model), str(data), "--json"]) == 0
    certificate = json.loads(capsys.readouterr().out)
    assert certificate["lower"] <= certificate["upper"]
    assert certificate["verdict"] == result["verdict"]
    assert main(["show", str(model)]) == 0
    shown = capsys.readouterr().out
    assert "fitted to 376 rows" in shown
    assert "bmi" in shown
    assert shown.count("exact GP") == 2  # the model, and its summary
    assert shown.startswith("Is it good? ")
    assert f"hyperparameters {result['about_theta']}" in " ".join(shown.split())


def test_the_model_is_tested_before_it_is_trained_on_all_rows(tmp_path: Path) -> None:
    houses(60).to_csv(tmp_path / "t.csv", index=False)
    found = {refit: tables.fit(tmp_path / "t.csv", "price", kernel="se", refit=refit) for refit in (True, False)}
    again, once = found[True], found[False]
    assert (once.summary.rows, once.summary.refitted, once.model.certificate_.n) == (51, False, 51)
    assert (again.summary.rows, again.summary.refitted, again.model.certificate_.n) == (60, True, 60)
    assert again.summary.scores == once.summary.scores  # those of the same model
    assert again.summary.coverage == once.summary.coverage
    assert again.model.get_params()["time_limit"] == 600  # as it was given, whatever was left of it
    values, learnt = again.prepared.all_rows()
    frame = again.prepared.recipe.frame(values)
    alone = nearexact.GPRegressor(again.choice.kernel, random_state=0).fit(frame, learnt.y)
    assert again.model.certificate_.lower >= alone.certificate_.lower - 0.01  # it starts from what the test has found
    assert "then trained on all 60 rows" in str(again.summary)
    assert "then trained" not in str(once.summary)
    again.save(tmp_path / "m.nx")
    assert tables.certify(tmp_path / "m.nx", tmp_path / "t.csv").n == 60


def test_a_lesser_model_of_all_rows_is_not_kept(tmp_path: Path) -> None:
    """Memory that is enough for the exact GP of the rows to train on, but not of all of them as well."""
    houses(60).to_csv(tmp_path / "t.csv", index=False)
    needed = exact_memory(as_kernel(SquaredExponential(), 8), 51)
    found = tables.fit(tmp_path / "t.csv", "price", kernel="se", memory_limit=needed + 10_000)
    assert (found.model.method_, found.model.certificate_.n, found.summary.refitted) == ("cholesky", 51, False)
    assert any(note.startswith("not trained on all rows: ") for note in found.summary.notes)


@pytest.mark.parametrize(("limit", "words"), [("1s", "the time limit of 1s"), (0.5, "the time limit of 0.5 s")])
def test_limits_are_shown_as_they_were_written(limit: float | str, words: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(700, 12))
    pd.DataFrame(X).assign(y=np.sin(X.sum(1)) + 0.1 * rng.normal(size=700)).to_csv(tmp_path / "t.csv", index=False)
    found = tables.fit(tmp_path / "t.csv", "y", kernel="se", time_limit=limit)
    assert any(note.startswith(f"{words} ended the training") for note in found.summary.notes), found.summary.notes
    assert found.summary.time_limit == words.removeprefix("the time limit of ")


def test_a_messy_file_needs_a_word_about_its_gaps(fitted: Path, tmp_path: Path) -> None:
    """Through the real command; the fixture fitted the same file with --missing median."""
    data = fitted.with_name("messy.csv")
    refused = command("fit", data, "--target", "price", "-o", tmp_path / "model.nx", *QUICK)
    assert refused.returncode == 2
    assert refused.stdout == ""
    counts = "missing values in 'size' (2), 'city' (1)"
    assert refused.stderr == f"nearexact: {counts}: pass --missing drop or --missing median, or fill them in\n"
    model, recipe = load_with_recipe(fitted)
    assert {column.name: column.kind for column in recipe.columns} == {
        "size": "number",
        "city": "category",
        "sold on": "date",
        "new": "boolean",
    }
    assert recipe.left_out == {"remark": "constant"}
    assert model.certificate_.n == 204


def test_all_rows_to_train_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    houses(60).to_csv(tmp_path / "t.csv", index=False)
    options = ["--test-fraction", "0", "-o", str(tmp_path / "m.nx"), "--report", str(tmp_path / "f.html"), *QUICK]
    assert main(["fit", str(tmp_path / "t.csv"), "--target", "price", *options]) == 0
    assert "no test rows: no figures for new data" in capsys.readouterr().out
    assert nearexact.load(tmp_path / "m.nx").certificate_.n == 60
    assert "trained on: none were kept back" in (tmp_path / "f.html").read_text(encoding="utf-8")
    assert main(["certify", str(tmp_path / "m.nx"), str(tmp_path / "t.csv"), "--quiet"]) == 0
    assert capsys.readouterr().out == ""


def test_the_example_in_the_guide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    guide = (Path(__file__).parents[2] / "docs" / "your-data.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```python\n(.*?)```", guide, flags=re.DOTALL)
    monkeypatch.chdir(tmp_path)
    houses(40).to_csv("houses.csv", index=False)
    houses(5, seed=1).to_csv("new.csv", index=False)
    exec(compile(block.replace('"5m"', '"6s"'), "your-data.md", "exec"), {})
    assert len(pd.read_parquet("out.parquet")) == 5
    assert Path("fit.html").exists()


# ---- messages and exit codes -----------------------------------------------------------------------------------------


@pytest.mark.usefixtures("small_files")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["fit", "none.csv", "--target", "y", "-o", "m.nx"], "there is no file 'none.csv'"),
        (["fit", "t.csv", "--target", "cost", "-o", "m.nx"], "has no column 'cost'; it has 'x', 'y'"),
        (["fit", "t.csv", "--target", "y", "-o", "nowhere/m.nx"], "there is no folder 'nowhere'"),
        (["fit", "t.csv", "--target", "y", "-o", "m.nx", "--report", "nowhere/f.html"], "there is no folder 'nowhere'"),
        (["fit", "t.csv", "--target", "y", "-o", "m.nx", "--kernel", "rbf"], "there is no kernel 'rbf'"),
        (["fit", "t.csv", "--target", "y", "-o", "m.nx", "--time-limit", "soon"], "a time limit must be"),
        (["fit", "t.csv", "--target", "y", "-o", "m.nx", "--memory-limit", "much"], "a memory size must be"),
        (["fit", "t.csv", "--target", "y", "-o", "m.nx", "--memory-limit", "1kB"], "but the memory limit is"),
        (["fit", "t.csv", "--target", "y", "-o", "m.nx", "--test-fraction", "1.5"], "the test fraction must be"),
        (["fit", "t.csv", "--target", "y", "-o", "m.nx", "--delimiter", "ab"], "a delimiter must be"),
        (["fit", "few.csv", "--target", "y", "-o", "m.nx"], "at least 10 rows"),
        (["fit", "flat.csv", "--target", "y", "-o", "m.nx"], "the target 'y' is 3 in all rows"),
    ],
)
def test_mistakes_are_one_line_and_status_2(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert_refused(arguments, message, capsys)


@pytest.mark.parametrize("column", ["size", "price"])
@pytest.mark.parametrize("cell", ["1e300", "-1e300", "1e999", "-inf"])
@pytest.mark.parametrize("row", [0, 8])  # one to train on and one to test on
def test_a_number_too_large_to_compute_with_is_named(
    cell: str, column: str, row: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    frame = houses(20).astype({column: str})
    frame.loc[row, column] = cell
    frame.to_csv(tmp_path / "t.csv", index=False)
    arguments = ["fit", str(tmp_path / "t.csv"), "--target", "price", "-o", str(tmp_path / "m.nx"), *QUICK]
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert f"column '{column}' has '{cell}' in row {row + 1}, where " in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("kernel", ["auto", "se"])
def test_a_tiny_time_limit_gives_a_model_all_the_same(
    kernel: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    houses(60).to_csv(tmp_path / "t.csv", index=False)
    options = ["--target", "price", "-o", str(tmp_path / "m.nx"), "--kernel", kernel, "--time-limit", "0.0001s"]
    assert main(["fit", str(tmp_path / "t.csv"), *options, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["kernel"] == "se"
    assert ("no time was left to choose a kernel: se was taken untried" in result["notes"]) == (kernel == "auto")
    assert len(nearexact.load(tmp_path / "m.nx").inducing_points_) > 0


@pytest.mark.usefixtures("linked_files")
@pytest.mark.parametrize(
    "arguments",
    [
        ["fit", "t.csv", "-o", "t.csv"],
        ["fit", "t.csv", "-o", "m.nx", "--report", "t.csv"],
        ["fit", "t.csv", "-o", "new", "--report", "new"],
        ["fit", "t.csv", "-o", "new", "--report", "folder/../new"],
        ["fit", "t.csv", "-o", "new", "--report", "to-new"],
        ["fit", "t.csv", "-o", "folder/../t.csv"],
        ["fit", "t.csv", "-o", "soft.csv"],
        ["fit", "soft.csv", "-o", "t.csv"],
        ["fit", "t.csv", "-o", "hard.csv"],
        ["fit", "t.csv", "-o", "new", "--report", "hard.csv"],
    ],
    ids=" ".join,
)
def test_no_output_takes_the_place_of_an_input_or_of_another_output(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert_nothing_is_overwritten([*arguments, "--target", "price", *QUICK], capsys)


@given(content=damaged_files())
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@pytest.mark.filterwarnings("error")
def test_no_file_gives_more_than_one_line_when_fitted(
    content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, model = tmp_path / "data.csv", tmp_path / "model.nx"
    data.write_bytes(content)
    model.unlink(missing_ok=True)
    options = ["--kernel", "se", "--time-limit", "0.01s", "--quiet"]
    status = main(["fit", str(data), "--target", "price", "-o", str(model), *options])
    output = capsys.readouterr()
    assert output.out == ""
    if status == 0:
        assert len(nearexact.load(model).inducing_points_) > 0
    else:
        assert status == 2
        assert output.err.startswith("nearexact: ")
        assert len(output.err.splitlines()) == 1
        assert not model.exists()


def test_quiet_and_missing_modules(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    houses(40).to_csv(tmp_path / "t.csv", index=False)
    model, data = str(tmp_path / "m.nx"), str(tmp_path / "t.csv")
    arguments = ["fit", data, "--target", "price", "-o", model, *QUICK, "--quiet"]
    assert main(arguments) == 0
    assert capfd.readouterr() == ("", "")
    assert main(["show", model, "--json", "--quiet"]) == 0
    assert json.loads(capfd.readouterr().out)["target"] == "price"
    program = "import sys; sys.modules['pyarrow'] = None; from nearexact.cli import main; sys.exit(main(sys.argv[1:]))"
    without = command(*arguments, program=("-c", program))
    assert without.returncode == 2
    assert without.stderr == 'nearexact: pyarrow is missing: pip install "nearexact[data]"\n'


@pytest.mark.parametrize(
    ("kernel", "objective", "at"),
    [
        ("se", ExactObjective, 1),
        ("se", ExactObjective, 250),
        ("auto", ExactObjective, 100),  # while kernels are compared
        ("se", SparseObjective, 1),
        ("se", SparseObjective, 25),
    ],
)
def test_ctrl_c_saves_the_best_model_so_far(
    kernel: str,
    objective: type[ExactObjective] | type[SparseObjective],
    at: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    houses(80).to_csv(tmp_path / "t.csv", index=False)
    evaluate, calls = objective.__call__, itertools.count(1)

    def interrupted(self: ExactObjective | SparseObjective, theta: np.ndarray) -> tuple[float, np.ndarray]:
        if next(calls) == at:
            signal.raise_signal(signal.SIGINT)
        return evaluate(self, theta)

    monkeypatch.setattr(objective, "__call__", interrupted)
    model = tmp_path / "m.nx"
    options = ["--kernel", kernel, *(["--memory-limit", "300kB"] if objective is SparseObjective else [])]
    assert main(["fit", str(tmp_path / "t.csv"), "--target", "price", "-o", str(model), *options]) == 130
    way = "sparse GP with" if objective is SparseObjective else "exact GP, is in"
    assert f"stopped; the best model so far, {way}" in capsys.readouterr().err
    assert main(["show", str(model)]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "stopped by Ctrl-C before the test" in shown or "on all rows: that was interrupted" in shown
    assert "No rows were kept back" not in shown
    assert "the limit" not in shown
    assert main(["predict", str(model), str(tmp_path / "t.csv"), "-o", str(tmp_path / "o.csv")]) == 0
    assert len(pd.read_csv(tmp_path / "o.csv")) == 80


@pytest.mark.parametrize(
    ("step", "refit", "words"),
    [
        ("nearexact.tables.model_search.evaluate", True, "stopped by Ctrl-C before the test"),
        ("nearexact.tables.model_search._is_lesser", True, "not trained on all rows: that was interrupted"),
        ("nearexact.tables.summarising.relevances", False, "test rows: 12"),
    ],
)
def test_ctrl_c_after_the_training_keeps_what_is_finished(
    step: str,
    refit: bool,
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    houses(80).to_csv(tmp_path / "t.csv", index=False)
    original, calls = pkgutil.resolve_name(step), itertools.count()

    def interrupted(*arguments: object, **options: object) -> object:
        if next(calls) == 0:
            signal.raise_signal(signal.SIGINT)
        return original(*arguments, **options)

    monkeypatch.setattr(step, interrupted)
    model, options = tmp_path / "m.nx", [*QUICK[:-1], "--refit" if refit else "--no-refit"]
    assert main(["fit", str(tmp_path / "t.csv"), "--target", "price", "-o", str(model), *options]) == 130
    assert f"the best model so far, exact GP, is in {model}" in capsys.readouterr().err
    assert main(["show", str(model)]) == 0
    shown = capsys.readouterr().out
    assert words in " ".join(shown.split())
    assert "No rows were kept back" not in shown
    assert "the limit" not in shown


def test_outputs_that_cannot_be_written_are_found_before_the_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    houses(40).to_csv(tmp_path / "t.csv", index=False)
    monkeypatch.setattr("nearexact.tables.fit", lambda *_, **__: pytest.fail("it was fitted"))
    too_long = str(tmp_path / ("m" * 240))
    for options in (["-o", too_long], ["-o", str(tmp_path / "m.nx"), "--report", too_long]):
        arguments = ["fit", str(tmp_path / "t.csv"), "--target", "price", *options, *QUICK]
        assert_refused(arguments, f"{options[-1]!r} cannot be written", capsys)


def test_a_page_that_cannot_be_written_takes_nothing_else_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: object) -> None:
        raise OSError("No space left on device")

    houses(40).to_csv(tmp_path / "t.csv", index=False)
    monkeypatch.setattr("nearexact.tables.Fitted.write_page", full)
    model, page = tmp_path / "m.nx", tmp_path / "page.html"
    options = ["-o", str(model), "--report", str(page), *QUICK, "--json"]
    assert main(["fit", str(tmp_path / "t.csv"), "--target", "price", *options]) == 2
    output = capsys.readouterr()
    expected = f"nearexact: the page {page} was not written: No space left on device; the model is in {model}"
    assert output.err.splitlines()[-1] == expected
    assert json.loads(output.out)["report"] is None
    assert nearexact.load(model)


@pytest.mark.slow
def test_a_fit_is_saved_though_nobody_reads_what_it_shows(tmp_path: Path) -> None:
    """As with `nearexact fit … 2>&1 | head -1`."""
    houses(40).to_csv(tmp_path / "t.csv", index=False)
    arguments = ["fit", str(tmp_path / "t.csv"), "--target", "price", "-o", str(tmp_path / "m.nx"), *QUICK]
    reader, writer = os.pipe()
    os.close(reader)
    for standard_output, status in ((subprocess.DEVNULL, 0), (writer, 141)):
        line = [sys.executable, "-m", "nearexact.cli", *arguments]
        assert subprocess.run(line, stdout=standard_output, stderr=writer, check=False).returncode == status
        assert nearexact.load(tmp_path / "m.nx")
        (tmp_path / "m.nx").unlink()
    os.close(writer)


def test_ctrl_c_before_there_is_a_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    houses(80).to_csv(tmp_path / "t.csv", index=False)
    monkeypatch.setattr("nearexact.tables.fitting.prepare", lambda *_, **__: signal.raise_signal(signal.SIGINT))
    model = tmp_path / "m.nx"
    assert main(["fit", str(tmp_path / "t.csv"), "--target", "price", "-o", str(model), *QUICK]) == 130
    assert capsys.readouterr().err == "nearexact: stopped; nothing was written\n"
    assert not model.exists()
