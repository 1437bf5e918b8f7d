"""What users are told: one warning for a cross-validation, and where tables with other things than numbers belong."""

from __future__ import annotations

import warnings

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from nearexact import GPRegressor
from tests.problems import regression


def convergence_warnings(caught: list[warnings.WarningMessage]) -> int:
    return sum(warning.category is ConvergenceWarning for warning in caught)


def test_a_cross_validation_warns_once() -> None:
    X, y = regression(60)
    model = GPRegressor(time_limit=1e-6, random_state=0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        cross_val_score(make_pipeline(StandardScaler(), model), X, y, cv=3)
    assert convergence_warnings(caught) == 1
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        GridSearchCV(GPRegressor(random_state=0), {"time_limit": [1e-6, 2e-6]}, cv=2).fit(X, y)
    assert convergence_warnings(caught) == 2  # one for each limit


def test_fits_that_are_no_clones_always_warn() -> None:
    X, y = regression(60)
    model = GPRegressor(time_limit=1e-6, random_state=0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        clone(model).fit(X, y)
        clone(clone(model)).fit(X, y)
        model.fit(X, y)
        model.fit(X, y)
    assert convergence_warnings(caught) == 3


@pytest.mark.parametrize(
    ("X", "words"),
    [
        (pd.DataFrame({"a": [1.0, 2.0, 3.0], "town": ["Rome", "Oslo", "Rome"]}), "could not convert.*'town' is "),
        (pd.DataFrame({"day": pd.to_datetime(["2020-01-01", "2020-01-02", "2020-01-03"]), "a": 1}), "'day' is date"),
        (pd.DataFrame({"a": [1.0, np.nan, 3.0]}), "Input X contains NaN"),
        (np.array([["x"], ["y"], ["z"]]), "could not convert|unable to convert"),
        ([["x"], ["y"], ["z"]], "could not convert|unable to convert"),
    ],
)  # fmt: skip
def test_what_is_no_number_is_sent_to_the_tables(X: object, words: str) -> None:
    with pytest.raises(ValueError, match=rf"(?s)(?i)({words}).*nearexact\.tables\.fit") as error:
        GPRegressor().fit(X, [1.0, 2.0, 3.0])
    assert "missing cells" in str(error.value)


def test_the_same_at_prediction_and_the_model_is_as_it_was() -> None:
    X, y = regression(20, d=1)
    model = GPRegressor(random_state=0).fit(X, y)
    before = model.predict(X)
    with pytest.raises(ValueError, match=r"nearexact\.tables\.fit"):
        model.predict([["x"]])
    with pytest.raises(ValueError, match=r"nearexact\.tables\.fit"):
        model.fit([["x"]] * 20, y)
    assert np.array_equal(model.predict(X), before)
