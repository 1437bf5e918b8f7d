"""`nearexact fit`, `predict`, `certify` and `show` on real files, mostly through the real command."""

from __future__ import annotations

import gzip
import io
import itertools
import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy.stats import norm
from sklearn.datasets import load_diabetes

import nearexact
from nearexact.cli import main
from nearexact.gp import SparseObjective
from nearexact.tables import load_with_recipe

QUICK = ["--kernel", "se", "--time-limit", "20s"]


def command(*arguments: object, program: tuple[str, ...] = ("-m", "nearexact.cli")) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, *program, *map(str, arguments)]
    return subprocess.run(line, capture_output=True, text=True, check=False, timeout=300)


def houses(n: int = 240, seed: int = 0) -> pd.DataFrame:
    """A table as people keep them: names, dates, yes and no, and numbers."""
    rng = np.random.default_rng(seed)
    days = rng.integers(0, 1500, size=n)
    frame = pd.DataFrame(
        {
            "size": np.round(rng.uniform(30.0, 200.0, size=n), 2),
            "city": rng.choice(["Aachen", "Köln", "Münster"], size=n),
            "sold on": pd.to_datetime("2019-01-01") + pd.to_timedelta(days, unit="D"),
            "new": rng.choice(["yes", "no"], size=n),
            "remark": 'nice; "big"\nand green',
        }
    )
    by_city = frame["city"].map({"Aachen": 1.0, "Köln": 1.3, "Münster": 1.6}).to_numpy()
    price = 10.0 * frame["size"].to_numpy() * by_city + 300.0 * (frame["new"] == "yes").to_numpy() + 0.2 * days
    return frame.assign(price=np.round(price + 20.0 * rng.normal(size=n), 2))


def messy(frame: pd.DataFrame) -> bytes:
    """Semicolons, decimal commas, German dates, quoted newlines, Windows line ends and a byte order mark."""
    written = frame.assign(**{"sold on": frame["sold on"].dt.strftime("%d.%m.%Y")})
    text = written.to_csv(index=False, sep=";", decimal=",", lineterminator="\r\n", na_rep="NA")
    return text.encode("utf-8-sig")


# ---- from a file to predictions --------------------------------------------------------------------------------------


