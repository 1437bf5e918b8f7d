"""Frozen references: they come back as they were written, do not move, and a folder can be held against them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nearexact.bench.analysis import published, references, results
from nearexact.bench.analysis.losses import LML, RMSE
from nearexact.bench.analysis.references import Reference
from nearexact.bench.analysis.targets import best_losses, compute_to_target
from nearexact.cli import main
from tests.bench.synthetic import N, curve_trace, sgpr_trace, write_run


def write_folder(folder: Path, *, final: float = 300.0) -> Path:
    for seed in range(2):
        write_run(folder, "a", "sgpr", seed, sgpr_trace(seed, final=final))
        write_run(folder, "a", "itergp", seed, curve_trace(seed, final=900.0))  # an estimate
        write_run(folder, "a", "linear", seed, [{"elapsed": 0.1, "elbo": 950.0, "rmse": 0.01, "nlpd": -3.0}])
    return folder


def test_the_best_ends_are_frozen_with_their_source(tmp_path: Path) -> None:
    content = results.read(write_folder(tmp_path))
    found = {(one.seed, one.metric): one for one in references.from_results(content)}
    assert {metric for _, metric in found} == {"negative_lml", "rmse", "nlpd", "crps"}
    assert found[0, "negative_lml"].method == "sgpr"  # a bound, not the higher estimate
    assert found[0, "negative_lml"].value == -sgpr_trace(0)[-1]["elbo"]
    assert {one.method for one in found.values()} <= {"sgpr", "itergp"}  # no baselines
    assert found[0, "rmse"].n_train == N
    assert found[0, "rmse"].source == "measured, budget 60 s"


def test_a_file_comes_back_and_is_extended_by_what_is_better(tmp_path: Path) -> None:
    path = tmp_path / "references.json"
    write_folder(tmp_path / "first")
    write_folder(tmp_path / "second", final=310.0)
    assert main(["bench", "freeze", str(tmp_path / "first"), "-o", str(path)]) == 0
    first = references.load(path)
    assert main(["bench", "freeze", str(tmp_path / "second"), "-o", str(path)]) == 0
    second = references.load(path)
    assert len(first) == len(second) == 8
    likelihoods = [one.value for one in second if one.metric == LML.name]
    assert likelihoods == [one.value - 10.0 for one in first if one.metric == LML.name]
    assert main(["bench", "freeze", str(tmp_path / "first"), "-o", str(path)]) == 0
    assert references.load(path) == second


def test_a_target_does_not_move_when_a_better_method_is_added(tmp_path: Path) -> None:
    content = results.read(write_folder(tmp_path))
    goals = references.goals(references.from_results(content))
    write_run(tmp_path, "a", "gpr", 0, curve_trace(0, final=700.0, exact=True))
    moved, frozen = results.read(tmp_path), results.read(tmp_path, goals=goals)
    before = best_losses(content, LML).to_dict()
    assert best_losses(moved, LML)["a", 0] < before["a", 0]
    assert best_losses(frozen, LML).to_dict() == before

    def seconds(of: results.Results) -> float:
        needed = compute_to_target(of, LML, 0.01).set_index(["method", "seed"])
        return float(needed.loc[("sgpr", 0), "elapsed"])

    assert seconds(frozen) == seconds(content) < seconds(moved)
    other_rows = {(dataset, seed, n + 1, metric): loss for (dataset, seed, n, metric), loss in goals.items()}
    assert best_losses(results.read(tmp_path, goals=other_rows), LML)["a", 0] < before["a", 0]  # of other data


def test_a_folder_is_verified(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, path = write_folder(tmp_path / "r"), tmp_path / "references.json"
    own = references.from_results(results.read(folder))
    references.write(path, own)
    assert main(["bench", "verify", str(folder), "--references", str(path)]) == 0
    assert "8 reached, 0 beaten, 0 not reached" in capsys.readouterr().out
    better = [Reference(**{**vars(one), "value": one.value - 0.1}) for one in own if one.metric == RMSE.name]
    references.write(path, better)
    assert main(["bench", "verify", str(folder), "--references", str(path)]) == 1
    assert "0 reached, 0 beaten, 2 not reached" in capsys.readouterr().out
    table = references.verify(results.read(folder), better)
    assert table["difference"].iloc[0] == pytest.approx(100.0 * 0.1 / (1.0 - better[0].value))
    assert main(["bench", "verify", str(folder)]) == 2
    assert "no reference is of a data set and split" in capsys.readouterr().err


def test_means_of_the_paper_are_compared_with_means_over_seeds(tmp_path: Path) -> None:
    content = results.read(write_folder(tmp_path))
    ends = content.final[content.final["method"] == "sgpr"]["rmse"]
    mean = Reference("a", None, N, RMSE.name, 0.05, "gpr", "published")
    (row,) = references.verify(content, [mean]).itertuples()
    assert row.split == "mean"
    assert row.here == pytest.approx(
        min(ends.mean(), content.final[content.final["method"] == "itergp"]["rmse"].mean())
    )


def test_the_package_has_what_the_paper_prints_and_says_so() -> None:
    shipped = references.load()
    means = {(one.dataset, one.metric): one for one in shipped if one.seed is None}
    table = published.load()
    assert {dataset for dataset, _ in means} == set(table["dataset"])
    sgpr = table[(table["dataset"] == "protein") & (table["metric"] == "rmse") & (table["checkpoint"] == "final")]
    sgpr = sgpr[sgpr["method"].isin(["sgpr-paper", "gpr", "itergp-paper"])]
    assert means["protein", "rmse"].value == sgpr["value"].min()
    assert all(one.source.startswith("published: Ober et al.") for one in means.values())
    assert all(one.source.startswith("measured") for one in shipped if one.seed is not None)
    assert references.goals(means.values()) == {}


@pytest.mark.parametrize(
    "content",
    ["", "[]", '{"version": 1}', '{"version": 9, "references": []}', '{"version": 1, "references": [1]}',
     '{"version": 1, "references": [{"dataset": "a"}]}'],
)  # fmt: skip
def test_a_file_that_is_none_is_named(content: str, tmp_path: Path) -> None:
    path = tmp_path / "references.json"
    path.write_text(content)
    with pytest.raises(ValueError, match=r"references\.json"):
        references.load(path)
    entry = {"dataset": "a", "seed": 0, "n_train": 5, "metric": "rmse", "value": "low", "method": "m", "source": "s"}
    path.write_text(json.dumps({"version": 1, "references": [entry]}))
    with pytest.raises(ValueError, match="of another form"):
        references.load(path)
