"""Results that are damaged, or not ours: `status`, `export` and `report` name them in a line each, no traceback."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from nearexact.bench.running.experiment import Experiment
from nearexact.bench.running.sweep import run_sweep
from nearexact.bench.running.terminal import summarise
from nearexact.bench.store import FIDELITY, PLAN, RUN, TRACE, RunFolder, RunSpec, add_to_plan
from nearexact.cli import main
from tests.bench.synthetic import sgpr_trace, write_run

DEEP = "[" * 100_000 + "]" * 100_000
NESTED = "[" * 300 + "]" * 300
HUGE = "9" * 400
LONG = "9" * 5000  # more digits than Python reads
SPEC = {"dataset": "alpha", "method": "gpr", "seed": 0, "budget_seconds": 60.0, "hard_limit_seconds": 240.0}
POINT = {"elapsed": 99.0, "rmse": 0.5, "elbo": -1.0, "milestone": True, "info": {}}


def run_json(**changes: Any) -> str:
    return json.dumps({"spec": SPEC, "status": "finished", **changes})


def point(**changes: Any) -> str:
    return json.dumps({**POINT, **changes}) + "\n"


DAMAGED = {
    "run: empty": (RUN, ""),
    "run: not JSON": (RUN, "\x00\x01 not ours"),
    "run: not UTF-8": (RUN, b"\xff\xfe{}"),
    "run: a list": (RUN, "[1, 2]"),
    "run: deep": (RUN, DEEP),
    "run: nested": (RUN, run_json(settings=json.loads(NESTED))),
    "run: endless number": (RUN, f'{{"spec": {json.dumps(SPEC)}, "points": {LONG}}}'),
    "run: seed is a list": (RUN, run_json(spec={**SPEC, "seed": [0]})),
    "run: data set is a number": (RUN, run_json(spec={**SPEC, "dataset": 3})),
    "run: method is an object": (RUN, run_json(spec={**SPEC, "method": {}})),
    "run: budget is a text": (RUN, run_json(spec={**SPEC, "budget_seconds": "long"})),
    "run: status is a list": (RUN, run_json(status=[])),
    "trace: deep": (TRACE, DEEP),
    "trace: nested": (TRACE, point(info={"a": json.loads(NESTED)})),
    "trace: huge number": (TRACE, point().replace("99.0", HUGE)),
    "trace: huge rmse": (TRACE, point(rmse=10**400)),
    "trace: huge information": (TRACE, point(info={"jitter": 10**400})),
    "trace: elapsed is a text": (TRACE, point(elapsed="noon")),
    "trace: elapsed is not a number": (TRACE, point(elapsed=float("nan"))),
    "trace: rmse is a list": (TRACE, point(rmse=[1.0])),
    "trace: info is a list": (TRACE, point(info=[])),
    "trace: a number": (TRACE, "7\n"),
    "trace: coverage is an object": (TRACE, point(coverage_95={})),
    "trace: not UTF-8": (TRACE, b"\xff\xfe\x00\n"),
    "plan: deep": (PLAN, DEEP),
    "plan: a list": (PLAN, "[]"),
    "plan: data set is a number": (PLAN, json.dumps({"a": {**SPEC, "dataset": 5}})),
    "plan: unknown entry": (PLAN, json.dumps({"a": {**SPEC, "colour": "red"}})),
    "plan: no objects": (PLAN, json.dumps({"a": 1})),
}
WRONG_ENTRIES: dict[str, list[Any]] = {  # of run.json: the run counts without them
    "hardware": ["abacus", {"processor": ["abacus"]}],
    "versions": [3, {"python": {}}],
    "settings": [[], "none"],
    "data": [{"n_train": "many"}, {"n_train": 10, "inputs": 0.5}, {"n_train": -3, "inputs": 2}, True],
    "started": ["noon"],
    "finished": [[]],
    "training_seconds": [10**400, "long"],
    "evaluation_seconds": [{}],
    "peak_memory_mb": [-(10**400), True],
    "points": [0.5, 10**400],
    "threads": ["all"],
    "reason": [3],
    "git_commit": [["abc"]],
}
REFUSED = {  # by the report, which needs them
    "fidelity: deep": (FIDELITY, DEEP),
    "fidelity: not a list": (FIDELITY, "{}"),
    "fidelity: no method": (FIDELITY, '[{"dataset": "alpha", "kl": 1.0}]'),
    "fidelity: nested": (FIDELITY, '[{"dataset": "alpha", "method": "sgpr", "seed": 0, "kl": [1.0]}]'),
    "fidelity: huge number": (FIDELITY, f'[{{"dataset": "alpha", "method": "sgpr", "seed": 0, "kl": {HUGE}}}]'),
}
STRANGE = {  # nothing is wrong with them, but they are unusual
    "odd information": point(
        info={"scheduled_m": [1], "stopped": {"a": 1}, "big": 10**300, "dataset": "other", "exact_lml": "x", "": None}
    ),
    "odd numbers": point(rmse=1e308, elbo=-1e308, nlpd=float("inf"), flops=1e300, m=-1, peak_memory_mb=float("nan")),
}


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """A sound run, and a second one whose files a test damages."""
    folder = tmp_path / "results"
    write_run(folder, "alpha", "sgpr", 0, sgpr_trace())
    write_run(folder, "alpha", "gpr", 0, [{"elapsed": 1.0, "rmse": 0.5, "elbo": -10.0, "milestone": True}])
    add_to_plan(folder, [RunSpec(**SPEC)])
    return folder


def damage(results: Path, name: str, content: str | bytes) -> Path:
    path = results / name if name in (PLAN, FIDELITY) else RunSpec(**SPEC).folder(results) / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def commands(results: Path) -> dict[str, list[str]]:
    out = results.parent
    return {
        "status": ["bench", "status", str(results)],
        "csv": ["bench", "export", str(results), "-o", str(out / "table.csv")],
        "parquet": ["bench", "export", str(results), "-o", str(out / "table.parquet")],
        "report": ["bench", "report", str(results), "-o", str(out / "report"), "--no-figures"],
    }


@pytest.mark.parametrize("case", DAMAGED)
def test_damaged_files_are_left_out_and_named(case: str, results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = damage(results, *DAMAGED[case])
    for name, arguments in commands(results).items():
        assert main(arguments) == 0, name
        lines = capsys.readouterr().err.splitlines()
        if (name in ("csv", "parquet") and path.name == PLAN) or (name == "status" and path.name == TRACE):
            assert lines == []  # which it does not read
        else:
            assert len(lines) == 1, (name, lines)
            assert lines[0].startswith(f"nearexact: {path}"), name
            assert len(lines[0]) < 1000


@pytest.mark.parametrize(
    ("entry", "value"), [(name, value) for name, values in WRONG_ENTRIES.items() for value in values]
)
def test_a_run_counts_without_an_entry_that_cannot_be_right(
    entry: str, value: Any, results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = damage(results, RUN, run_json(**{entry: value}))
    assert entry not in RunFolder(path.parent).read()
    for name, arguments in commands(results).items():
        assert main(arguments) == 0, name
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith(f"nearexact: {path}: entries are left out: {entry} must be "), name
        assert len(line) < 1000
    assert "\nalpha,gpr,0,finished," in (results.parent / "report" / "tables" / "runs.csv").read_text()


@pytest.mark.parametrize("case", REFUSED)
def test_a_damaged_comparison_is_an_error_in_one_line(
    case: str, results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = damage(results, *REFUSED[case])
    for name, arguments in commands(results).items():
        assert main(arguments) == (2 if name == "report" else 0), name
        lines = capsys.readouterr().err.splitlines()
        assert len(lines) == (name == "report")
        assert all(line.startswith(f"nearexact: {path}") for line in lines)


@pytest.mark.parametrize("case", STRANGE)
def test_unusual_points_are_points(case: str, results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    damage(results, TRACE, STRANGE[case])
    for name, arguments in commands(results).items():
        assert main(arguments) == 0, name
        assert "Traceback" not in capsys.readouterr().err


def test_results_of_a_later_version_are_refused(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = damage(results, RUN, run_json(version=2))
    for name, arguments in commands(results).items():
        assert main(arguments) == 2, name
        (line,) = capsys.readouterr().err.splitlines()
        assert line == f"nearexact: {path} is of version 2, and this nearexact only reads versions up to 1"


def test_a_sweep_does_not_overwrite_a_run_of_a_later_version(tmp_path: Path) -> None:
    experiment = Experiment(methods=["mean"], datasets=["step"], out=tmp_path)
    folder = RunFolder(experiment.specs()[0].folder(tmp_path))
    folder.prepare(experiment.specs()[0])
    folder.update(version=2)
    with pytest.raises(ValueError, match="is of version 2"):
        run_sweep(experiment)


def test_files_without_a_version_are_read(results: Path) -> None:
    path = damage(results, RUN, run_json())
    assert "version" not in json.loads(path.read_text())
    assert RunFolder(path.parent).status() == "finished"
    assert len(summarise(results)) == 2
