"""`nearexact predict`, `certify` and `show` on real files, also through the real command."""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings

from nearexact.cli import main
from tests.commands.helpers import (
    QUICK,
    assert_nothing_is_overwritten,
    assert_refused,
    command,
    damaged_files,
    houses,
    messy,
)


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


def test_columns_are_kept(fitted: Path, tmp_path: Path) -> None:
    new = houses(20, seed=1)
    new.insert(0, "row", range(100, 120))
    (tmp_path / "new.csv").write_bytes(messy(new))
    new.to_parquet(tmp_path / "new.parquet")
    predictions = ["mean", "std", "lower", "upper"]
    for keep, kept in (
        ([], []),
        (["row, city"], ["row", "city"]),
        (["price", "row"], ["price", "row"]),
        (["all"], list(new)),
    ):
        options = [option for name in keep for option in ("--keep", name)]
        for data, out in (("new.csv", "out.csv"), ("new.parquet", "out.parquet")):
            arguments = ["predict", str(fitted), str(tmp_path / data), "-o", str(tmp_path / out), "--quiet", *options]
            assert main(arguments) == 0
        texts, typed = pd.read_csv(tmp_path / "out.csv", dtype=str), pd.read_parquet(tmp_path / "out.parquet")
        assert list(texts) == list(typed) == [*kept, *predictions]
        np.testing.assert_allclose(texts["mean"].astype(float), typed["mean"], rtol=1e-12)
        pd.testing.assert_frame_equal(typed[kept], new[kept])
        for name in {"row", "city"} & set(kept):
            assert texts[name].tolist() == new[name].astype(str).tolist()
    assert texts["price"].str.contains(",").any()  # as it stands in the file


def test_columns_that_cannot_be_kept(fitted: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    houses(5, seed=1).assign(mean=1.0).to_csv(tmp_path / "new.csv", index=False)
    for keep, message in (
        ("none", "has no column 'none' to keep"),
        ("all", "column 'mean' of the data cannot be kept"),
    ):
        arguments = [str(fitted), str(tmp_path / "new.csv"), "-o", str(tmp_path / "out.csv"), "--keep", keep]
        assert main(["predict", *arguments]) == 2
        assert message in capsys.readouterr().err


def test_files_are_read_as_the_one_that_was_fitted(tmp_path: Path) -> None:
    """What had to be said about the encoding need not be said again."""
    data, model, out = (str(tmp_path / name) for name in ("t.csv", "m.nx", "out.csv"))
    houses(40).to_csv(data, index=False, encoding="latin-1")
    options = ["--target", "price", "-o", model, "--quiet", *QUICK]
    assert main(["fit", data, *options]) == 2
    assert main(["fit", data, *options, "--encoding", "latin-1"]) == 0
    assert main(["predict", model, data, "-o", out, "--quiet"]) == 0
    assert main(["certify", model, data, "--quiet"]) == 0
    houses(40).to_csv(data, index=False)  # in UTF-8, which shows
    assert main(["predict", model, data, "-o", str(tmp_path / "again.csv"), "--quiet"]) == 0
    assert Path(out).read_text() == (tmp_path / "again.csv").read_text()


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


@pytest.mark.usefixtures("small_files")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
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
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert_refused(arguments, message, capsys)


def test_a_huge_number_in_new_rows_is_named(fitted: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    new = houses(5, seed=1).assign(size=1e300)
    new.to_parquet(tmp_path / "new.parquet")
    assert main(["predict", str(fitted), str(tmp_path / "new.parquet"), "-o", str(tmp_path / "out.csv")]) == 2
    assert "column 'size' has '1e+300' in row 1, where numbers must be below 1e+150" in capsys.readouterr().err


@pytest.mark.usefixtures("linked_files")
@pytest.mark.parametrize(
    "arguments",
    [
        ["predict", "model.nx", "t.csv", "-o", "t.csv"],
        ["predict", "model.nx", "t.csv", "-o", "soft.csv"],
        ["predict", "model.nx", "t.csv", "-o", "hard.csv"],
        ["predict", "model.nx", "t.csv", "-o", "model.csv"],
        ["predict", "model.csv", "t.csv", "-o", "model.csv"],
    ],
    ids=" ".join,
)
def test_no_output_takes_the_place_of_an_input_or_of_another_output(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert_nothing_is_overwritten(arguments, capsys)


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


@pytest.mark.parametrize("command_line", [["show"], ["datasets", "list"]], ids=" ".join)
def test_a_closed_pipe_is_silent(command_line: list[str], fitted: Path) -> None:
    """As after `nearexact show model.nx | head -n 1`, whose reader goes before all is written."""
    reader, writer = os.pipe()
    os.close(reader)
    arguments = [*command_line, *([str(fitted)] if command_line[0] == "show" else [])]
    line = [sys.executable, "-m", "nearexact.cli", *arguments]
    result = subprocess.run(line, stdout=writer, stderr=subprocess.PIPE, text=True, check=False, timeout=300)
    os.close(writer)
    assert result.stderr == ""
    assert result.returncode == 141


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


@pytest.mark.slow
def test_memory_does_not_grow_with_the_file(fitted: Path, tmp_path: Path) -> None:
    frame = houses(20_000, seed=3).drop(columns=["price", "remark"])
    peaks = []
    for times in (2, 8):
        repeated(frame, times, tmp_path / "big.csv")
        peaks.append(peak_of_prediction(fitted, tmp_path / "big.csv", tmp_path / "out.parquet"))
        assert len(pd.read_parquet(tmp_path / "out.parquet", columns=["mean"])) == times * 20_000
    assert max(peaks) < 1000.0
    assert peaks[1] - peaks[0] < 100.0  # 120 000 rows more


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
