"""`fit(X, y, start=…)`: hyperparameters that somebody has found already are not lost."""

from __future__ import annotations

import math

import numpy as np
import pytest

from nearexact import GPRegressor, SGPRegressor
from nearexact.gp.search import Search
from nearexact.gp.search_starts import FEWEST_STARTS
from nearexact.kernels import Matern32, SquaredExponential
from tests.problems import regression

X, Y = regression(60)
FOUND = (SquaredExponential([0.7, 1.3, 2.1], 1.7), 0.03)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("estimator", [SGPRegressor, GPRegressor])
def test_without_time_the_start_is_the_model(estimator: type[SGPRegressor | GPRegressor]) -> None:
    model = estimator(time_limit=1e-9, random_state=0).fit(X, Y, start=FOUND)
    np.testing.assert_allclose(model.kernel_.lengthscales, FOUND[0].lengthscales)  # type: ignore[attr-defined]
    assert model.noise_variance_ == pytest.approx(FOUND[1])
    assert model.kernel is None  # the parameter is not changed


def test_a_search_ends_no_lower_than_its_start() -> None:
    search = Search(SquaredExponential(), X, Y, seed=0, start=FOUND)
    at_start = search.objective(60).factorise(*FOUND).lml
    search.run()
    assert search.candidates[0].likelihood >= at_start
    assert len(search.rounds[0].likelihoods) > FEWEST_STARTS  # the others are tried all the same
    assert math.isinf(Search(SquaredExponential(), X, Y).candidates[0].likelihood)


def test_a_start_of_another_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="the kernel must differ from SquaredExponential"):
        GPRegressor().fit(X, Y, start=(Matern32(), 0.1))
    with pytest.raises(ValueError, match="noise_variance must be finite and at least"):
        GPRegressor().fit(X, Y, start=(SquaredExponential(), -0.1))


def test_a_start_at_the_optimum_is_no_reason_for_doubt() -> None:
    first = GPRegressor(random_state=0).fit(X, Y)
    again = GPRegressor(random_state=1).fit(X, Y, start=(first.kernel_, first.noise_variance_))
    assert first.certificate_.verdict == again.certificate_.verdict == "exact"
    assert again.certificate_.lower >= first.certificate_.lower - 1e-6
