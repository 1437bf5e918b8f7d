"""A fit that goes on from a file gives what it would have given without the break."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nearexact import GPRegressor, SGPRegressor
from nearexact.gp.search import Search
from nearexact.gp.sparse import SparseObjective
from nearexact.kernels import Matern32
from nearexact.resuming import _round
from tests.problems import regression

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

X, Y = regression(300)


def model(**options: Any) -> SGPRegressor:
    return SGPRegressor(Matern32(), time_limit=None, **{"max_inducing": 40, **options})


def test_a_fit_goes_on_to_the_same_digits(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    whole = model(random_state=3).fit(X, Y)
    last = whole.history_[-1]
    assert len(whole.history_) > 1
    before_last = sum(stage.evaluations for stage in whole.history_[:-1])
    state, factorise, calls = tmp_path / "state.json", SparseObjective.factorise, []

    def fragile(self: SparseObjective, *arguments: Any, **options: Any) -> Any:
        calls.append(1)
        if len(calls) > before_last + last.evaluations // 2:
            raise ConnectionError("gone")
        return factorise(self, *arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(SparseObjective, "factorise", fragile)
        with pytest.raises(ConnectionError):
            model(random_state=3).fit(X, Y, resume=state)
    resumed = model().fit(X, Y, resume=state)  # which has the random numbers of the first, too
    assert resumed.elbo_ == whole.elbo_
    assert (resumed.inducing_points_ == whole.inducing_points_).all()
    assert [stage.m for stage in resumed.history_] == [stage.m for stage in whole.history_]
    assert resumed.certificate_.evidence == whole.certificate_.evidence
    assert resumed.history_[-1].elapsed > resumed.history_[-2].elapsed
    drawn = json.loads(state.read_text())["seed"]
    model().fit(X, Y, resume=state)
    assert json.loads(state.read_text())["seed"] == drawn  # the same subset, however often it goes on

    for other, data, words in (
        (model(max_inducing=50), (X, Y), "settings"),
        (model(), (X[:-1], Y[:-1]), "rows"),
        (model(), (X, Y + np.arange(300)), "other data"),
        (GPRegressor(Matern32(), method="cholesky"), (X, Y), "resume is for sparse GPs"),
    ):
        with pytest.raises(ValueError, match=words):
            other.fit(*data, resume=state)
    with pytest.raises(ValueError, match="or their known noise"):  # the same for all rows: scalings do not tell
        model().fit(X, Y, noise_variance=np.full(300, 0.1), resume=state)
    state.write_text("{}")
    with pytest.raises(ValueError, match="does not hold the state"):
        model().fit(X, Y, resume=state)


def test_who_agrees_by_an_older_count_is_not_known() -> None:
    """States of earlier versions counted what had the same likelihood, wherever it was."""
    fields = {"rows": 100, "likelihoods": [9.0, 8.9, 8.8], "evaluations": 30, "seconds": 1.0, "finished": True}
    fields |= {"settled": True, "support": [3, 3], "counted_at": 9.0}
    assert _round(fields).support == (1, 3)
    now = _round({**fields, "agreeing": 3, "support_rows": 100})
    assert now.support == (3, 3)
    assert _round(json.loads(json.dumps(asdict(now)))) == now


def test_what_a_search_has_left_open_stays_open() -> None:
    search = Search(Matern32(), X, Y)
    search.doubt(looked_everywhere=False, left_behind_a_rival=True)
    assert not search.starts.has_looked_everywhere
    assert search.rivals.are_left_behind
    search.doubt(looked_everywhere=True, left_behind_a_rival=False)
    assert search.starts.has_looked_everywhere
    assert not search.rivals.are_left_behind
