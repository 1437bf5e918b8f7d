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

ESTIMATORS = [SGPRegressor, GPRegressor]
N = 80
Data = tuple[np.ndarray, np.ndarray]


def smooth(n: int = N, d: int = 3) -> Data:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, d))
    return X, np.sin(X[:, 0]) + 0.1 * rng.normal(size=n)


def constant_columns() -> Data:
    X, y = smooth()
    return np.column_stack([X, np.full(N, 3.7), np.zeros(N), np.full(N, 1e12)]), y


def nearly_constant_column() -> Data:
    X, y = smooth()
    return np.column_stack([X, 1e12 + 1e-4 * np.arange(N)]), y  # differences below the precision of the values


def constant_target() -> Data:
    return smooth()[0], np.full(N, -42.5)


def duplicated_rows() -> Data:
    X, y = smooth()
    return np.repeat(X, 3, axis=0), np.repeat(y, 3)


def duplicated_inputs() -> Data:
    X, _ = smooth()
    return np.repeat(X[:8], 10, axis=0), np.random.default_rng(1).normal(size=80)


def one_input_repeated() -> Data:
    return np.ones((N, 2)), np.random.default_rng(1).normal(size=N)


def collinear_columns() -> Data:
    X, y = smooth()
    return np.column_stack([X, X[:, 0], -2.0 * X[:, 0], X.sum(1)]), y


def more_columns_than_rows() -> Data:
    return smooth(n=20, d=60)


def one_column() -> Data:
    return smooth(d=1)


def tiny_target() -> Data:
    X, y = smooth()
    return X, 1e-8 * y


def huge_target() -> Data:
    X, y = smooth()
    return X, 1e8 * y + 1e10


def huge_columns() -> Data:
    X, y = smooth()
    return X * [1e12, 1e-12, 1.0] + [1e12, 0.0, 0.0], y


def enormous_numbers() -> Data:
    X, y = smooth()
    return X * 1e200, y * 1e200


def minute_numbers() -> Data:
    X, y = smooth()
    return X * 1e-200, y * 1e-200


def input_outlier() -> Data:
    X, y = smooth()
    X[7, 1] = 1e6
    return X, y


def target_outlier() -> Data:
    X, y = smooth()
    y[7] = -1e6
    return X, y


def mostly_zeros() -> Data:
    X, y = smooth()
    hidden = np.random.default_rng(2).uniform(size=X.shape) < 0.9
    return np.where(hidden, 0.0, X), np.where(hidden[:, 0], 0.0, y)


def integer_grid() -> Data:
    X = np.stack(np.meshgrid(np.arange(9), np.arange(9)), -1).reshape(-1, 2)
    return X, X[:, 0] * X[:, 1]


def pure_noise() -> Data:
    return smooth()[0], np.random.default_rng(3).normal(size=N)


def noiseless() -> Data:
    X, _ = smooth()
    return X, np.cos(X[:, 0]) + X[:, 1]


def two_rows() -> Data:
    return np.array([[0.0], [1.0]]), np.array([1.0, 2.0])


def binary_target() -> Data:
    X, y = smooth()
    return X, y > 0.0


HARD: list[Callable[[], Data]] = [
    constant_columns, nearly_constant_column, constant_target, duplicated_rows, duplicated_inputs, one_input_repeated,
    collinear_columns, more_columns_than_rows, one_column, tiny_target, huge_target, huge_columns, enormous_numbers,
    minute_numbers, input_outlier, target_outlier, mostly_zeros, integer_grid, pure_noise, noiseless, two_rows,
    binary_target,
]  # fmt: skip


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


@pytest.mark.parametrize("kernel", [Matern12(), ArcCosine(1), SquaredExponential() + Linear()], ids=str)
@pytest.mark.parametrize("make", HARD, ids=lambda make: make.__name__)
def test_hard_data_are_fitted_with_other_kernels(make: Callable[[], Data], kernel: SquaredExponential) -> None:
    X, y = make()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model = SGPRegressor(kernel, random_state=0, max_inducing=20).fit(X, y)
    mean, std = model.predict(X, return_std=True)
    assert np.isfinite(mean).all()
    assert np.isfinite(std).all()


def test_what_each_kind_should_end_as() -> None:
    verdicts = {make.__name__: SGPRegressor(random_state=0).fit(*make()).certificate_.verdict for make in HARD}
    assert verdicts["pure_noise"] == verdicts["constant_target"] == "no better than noise"
    assert verdicts["one_input_repeated"] == "no better than noise"
    for name in ("noiseless", "duplicated_rows", "integer_grid", "tiny_target", "huge_target", "collinear_columns"):
        assert verdicts[name] == "certified", name


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
    "y is a matrix": (
        GOOD_X,
        np.column_stack([GOOD_Y, GOOD_Y]),
        r"y should be a 1d array, got .* \(20, 2\)",
    ),
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


@pytest.mark.parametrize(
    ("X", "message"),
    [
        (np.full((2, 3), np.nan), "X contains NaN"),
        (np.zeros((2, 4)), "X has 4 features, but SGPRegressor is expecting 3 features"),
        (np.zeros(3), "Expected 2D array"),
        (np.zeros((0, 3)), "0 sample"),
    ],
)
def test_bad_inputs_of_a_prediction_are_refused(X: np.ndarray, message: str) -> None:
    model = SGPRegressor(random_state=0).fit(GOOD_X, GOOD_Y)
    with pytest.raises(ValueError, match=message):
        model.predict(X)


@settings(max_examples=25, deadline=None)
@given(
    X=arrays(float, (15, 2), elements=st.floats(-1e9, 1e9)),
    y=arrays(float, 15, elements=st.floats(-1e9, 1e9)),
)
def test_any_finite_table_is_fitted(X: np.ndarray, y: np.ndarray) -> None:
    assert_sound(SGPRegressor(random_state=0).fit(X, y), X, y)
