"""Bad data get a clear error, hard data get a model with finite predictions."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from sklearn.exceptions import ConvergenceWarning

from nearexact import GPRegressor, SGPRegressor
from nearexact.kernels import ArcCosine, Linear, Matern12, SquaredExponential
from tests.hard_data import HARD, Data, constant_target, noiseless, smooth

ESTIMATORS = [SGPRegressor, GPRegressor]
VERDICTS = {  # of sparse models, where there is no doubt
    **dict.fromkeys(("pure_noise", "constant_target", "one_input_repeated"), "no better than noise"),
    **dict.fromkeys(("noiseless", "duplicated_rows", "integer_grid", "collinear_columns"), "certified"),
    **dict.fromkeys(("tiny_target", "huge_target"), "certified"),
}


def assert_sound(model: SGPRegressor | GPRegressor, X: np.ndarray, y: np.ndarray) -> None:
    """Finite predictions that are no worse than the mean's, also far away; bounds in order."""
    far = np.vstack([X[:3] * 1e3 + 1e3, np.full((1, X.shape[1]), 1e300), np.full((1, X.shape[1]), -1e300)])
    for inputs in (X, far):
        mean, std = model.predict(inputs, return_std=True)
        assert np.isfinite(mean).all()
        assert np.isfinite(std).all()
        assert (std > 0.0).all()
    scale = np.ptp(y.astype(float)) or 1.0
    errors = (model.predict(X) - y) / scale
    assert np.sqrt(np.mean(errors**2)) <= 1.001 * np.std(y / scale) + 1e-6
    assert np.isfinite(model.sample_y(X[:5], 2)).all()
    assert np.isfinite(model.log_predictive_density(X, y)).all()
    assert model.elbo_ <= model.upper_bound_ + 1e-6 * abs(model.upper_bound_)


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("make", HARD, ids=lambda make: make.__name__)
def test_hard_data_are_fitted(make: Callable[[], Data], estimator: type[SGPRegressor]) -> None:
    X, y = make()
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)  # nothing overflows on the way
        model = estimator(random_state=0).fit(X, y)
    assert_sound(model, X, y)
    if estimator is SGPRegressor and make.__name__ in VERDICTS:
        assert model.certificate_.verdict == VERDICTS[make.__name__]


@pytest.mark.parametrize("time_limit", [0.4, pytest.param(None, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kernel", [Matern12(), ArcCosine(1), SquaredExponential() + Linear()], ids=str)
@pytest.mark.parametrize("make", HARD, ids=lambda make: make.__name__)
def test_hard_data_are_fitted_with_other_kernels(
    make: Callable[[], Data], kernel: SquaredExponential, time_limit: float | None
) -> None:
    X, y = make()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model = SGPRegressor(kernel, random_state=0, max_inducing=20, time_limit=time_limit).fit(X, y)
    mean, std = model.predict(X, return_std=True)
    assert np.isfinite(mean).all()
    assert np.isfinite(std).all()
    assert (std > 0.0).all()
    assert model.elbo_ <= model.upper_bound_ + 1e-6 * abs(model.upper_bound_)


def test_a_noiseless_target_is_interpolated() -> None:
    X, y = noiseless()
    model = SGPRegressor(random_state=0).fit(X, y)
    assert np.abs(model.predict(X) - y).max() < 0.02 * y.std()


def test_a_constant_target_is_predicted_as_it_is() -> None:
    X, y = constant_target()
    for estimator in ESTIMATORS:
        np.testing.assert_allclose(estimator(random_state=0).fit(X, y).predict(X), y, rtol=1e-9)


# ---- bad data --------------------------------------------------------------------------------------------------------

GOOD_X, GOOD_Y = smooth(20)
BAD: dict[str, tuple[object, object, str]] = {
    "NaN in X": (np.where(np.arange(60).reshape(20, 3) == 7, np.nan, GOOD_X), GOOD_Y, "X contains NaN"),
    "infinity in X": (np.where(np.arange(60).reshape(20, 3) == 7, np.inf, GOOD_X), GOOD_Y, "X contains infinity"),
    "NaN in y": (GOOD_X, np.where(np.arange(20) == 3, np.nan, GOOD_Y), "y contains NaN"),
    "infinity in y": (GOOD_X, np.where(np.arange(20) == 3, -np.inf, GOOD_Y), "y contains infinity"),
    "X is a vector": (GOOD_X[:, 0], GOOD_Y, "Expected 2D array, got 1D array"),
    "X has three axes": (GOOD_X[None], GOOD_Y, "dim 3"),
    "y has three axes": (GOOD_X, GOOD_Y[:, None, None], "dim 3"),
    "y has no columns": (GOOD_X, np.empty((20, 0)), "0 feature"),
    "text in X": ([["a", 1.0], ["b", 2.0]], [1.0, 2.0], "could not convert string to float"),
    "text in y": (GOOD_X[:2], ["a", "b"], "could not convert string to float"),
    "no rows": (np.empty((0, 3)), np.empty(0), "0 sample"),
    "no columns": (np.empty((20, 0)), GOOD_Y, "0 feature"),
    "one row": (GOOD_X[:1], GOOD_Y[:1], "minimum of 2 is required"),
    "different lengths": (GOOD_X, GOOD_Y[:-1], r"inconsistent numbers of samples: \[20, 19\]"),
    "complex X": (GOOD_X + 1j, GOOD_Y, "Complex data not supported"),
    "no y": (GOOD_X, None, "requires y to be passed"),
}


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("name", BAD)
def test_bad_data_are_refused_with_a_reason(name: str, estimator: type[SGPRegressor]) -> None:
    X, y, message = BAD[name]
    with pytest.raises(ValueError, match=message):
        estimator().fit(X, y)


@pytest.fixture(scope="module")
def model() -> SGPRegressor:
    return SGPRegressor(random_state=0).fit(GOOD_X, GOOD_Y)


@pytest.mark.parametrize(
    ("X", "message"),
    [
        (np.full((2, 3), np.nan), "X contains NaN"),
        (np.zeros((2, 4)), "X has 4 features, but SGPRegressor is expecting 3 features"),
        (np.zeros(3), "Expected 2D array"),
        (np.zeros((0, 3)), "0 sample"),
    ],
)
def test_bad_inputs_of_a_prediction_are_refused(X: np.ndarray, message: str, model: SGPRegressor) -> None:
    with pytest.raises(ValueError, match=message):
        model.predict(X)


@settings(max_examples=8, deadline=None)
@given(
    X=arrays(float, (15, 2), elements=st.floats(-1e9, 1e9)),
    y=arrays(float, 15, elements=st.floats(-1e9, 1e9)),
)
def test_any_finite_table_is_fitted(X: np.ndarray, y: np.ndarray) -> None:
    assert_sound(SGPRegressor(random_state=0).fit(X, y), X, y)
