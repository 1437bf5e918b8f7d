"""The command line, also through the real command."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from nearexact.bench import methods
from nearexact.bench.running.experiment import Experiment
from nearexact.bench.running.sweep import run_sweep
from nearexact.bench.store import add_to_plan
from nearexact.cli import main

RUN_MEAN = ["bench", "run", "--methods", "mean", "--datasets", "step", "--out", "results"]


def nearexact(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "nearexact.cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_an_experiment_from_run_to_export(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    experiment = tmp_path / "experiment.toml"
    experiment.write_text(
        'methods = ["mean", "linear", "sgpr"]\ndatasets = ["step"]\nseeds = 1\nbudget = "20s"\nthreads = 1\n'
        f'out = "{tmp_path / "results"}"\n[options.sgpr]\nprocedure = "paper"\n'
    )
    result = nearexact("bench", "run", str(experiment))
    assert result.returncode == 0, result.stderr
    assert "3 of 3 runs done: 3 finished" in result.stdout
    assert main(["bench", "run", str(experiment)]) == 0
    assert "3 of 3 runs done: 3 finished" in capsys.readouterr().out
    assert main(["bench", "status", str(tmp_path / "results")]) == 0
    assert "all 3 runs are done" in capsys.readouterr().out
    for suffix in ("csv", "parquet"):
        output = tmp_path / f"table.{suffix}"
        assert main(["bench", "export", str(tmp_path / "results"), "-o", str(output)]) == 0
        frame = pd.read_csv(output) if suffix == "csv" else pd.read_parquet(output)
        assert sorted(frame["method"].unique()) == ["linear", "mean", "sgpr"]


def test_status_says_what_failed_and_what_is_left(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    broken = f"{Path(__file__).parent / 'bench' / 'plugins.py'}:Broken"
    fields = {"methods": [broken], "datasets": ["step"], "out": tmp_path, "budget_seconds": 120.0, "threads": 1}
    run_sweep(Experiment(**fields))
    add_to_plan(tmp_path, Experiment(**{**fields, "methods": ["mean"], "seeds": (0, 1)}).specs())
    assert main(["bench", "status", str(tmp_path)]) == 0
    status = " ".join(capsys.readouterr().out.split())
    assert "ZeroDivisionError: what a pity" in status
    assert "2 of 3 runs left, about 4 min" in status


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["bench", "run", "--methods", "mean"], "an experiment needs --datasets, --out, or a file that has them"),
        (["bench", "run", "missing.toml"], "missing.toml is not an experiment that can be read"),
        (
            ["bench", "run", "--methods", "mean", "--datasets", "step", "--out", "x", "--budget", "soon"],
            "time limit must be",
        ),
        (
            ["bench", "run", "--methods", "mean", "--datasets", "step", "--out", "x", "--memory-limit", "-1"],
            "memory size",
        ),
        (["bench", "status", "nowhere"], "there is no folder 'nowhere' with results"),
        (["bench", "export", "nowhere", "-o", "x.csv"], "there is no folder 'nowhere' with results"),
        (["datasets", "info", "iris"], "there is no data set 'iris'"),
        (["datasets", "fetch", "iris"], "there is no data set 'iris'"),
        (["bench", "check", "nosuch"], "there is no method 'nosuch'"),
    ],
)
def test_mistakes_are_one_line_and_status_2(
    arguments: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.startswith("nearexact: ")
    assert error.count("\n") == 1


def test_the_package_is_the_command_too() -> None:
    for arguments in (["-m", "nearexact", "--version"], ["-m", "nearexact.cli", "--version"]):
        result = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=True)
        assert result.stdout == f"nearexact {version('nearexact')}\n"


QUICK_ANSWERS = {
    "show model.nx": 0,
    "show none.nx": 2,
    "show t.csv": 2,
    "fit none.csv --target y -o m.nx": 2,
    "fit t.csv --target none -o m.nx": 2,
    "fit t.csv --target y -o m.nx --kernel none": 2,
    "fit t.csv --target y -o m.nx --kernel se+linear*(periodic": 2,
    "fit t.csv --target y -o m.nx --time-limit soon": 2,
    "fit t.csv": 2,
    "predict none.nx t.csv -o o.csv": 2,
    "predict model.nx none.csv -o o.csv": 2,
    "predict model.nx t.csv -o o.csv --keep none": 2,
    "certify model.nx none.csv": 2,
}


def test_models_are_shown_and_mistakes_found_before_anything_slow_is_imported(
    small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Torch, scikit-learn and SciPy's statistics take seconds to import."""
    monkeypatch.chdir(small)
    program = [
        "import sys",
        "from nearexact.cli import main",
        "for line in sys.argv[1:]:",
        "    try: status = main(line.split())",
        "    except SystemExit as stop: status = stop.code",
        "    slow = {'torch', 'sklearn', 'scipy.stats'} & set(sys.modules)",
        "    print('status', status, *slow, file=sys.stderr)",
    ]
    command = [sys.executable, "-c", "\n".join(program), *QUICK_ANSWERS]
    errors = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    statuses = [line for line in errors.splitlines() if line.startswith("status ")]
    assert statuses == [f"status {status}" for status in QUICK_ANSWERS.values()], errors


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a table, and a model of it."""
    folder = tmp_path_factory.mktemp("small")
    rng = np.random.default_rng(0)
    pd.DataFrame({"x": rng.normal(size=20), "y": rng.normal(size=20)}).to_csv(folder / "t.csv", index=False)
    arguments = ["--target", "y", "-o", str(folder / "model.nx"), "--kernel", "se", "--time-limit", "0.1s", "--quiet"]
    assert main(["fit", str(folder / "t.csv"), *arguments]) == 0
    return folder


def test_listings(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["datasets", "list"]) == 0
    assert "keggundirected" in capsys.readouterr().out
    assert main(["datasets", "info", "kin8nm"]) == 0
    assert "8192 rows, 8 inputs; 6963 rows to train, 1229 to test" in capsys.readouterr().out
    assert main(["bench", "methods"]) == 0
    assert capsys.readouterr().out.split() == list(methods.BUILT_IN)
