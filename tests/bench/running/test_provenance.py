"""A benchmark one can publish from: what was run is recorded, and what has changed is run again, openly.

The story of a researcher with a plug-in: edits it, extends the budget, compares two settings, merges two folders.
"""

from __future__ import annotations

import gc
import subprocess
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nearexact import bench
from nearexact.bench.running.earlier_runs import Decision, Present, decide
from nearexact.bench.running.experiment import Experiment, read_experiment, settings
from nearexact.bench.running.provenance import code_of, surroundings
from nearexact.bench.store import RunFolder, RunSpec, RunStatus
from nearexact.cli import main
from tests.bench.running.helpers import experiment, run
from tests.bench.synthetic import constant_trace, curve_trace, write_run

PLUGIN = """
import time
import numpy as np
from levels import LEVEL

class Constant:
    name = "constant"

    def __init__(self, variance=1.0, seconds=0.0, looks=False):
        self.variance, self.seconds, self.looks = variance, seconds, looks

    def run(self, task, report):
        time.sleep(self.seconds)
        if self.looks:
            task.check_time()
        report(lambda X: (np.full(len(X), LEVEL), np.full(len(X), self.variance)), milestone=True)
"""


@pytest.fixture
def plugin(tmp_path: Path) -> str:
    """A plug-in that imports its neighbour."""
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "constants.py").write_text(PLUGIN)
    (folder / "levels.py").write_text("LEVEL = 0.0\n")
    (folder / "unrelated.py").write_text("raise ValueError\n")
    return f"{folder / 'constants.py'}:Constant"