def test_diabetes_from_csv_to_predictions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, model, page, out = (tmp_path / name for name in ("diabetes.csv", "model.nx", "fit.html", "out.parquet"))
    frame = load_diabetes(as_frame=True).frame
    frame.to_csv(data, index=False)
    options = ("-o", model, "--report", page, "--json", "--kernel", "se")
    fit = command("fit", data, "--target", "target", *options)
    assert fit.returncode == 0, fit.stderr
    assert "gap per point" in fit.stderr  # the progress display
    result = json.loads(fit.stdout)
    scores = {score["predictor"]: score for score in result["scores"]}
    assert (result["rows_train"], result["rows_test"]) == (376, 66)
    assert scores["nearexact"]["rmse"] < 0.8 * scores["mean"]["rmse"]
    assert scores["nearexact"]["nlpd"] < scores["mean"]["nlpd"]
    assert result["verdict"] in ("certified", "converged")
    assert result["relevance"][0]["relevance"] == 1.0
    assert {entry["column"] for entry in result["relevance"][:3]} & {"bmi", "s5"}
    assert 0.8 < result["coverage"]["0.95"] <= 1.0
    assert "<html" in page.read_text(encoding="utf-8")

    predict = command("predict", model, data, "-o", out)
    assert predict.returncode == 0, predict.stderr
    assert predict.stdout == f"442 rows: {out}\n"
    predictions = pd.read_parquet(out)
    assert list(predictions) == ["mean", "std", "lower", "upper"]
    estimator = nearexact.load(model)
    mean, std = estimator.predict(frame.drop(columns="target"), return_std=True)
    np.testing.assert_allclose(predictions["mean"], mean, rtol=1e-9)
    np.testing.assert_allclose(predictions["upper"], mean + norm.ppf(0.975) * std, rtol=1e-9)

    capsys.readouterr()
    assert main(["certify", str(model), str(data), "--json"]) == 0
    certificate = json.loads(capsys.readouterr().out)
    assert certificate["lower"] <= certificate["upper"]
    assert certificate["verdict"] == result["verdict"]
    assert main(["show", str(model)]) == 0
    shown = capsys.readouterr().out
    assert "fitted to 376 rows" in shown
    assert "bmi" in shown


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of the messy table with its gaps filled in."""
    folder = tmp_path_factory.mktemp("houses")
    frame = houses()
    frame.loc[[3, 17], "size"] = np.nan
    frame.loc[5, "city"] = None
    (folder / "messy.csv").write_bytes(messy(frame))
    options = ["--missing", "median", "-o", str(folder / "model.nx"), *QUICK, "--quiet"]
    assert main(["fit", str(folder / "messy.csv"), "--target", "price", *options]) == 0
    return folder / "model.nx"


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


def test_every_kind_of_file_is_predicted_the_same(fitted: Path, tmp_path: Path) -> None:
    new = houses(50, seed=1).drop(columns="price")
    (tmp_path / "messy.csv").write_bytes(messy(new))
    (tmp_path / "messy.csv.gz").write_bytes(gzip.compress(messy(new)))
    shuffled = new[["new", "sold on", "remark", "city", "size"]].assign(more=1.0)
    shuffled.to_parquet(tmp_path / "new.parquet")
    results = []
    for number, name in enumerate(("messy.csv", "messy.csv.gz", "new.parquet")):
        out = tmp_path / f"out{number}{('.csv', '.csv.gz', '.parquet')[number]}"
        assert main(["predict", str(fitted), str(tmp_path / name), "-o", str(out), "--quiet"]) == 0
        results.append((pd.read_parquet if number == 2 else pd.read_csv)(out).to_numpy())
    assert results[0].shape == (50, 4)
    np.testing.assert_array_equal(results[0], results[1])
    np.testing.assert_array_equal(results[0], results[2])
    truth = houses(50, seed=1)["price"]
    assert np.abs(results[0][:, 0] - truth).mean() < 0.2 * truth.std()


def test_gaps_in_new_rows(fitted: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    new = houses(6, seed=1)
    new.loc[2, "size"] = np.nan
    (tmp_path / "new.csv").write_bytes(messy(new))
    out = tmp_path / "out.csv"

    def predict(*options: str) -> pd.DataFrame:
        assert main(["predict", str(fitted), str(tmp_path / "new.csv"), "-o", str(out), *options]) == 0
        return pd.read_csv(out)

    assert not predict().isna().any(axis=None)  # filled in, as when the model was fitted
    assert predict("--missing", "drop").isna().all(axis=1).tolist() == [False, False, True, False, False, False]
    assert "6 rows, 1 of them empty because of missing values" in capsys.readouterr().out
    out.unlink()
    assert main(["predict", str(fitted), str(tmp_path / "new.csv"), "-o", str(out), "--missing", "error"]) == 2
    assert "missing values in 'size' (1) in rows 1 to 6" in capsys.readouterr().err
    assert not out.exists()


def test_what_new_rows_lack_is_named(fitted: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    new, out = houses(5, seed=1), tmp_path / "out.csv"
    for changed, message in (
        (new.drop(columns=["size", "new"]), "lacks columns 'size', 'new'; it has 'city', 'sold on', 'remark', 'price'"),
        (new.assign(city="Berlin"), "column 'city' has 'Berlin' in row 1, where the model knows 'Aachen', 'Köln'"),
        (new.assign(size="big"), "column 'size' has 'big' in row 1, where a finite number is expected"),
    ):
        (tmp_path / "new.csv").write_bytes(messy(changed))
        assert main(["predict", str(fitted), str(tmp_path / "new.csv"), "-o", str(out)]) == 2
        error = capsys.readouterr().err
        assert message in error
        assert error.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["new.csv"]


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
        (["predict", "none.nx", "t.csv", "-o", "o.csv"], "there is no model file 'none.nx'"),
        (["predict", "t.csv", "t.csv", "-o", "o.csv"], "is not a model file of nearexact"),
        (["predict", "bare.nx", "t.csv", "-o", "o.csv"], "was not fitted to a file"),
        (["predict", "model.nx", "none.csv", "-o", "o.csv"], "there is no file 'none.csv'"),
        (["predict", "model.nx", "t.csv", "-o", "o.xlsx"], "the output must be a .parquet, .csv or .csv.gz file"),
        (["predict", "model.nx", "t.csv", "-o", "o.csv", "--level", "95"], "the level must be between 0 and 1"),
        (["certify", "model.nx", "t.csv"], "lacks column"),
        (["show", "t.csv"], "is not a model file of nearexact"),
    ],
)
def test_mistakes_are_one_line_and_status_2(
    arguments: list[str],
    message: str,
    fitted: Path,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    pd.DataFrame({"x": rng.normal(size=30), "y": rng.normal(size=30)}).to_csv("t.csv", index=False)
    Path("model.nx").write_bytes(fitted.read_bytes())
    if "bare.nx" in arguments:
        nearexact.SGPRegressor(random_state=0).fit(rng.normal(size=(20, 1)), rng.normal(size=20)).save("bare.nx")
    assert main(arguments) == 2
    output = capsys.readouterr()
    assert message in output.err
    assert output.out == ""
    assert output.err.splitlines()[-1].startswith("nearexact: ")
    assert len([line for line in output.err.splitlines() if line.startswith("nearexact: ")]) == 1
    assert "Traceback" not in output.err


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


def test_a_huge_number_in_new_rows_is_named(fitted: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    new = houses(5, seed=1).assign(size=1e300)
    new.to_parquet(tmp_path / "new.parquet")
    assert main(["predict", str(fitted), str(tmp_path / "new.parquet"), "-o", str(tmp_path / "out.csv")]) == 2
    assert "column 'size' has '1e+300' in row 1, where numbers must be below 1e+150" in capsys.readouterr().err


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
        ["predict", "model.nx", "t.csv", "-o", "t.csv"],
        ["predict", "model.nx", "t.csv", "-o", "soft.csv"],
        ["predict", "model.nx", "t.csv", "-o", "hard.csv"],
        ["predict", "model.nx", "t.csv", "-o", "model.csv"],
        ["predict", "model.csv", "t.csv", "-o", "model.csv"],
    ],
    ids=" ".join,
)
def test_no_output_takes_the_place_of_an_input_or_of_another_output(
    arguments: list[str], fitted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    houses(30).to_csv("t.csv", index=False)
    Path("folder").mkdir()
    Path("model.nx").write_bytes(fitted.read_bytes())
    for link, target in (("soft.csv", "t.csv"), ("to-new", "new"), ("model.csv", "model.nx")):
        Path(link).symlink_to(target)
    Path("hard.csv").hardlink_to("t.csv")
    before = {path: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
    options = ["--target", "price", *QUICK] if arguments[0] == "fit" else []
    result = command(*arguments, *options)
    assert result.returncode == 2
    assert re.fullmatch(r"nearexact: the \w+ '.*' would overwrite the \w+ '.*'\n", result.stderr)
    assert {path: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()} == before


def damaged_files() -> st.SearchStrategy[bytes]:
    """Bytes, text, and tables that were good once."""
    new = houses(20, seed=2)
    parquet = io.BytesIO()
    new.to_parquet(parquet)
    good = [messy(new), new.to_csv(index=False).encode(), gzip.compress(messy(new), mtime=0), parquet.getvalue()]

    @st.composite
    def spoilt(draw: Callable[[st.SearchStrategy[object]], object]) -> bytes:
        data = bytearray(draw(st.sampled_from(good)))  # type: ignore[arg-type]
        for _ in range(draw(st.integers(1, 4))):  # type: ignore[call-overload]
            at = draw(st.integers(0, max(len(data) - 1, 0)))
            match draw(st.sampled_from(["cut", "put", "change"])):
                case "cut":
                    del data[at : at + draw(st.integers(1, 200))]  # type: ignore[operator, misc]
                case "put":
                    data[at:at] = draw(st.sampled_from([b'"', b"\n", b";", b",", b"\0", b"\xff", b"\r", b"\x1b[31m"]))  # type: ignore[misc, call-overload]
                case _ if at < len(data):  # type: ignore[operator]
                    data[at] = draw(st.integers(0, 255))  # type: ignore[index, assignment]
        return bytes(data)

    return st.one_of(st.binary(max_size=200), st.text(max_size=200).map(str.encode), spoilt())


@given(content=damaged_files())
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@pytest.mark.filterwarnings("error")  # they would be lines too
def test_no_file_gives_more_than_one_line_when_predicted(
    content: bytes, fitted: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, out = tmp_path / "new.csv", tmp_path / "out.csv"
    data.write_bytes(content)
    out.unlink(missing_ok=True)
    status = main(["predict", str(fitted), str(data), "-o", str(out), "--quiet"])
    output = capsys.readouterr()
    assert output.out == ""
    if status == 0:
        assert output.err == ""
        assert len(pd.read_csv(out).columns) == 4
    else:
        assert status == 2
        assert output.err.startswith("nearexact: ")
        assert len(output.err.splitlines()) == 1
        assert not out.exists()


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


@pytest.mark.parametrize(("kernel", "at"), [("se", 1), ("se", 25), ("auto", 30)])
def test_ctrl_c_saves_the_best_model_so_far(
    kernel: str, at: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    houses(80).to_csv(tmp_path / "t.csv", index=False)
    evaluate, calls = SparseObjective.__call__, itertools.count(1)

    def interrupted(self: SparseObjective, theta: np.ndarray) -> tuple[float, np.ndarray]:
        if next(calls) == at:
            signal.raise_signal(signal.SIGINT)
        return evaluate(self, theta)

    monkeypatch.setattr(SparseObjective, "__call__", interrupted)
    model = tmp_path / "m.nx"
    assert main(["fit", str(tmp_path / "t.csv"), "--target", "price", "-o", str(model), "--kernel", kernel]) == 130
    assert "stopped; the best model so far, M=" in capsys.readouterr().err
    assert main(["predict", str(model), str(tmp_path / "t.csv"), "-o", str(tmp_path / "o.csv")]) == 0
    assert len(pd.read_csv(tmp_path / "o.csv")) == 80


def test_ctrl_c_before_there_is_a_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    houses(80).to_csv(tmp_path / "t.csv", index=False)
    monkeypatch.setattr("nearexact.tables.fitting.prepare", lambda *_, **__: signal.raise_signal(signal.SIGINT))
    model = tmp_path / "m.nx"
    assert main(["fit", str(tmp_path / "t.csv"), "--target", "price", "-o", str(model), *QUICK]) == 130
    assert capsys.readouterr().err == "nearexact: stopped; nothing was written\n"
    assert not model.exists()


# ---- files larger than memory ----------------------------------------------------------------------------------------


def peak_of_prediction(model: Path, data: Path, out: Path) -> float:
    """Megabytes that `nearexact predict` has resident at most. (The rusage of a child begins with its parent's.)"""
    if not Path("/proc/self/status").exists():
        pytest.skip("only Linux tells a process its peak")
    program = (
        "import sys; from nearexact.cli import main; status = main(sys.argv[1:]);"
        " print(open('/proc/self/status').read()); sys.exit(status)"
    )
    result = command("predict", model, data, "-o", out, "--quiet", program=("-c", program))
    assert result.returncode == 0, result.stderr
    peak = next(line for line in result.stdout.splitlines() if line.startswith("VmHWM:"))
    return int(peak.split()[1]) * 1024 / 1e6


def repeated(frame: pd.DataFrame, times: int, path: Path) -> None:
    with open(path, "wb") as file:
        file.write(messy(frame))
        body = messy(frame).split(b"\r\n", 1)[1]
        for _ in range(times - 1):
            file.write(body)


def test_memory_does_not_grow_with_the_file(fitted: Path, tmp_path: Path) -> None:
    frame = houses(20_000, seed=3).drop(columns=["price", "remark"])
    peaks = []
    for times in (4, 12):
        repeated(frame, times, tmp_path / "big.csv")
        peaks.append(peak_of_prediction(fitted, tmp_path / "big.csv", tmp_path / "out.parquet"))
        assert len(pd.read_parquet(tmp_path / "out.parquet", columns=["mean"])) == times * 20_000
    assert max(peaks) < 1000.0
    assert peaks[1] - peaks[0] < 100.0  # 160 000 rows more


@pytest.mark.slow
@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_five_million_rows_within_a_gigabyte(suffix: str, fitted: Path, tmp_path: Path) -> None:
    frame = houses(50_000, seed=3).drop(columns=["price", "remark"])
    data, out = tmp_path / f"big{suffix}", tmp_path / f"out{suffix}"
    if suffix == ".csv":
        repeated(frame, 100, data)
    else:
        pd.concat([frame] * 100, ignore_index=True).to_parquet(data, row_group_size=5_000_000)  # a single group
    peak = peak_of_prediction(fitted, data, out)
    print(f"{suffix}: peak {peak:.0f} MB")
    assert peak < 1000.0
    rows = (pd.read_csv if suffix == ".csv" else pd.read_parquet)(out)
    assert len(rows) == 5_000_000
    np.testing.assert_allclose(rows["mean"][:50_000], rows["mean"][-50_000:], rtol=1e-9)
