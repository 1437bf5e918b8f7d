"""Baselines against scikit-learn, and where it would fail."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import norm
from sklearn.linear_model import LinearRegression

from nearexact.baselines import LEAST_VARIANCE, fit_constant, fit_linear
from tests.problems import regression


def test_the_linear_baseline_is_least_squares() -> None:
    X, y = regression(80)
    baseline, other = fit_linear(X, y), LinearRegression().fit(X, y)
    mean, variance = baseline.predict(X[:5])
    np.testing.assert_allclose(mean, other.predict(X[:5]))
    errors = y - other.predict(X)
    np.testing.assert_allclose(variance, np.full(5, np.mean(errors**2)))
    assert baseline.log_likelihood == pytest.approx(norm.logpdf(errors, scale=np.sqrt(variance[0])).sum())


def test_the_constant_baseline_is_mean_and_variance() -> None:
    X, y = regression(80)
    mean, variance = fit_constant(y).predict(X[:5])
    np.testing.assert_allclose(mean, y.mean())
    np.testing.assert_allclose(variance, y.var())
    assert fit_constant(y).log_likelihood == pytest.approx(norm.logpdf(y, y.mean(), y.std()).sum())


def test_collinear_columns_do_not_blow_up() -> None:
    """Two columns that differ very little, and in few rows: their difference must not get a huge weight."""
    X, y = regression(80)
    twins = np.column_stack([X, X[:, 0] + 1e-7 * (np.arange(80) < 2)])
    weights = fit_linear(twins, y).weights
    assert weights is not None
    assert np.abs(weights).max() < 10.0


def test_targets_without_noise_keep_a_little_of_it() -> None:
    X, _ = regression(30)
    assert fit_constant(np.zeros(30)).variance == LEAST_VARIANCE
    assert fit_linear(X, X.sum(1)).variance == LEAST_VARIANCE
