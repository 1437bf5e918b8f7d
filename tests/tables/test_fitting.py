"""Which way `fit` takes, and what its summary says about it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import nearexact
from nearexact import tables
from nearexact.cli import main
from nearexact.tables import Fitted, fit
from nearexact.tables.kernel_names import COMPARED
from nearexact.tables.terminal import WIDTH, summary_lines


def table(folder: Path, n: int) -> Path:
    rng = np.random.default_rng(0)
    x = rng.uniform(-3.0, 3.0, size=n)
    pd.DataFrame({"x": x, "y": np.sin(2.0 * x) + 0.2 * rng.normal(size=n)}).to_csv(folder / "t.csv", index=False)
    return folder / "t.csv"


def test_the_exact_gp_is_taken_where_it_is_affordable(fitted: Fitted) -> None:
    summary = fitted.summary
    assert (fitted.model.method_, summary.method) == ("cholesky", "cholesky")
    assert (summary.verdict, summary.doubt, summary.gap_per_point) == ("exact", None, 0.0)
    assert summary.m == summary.rows_train
    assert summary.about_theta == fitted.model.certificate_.about_theta
    lines = str(summary).splitlines()
    text = " ".join(" ".join(lines).split())
    assert "exact GP, kernel se" in text
    assert "exact: log marginal likelihood" in text
    assert summary.about_theta in text
    assert max(map(len, lines)) <= WIDTH


def test_files_of_exact_models_predict_and_certify(
    fitted: Fitted, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fitted.save(tmp_path / "model.nx")
    loaded, recipe = tables.load_with_recipe(tmp_path / "model.nx")
    new = recipe.frame(fitted.prepared.test)
    for one, other in zip(
        fitted.model.predict(new, return_std=True), loaded.predict(new, return_std=True), strict=True
    ):
        np.testing.assert_array_equal(one, other)
    data = pd.DataFrame(fitted.prepared.test, columns=recipe.names)
    data.to_csv(tmp_path / "new.csv", index=False)
    tables.predict(tmp_path / "model.nx", tmp_path / "new.csv", tmp_path / "out.csv")
    np.testing.assert_allclose(pd.read_csv(tmp_path / "out.csv")["mean"], fitted.model.predict(new), rtol=1e-9)
    assert main(["show", str(tmp_path / "model.nx")]) == 0
    assert "exact: log marginal likelihood" in capsys.readouterr().out


def test_time_that_is_too_short_for_the_exact_gp_gives_a_sparse_one(tmp_path: Path) -> None:
    path = table(tmp_path, 5000)
    found = fit(path, "y", kernel="se", time_limit="0.4s", memory_limit="100MB")  # 4250² numbers are 144 MB
    assert (found.model.method_, found.summary.method) == ("sparse", "sparse")
    assert found.summary.m < found.summary.rows_train
    assert f"sparse GP with {found.summary.m} inducing points" in str(found.summary)
    found.write_page(tmp_path / "fit.html")
    page = (tmp_path / "fit.html").read_text(encoding="utf-8")
    assert "inducing points" in page
    assert found.summary.about_theta in page
    found.save(tmp_path / "model.nx")
    assert nearexact.load(tmp_path / "model.nx").method_ == "sparse"


def test_the_choice_is_told_and_kept(tmp_path: Path) -> None:
    told: list[str] = []
    found = fit(table(tmp_path, 80), "y", time_limit=None, refit=False, on_event=told.append)
    assert {trial.kernel for trial in found.summary.tried} == set(COMPARED)
    assert f"kernel: {found.summary.kernel}, from 14 by exact likelihoods of all rows" in told
    assert found.choice.optimum is not None
    # Training starts from what the choice has found on the same rows, so that it ends no lower.
    assert found.model.certificate_.lower >= found.choice.optimum.likelihood - 1e-6
    assert found.model.kernel == found.choice.kernel  # as it was before any training


def test_a_limit_that_cuts_the_choice_short_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only some kernels can be tried in a share of the time that is next to nothing."""
    monkeypatch.setattr("nearexact.tables.model_search.SHARE_OF_TIME", 0.05 / 20.0)
    told: list[str] = []
    found = fit(table(tmp_path, 200), "y", time_limit="20s", on_event=told.append)
    untried = [trial.kernel for trial in found.summary.tried if trial.rows == 0]
    assert untried
    assert not any("from 14 " in message for message in told)
    note = f"no likelihood of {len(untried)} of 14 kernels is known: {', '.join(untried)}"
    assert note in found.summary.notes or "no time was left to choose a kernel" in " ".join(found.summary.notes)


def test_summaries_of_earlier_releases_are_shown(fitted: Fitted) -> None:
    """They do not say how the model was trained, nor what speaks for its hyperparameters."""
    words = fitted.summary.to_json()
    old = {key: value for key, value in words.items() if key not in ("method", "doubt", "about_theta", "evidence")}
    old |= {"verdict": "certified", "tried": [{"kernel": "se", "bound": -1.0, "m": 50, "seconds": 1.0, "note": ""}]}
    text = "\n".join(summary_lines(old))
    assert "sparse GP with" in text
    assert "hyperparameters   not compared with others" in text
    assert "a much better model may exist" in text