def made(out: Path, *methods: str, retry_failed: bool = False, **fields: Any) -> tuple[RunFolder, list[str]]:
    """The first run of an experiment, and what the sweep had to say."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("ignore")
        warnings.simplefilter("always", UserWarning)
        folder, _ = run(experiment(out, *methods, **{"budget_seconds": 60.0, **fields}), retry_failed=retry_failed)
    return folder, [line for warning in caught for line in str(warning.message).splitlines()]


def contents(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*.json*"))  # without locks, which looking at a run makes
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def test_an_edited_plugin_is_run_again_and_a_longer_budget_too(tmp_path: Path, plugin: str) -> None:
    out, neighbour = tmp_path / "out", tmp_path / "mine" / "levels.py"
    folder, notes = made(out, plugin, jobs=2)
    first = folder.read()
    assert notes == []
    assert first["spec"]["reference"] == plugin
    assert first["spec"]["method"] == first["spec"]["base_method"] == "constant"
    assert first["jobs"] == 2
    assert first["distributions"]["filelock"] == version("filelock")
    assert first["code"]["files"] == ["constants.py", "levels.py"]

    neighbour.write_text("LEVEL = 3.0")
    folder, notes = made(out, plugin)
    assert notes == [
        "step constant seed 0: the code of constants.py:Constant has changed: made again, the earlier run is kept aside"
    ]
    assert folder.read()["code"]["sha256"] != first["code"]["sha256"]
    assert folder.points()[0][0]["rmse"] > 2.0
    aside = RunFolder(folder.path / "aside-1")
    assert aside.read() == first
    assert aside.points()[0][0]["rmse"] < 1.2
    assert bench.load(out)["rmse"].tolist() == [folder.points()[0][0]["rmse"]]

    started = folder.read()["started"]
    folder, notes = made(out, plugin, budget_seconds=30.0, threads=2)
    assert notes == [
        "step constant seed 0: made with other limits (threads: 1, now 2); made with a longer budget"
        " (budget_seconds: 60.0, now 30.0), which serves"
    ]
    assert folder.read()["started"] == started
    folder, notes = made(out, plugin, budget_seconds=90.0)
    assert len(notes) == 1
    assert "the budget is longer (budget_seconds: 60.0, now 90.0): made again" in notes[0]
    assert folder.read()["spec"]["budget_seconds"] == 90.0
    assert RunFolder(folder.path / "aside-2").read()["started"] == started


def test_the_fingerprint_is_of_what_a_plugin_imports(tmp_path: Path, plugin: str) -> None:
    folder = tmp_path / "mine"
    git = ["git", "-C", str(folder), "-c", "user.name=x", "-c", "user.email=x@y"]
    for command in (["init", "-q"], ["add", "constants.py"], ["commit", "-qm", "first"]):
        subprocess.run([*git, *command], check=True)
    code = code_of(plugin)
    assert code is not None
    head = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()
    assert (code["git_commit"], code["git_dirty"]) == (head, True)  # levels.py is in no commit
    subprocess.run([*git, "add", "levels.py"], check=True)
    subprocess.run([*git, "commit", "-qm", "second"], check=True)
    assert (code_of(plugin) or {})["git_dirty"] is False

    def digest() -> str:
        return str((code_of(plugin) or {})["sha256"])

    (folder / "unrelated.py").write_text("# it is not imported")
    assert digest() == code["sha256"]
    (folder / "deep").mkdir()
    (folder / "deep" / "__init__.py").write_text("")
    (folder / "deep" / "below.py").write_text("ONE = 1")
    (folder / "levels.py").write_text("def level():\n    from deep.below import ONE\nLEVEL = 0.0\n")
    package = digest()
    (folder / "deep" / "below.py").write_text("ONE = 2")
    edited = digest()
    (folder / "deep" / "__init__.py").unlink()  # Python imports it without, too
    without = digest()
    (folder / "deep" / "below.py").write_text("ONE = 3")
    assert len({code["sha256"], package, edited, without, digest()}) == 5
    assert code_of("sgpr") is None
    assert surroundings(RunSpec("step", "sgpr", 0, 1.0, 2.0))["code"] is None


def decision(
    status: RunStatus = RunStatus.FINISHED,
    *,
    retry: bool = False,
    was: dict[str, Any] | None = None,
    old: dict[str, Any] | None = None,
    **new: Any,
) -> Decision:
    """About a run with the settings `was` and the entries `old` of run.json, now with the settings `new`."""
    spec = {"dataset": "step", "method": "mean", "seed": 0, "budget_seconds": 9.0, "hard_limit_seconds": 99.0}
    now = Present(RunSpec(**{**spec, "reference": "mean", **new}), {"sha256": "new"}, "new", {"torch": "2"}, "f" * 40)
    content = {"status": status, "spec": {**spec, "threads": 1, "memory_limit": None, **(was or {})}}
    content |= old or {}
    return decide(content, now, retry_failed=retry)


def test_an_earlier_run_serves_unless_something_it_rests_on_has_changed() -> None:
    assert decision() == Decision(make=False)
    assert decision(RunStatus.INTERRUPTED) == Decision(make=True)
    assert decision(old={"code": {"sha256": "new"}, "data": {"sha256": "new"}, "versions": {"torch": "2"}}).note == ""
    changed = decision(old={"data": {"sha256": "old"}})
    assert changed == Decision(True, "the file with the data has changed: made again, the earlier run is kept aside")
    other = decision(old={"versions": {"torch": "1"}})
    assert other == Decision(False, "made with other versions (torch 1, now 2)")
    assert decision(old={"git_commit": "f" * 40}).note == ""
    other = decision(old={"git_commit": "a" * 40})
    assert other == Decision(False, "made with another commit of nearexact (aaaaaaaaaa, now ffffffffff)")
    with pytest.raises(
        ValueError, match=r"run of step, mean, seed 0 with other settings \(device: 'cpu', now 'cuda'\)"
    ):
        decision(was={"device": "cpu"}, device="cuda")


def test_a_failed_run_is_tried_again_only_on_request() -> None:
    new = {"hard_limit_seconds": 700.0}
    limits = "(hard_limit_seconds: 99.0, now 700.0)"
    note = f"made with other limits {limits}, and failed: --retry-failed tries the new ones"
    assert decision(RunStatus.KILLED, **new) == Decision(False, note)
    assert decision(RunStatus.KILLED, retry=True, **new) == Decision(True, f"tried again with other limits {limits}")
    assert decision(RunStatus.ERROR, retry=True) == Decision(make=True)


def test_a_run_that_was_killed_is_made_with_other_limits_and_other_seeds_stay(tmp_path: Path) -> None:
    write_run(tmp_path, "step", "mean", 0, [], RunStatus.KILLED)
    write_run(tmp_path, "step", "mean", 1, constant_trace(-900.0, 1.0, 1.4))
    before = contents(tmp_path / "step" / "mean" / "seed-1")
    folder, notes = made(tmp_path, "mean", seeds=(0, 1), retry_failed=True)
    limits = "other limits (hard_limit_seconds: 240.0, now 600.0)"
    assert notes[0] == f"step mean seed 0: tried again with {limits}"
    assert notes[1].startswith(f"step mean seed 1: made with {limits}")
    assert folder.status() == RunStatus.FINISHED
    assert RunFolder(folder.path / "aside-1").status() == RunStatus.KILLED
    assert contents(tmp_path / "step" / "mean" / "seed-1") == before


def test_two_settings_live_in_one_folder_and_values_beyond_the_budget_are_marked(tmp_path: Path, plugin: str) -> None:
    patient, looking = f"{plugin}{{variance=2, seconds=0.6}}", f"{plugin}{{looks=true, seconds=0.6}}"
    made(tmp_path, plugin, patient, looking, budget_seconds=0.5)
    frame = bench.load(tmp_path).set_index("method")
    over_budget = {"constant": False, "constant{seconds=0.6,variance=2}": True}
    assert frame["over_budget"].to_dict() == {"constant{looks=true,seconds=0.6}": False, **over_budget}
    assert set(frame["base_method"]) == {"constant"}
    assert frame["status"].sort_index().tolist() == ["finished", "killed", "budget"]
    unseen = RunFolder(tmp_path / "step" / "constant{looks=true,seconds=0.6}" / "seed-0")
    assert unseen.read()["reason"].startswith("the training time was spent before anything was reported: 0.6")
    frame = frame[frame["rmse"].notna()]
    error = frame["rmse"].iloc[0] ** 2
    for label, variance in {"constant": 1.0, "constant{seconds=0.6,variance=2}": 2.0}.items():
        assert frame.loc[label, "nlpd"] == pytest.approx(0.5 * (np.log(2.0 * np.pi * variance) + error / variance))


def test_variants_have_names_and_options_of_their_own(tmp_path: Path, plugin: str) -> None:
    path = tmp_path / "experiment.toml"
    path.write_text(
        f"""
        datasets = ["step"]
        options = {{"{plugin}" = {{seconds = 0.1}}}}
        [variants.wide]
        method = "{plugin}{{seconds=0.2}}"
        options = {{variance = 9.0}}
        [variants.short]
        method = "sgpr{{max_inducing=10}}"
        """
    )
    wide, short = Experiment(**read_experiment(path), out=tmp_path).specs()
    assert (wide.method, wide.base_method, wide.reference) == ("wide", "constant", plugin)
    assert wide.options == {"seconds": 0.2, "variance": 9.0}
    assert (short.method, short.base_method, short.reference) == ("short", "sgpr", "sgpr")
    (more,) = Experiment(**{**read_experiment(path), "methods": ["wide{variance=3}"]}, out=tmp_path).specs()
    assert (more.method, more.options) == ("wide{variance=3}", {"seconds": 0.2, "variance": 3})


def test_a_kernel_is_an_option_of_the_methods_that_take_one(tmp_path: Path, plugin: str) -> None:
    file = tmp_path / "mine" / "constants.py"
    file.write_text(file.read_text().replace("looks=False", 'looks=False, kernel="se"'))
    one = experiment(tmp_path, plugin, f"{plugin}{{kernel=linear}}", "mean", kernel="matern32")
    assert [spec.method for spec in one.specs()] == ["constant{kernel=matern32}", "constant{kernel=linear}", "mean"]
    assert one.kernel_is_not_for() == ["mean"]


def test_names_that_mean_two_things_are_refused(tmp_path: Path, plugin: str) -> None:
    other = tmp_path / "other.py"
    other.write_text(PLUGIN.replace("from levels import LEVEL", "LEVEL = 1.0"))
    with pytest.raises(ValueError, match=r"nts\.py:Constant' and '.*other\.py:Constant' are both called 'constant'"):
        made(tmp_path, plugin, f"{other}:Constant")
    with pytest.raises(ValueError, match=r"\(reference: 'x/constants\.py:Constant', now 'other\.py:Constant'\)"):
        decision(was={"reference": "x/constants.py:Constant"}, reference="other.py:Constant")
    other.write_text(other.read_text().replace('"constant"', '"sgpr"'))
    with pytest.raises(ValueError, match="calls itself 'sgpr', which is another method's name"):
        made(tmp_path, f"{other}:Constant")
    with pytest.raises(ValueError, match=r"a variant needs a name .* not 'gpr', of its own"):
        made(tmp_path, "gpr", variants={"gpr": {"method": "mean"}})
    with pytest.raises(ValueError, match=r"none of the methods \['mean', 'linear'\] has an option kernel, got 'se'"):
        made(tmp_path, "mean", "linear", kernel="se")


def test_folders_are_merged_and_reported_together(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, other, both = tmp_path / "one", tmp_path / "other", tmp_path / "both"
    write_run(one, "alpha", "mean", 0, constant_trace(-900.0, 1.0, 1.4))
    write_run(one, "alpha", "gpr", 0, curve_trace(0, final=300.0)[:3], RunStatus.RUNNING)  # it was interrupted
    write_run(other, "alpha", "gpr", 0, curve_trace(0, final=300.0, exact=True))
    write_run(other, "alpha", "mean", 1, constant_trace(-900.0, 1.0, 1.4))
    for run_folder in (other / "alpha").glob("*/*"):
        RunFolder(run_folder).update(jobs=2, hardware={"processor": "slide rule", "cores": 2})
    before = contents(one), contents(other)
    for added in (3, 0):  # the same once more changes nothing
        assert main(["bench", "merge", str(one), str(other), "-o", str(both)]) == 0
        printed = capsys.readouterr()
        assert printed.out == f"{added} runs added: {both}\n"
        assert printed.err.splitlines() == [
            "nearexact: timings come from different hardware: slide rule, 2 cores (2 runs), abacus (1 run)",
            "nearexact: timings of 2 of 3 runs were taken while other runs were under way on the machine"
            " (--jobs, or several workers of a cluster)",
        ]
    assert (contents(one), contents(other)) == before
    frame = bench.load(both)
    assert frame.groupby(["method", "seed"]).size().to_dict() == {("gpr", 0): 20, ("mean", 0): 1, ("mean", 1): 1}
    assert set(frame["status"]) == {"finished"}

    assert main(["bench", "report", str(one), str(other), "-o", str(tmp_path / "page"), "--no-figures"]) == 0
    assert "nearexact: timings come from different hardware" in capsys.readouterr().err
    assert len((tmp_path / "page" / "tables" / "runs.csv").read_text().splitlines()) == 4
    assert "one + other" in (tmp_path / "page" / "report.html").read_text()


def test_what_differs_is_not_merged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, other, both = tmp_path / "one", tmp_path / "other", tmp_path / "both"
    write_run(one, "alpha", "mean", 0, constant_trace(-900.0, 1.0, 1.4))
    write_run(other, "alpha", "mean", 0, constant_trace(-800.0, 1.0, 1.4))
    command = ["bench", "merge", str(one), str(other), "-o", str(both)]
    assert main(command) == 2
    place = Path("alpha", "mean", "seed-0")
    assert f"{one / place} and {other / place} are different runs of the same" in capsys.readouterr().err
    write_run(other, "alpha", "mean", 1, constant_trace(-800.0, 1.0, 1.4))
    for folder, checksum in ((one, "a"), (other, "b")):
        for run_folder in (folder / "alpha" / "mean").iterdir():
            RunFolder(run_folder).update(data={"n_train": 10, "inputs": 1, "sha256": checksum})
    assert main(command) == 2
    assert "the data set 'alpha' is not the same in" in capsys.readouterr().err
    assert not both.exists()


@pytest.mark.parametrize(
    ("given", "seeds"), [("3", (0, 1, 2)), ("3,4", (3, 4)), ("7,", (7,)), (2, (0, 1)), ([5, 9], (5, 9))]
)
def test_seeds_are_a_number_or_a_list(given: Any, seeds: tuple[int, ...]) -> None:
    assert settings(seeds=given)["seeds"] == seeds


@pytest.mark.parametrize("given", ["", "a", "0", "1;2", "-1", [], [1.5]])
def test_other_seeds_are_refused(given: Any) -> None:
    with pytest.raises(ValueError, match="seeds must be a number of at least 1 or a list of whole numbers"):
        settings(seeds=given)


def test_code_is_looked_at_from_two_threads_at_once(tmp_path: Path) -> None:
    names = [f"part{number}" for number in range(20)]
    for name in names:
        (tmp_path / f"{name}.py").write_text("x = [1, (2, 3)]\n" * 100)
    (tmp_path / "whole.py").write_text("\n".join(f"import {name}" for name in names))

    def let_others_run(*_: object) -> None:
        time.sleep(1e-5)

    gc.callbacks.append(let_others_run)
    try:
        with ThreadPoolExecutor(2) as pool:
            one, other = pool.map(code_of, [f"{tmp_path / 'whole.py'}:Class"] * 2)
    finally:
        gc.callbacks.remove(let_others_run)
    assert one is not None
    assert one == other
    assert len(one["files"]) == 21
