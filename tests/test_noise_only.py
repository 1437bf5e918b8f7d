"""The constant predictor's likelihood against a search over variances, for arrays and tensors."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from nearexact.gp import DEFAULT_NUMERICS
from nearexact.noise_only import (
    CHANCE_GAIN,
    LEAST_VARIANCE,
    NOISE_MARGIN,
    explains_nothing,
    gaussian_log_likelihood,
    noise_only_likelihood,
    standardised_likelihood,
)


def test_it_is_the_likelihood_of_the_best_constant_noise() -> None:
    y = np.random.default_rng(0).normal(scale=3.0, size=50)
    variances = np.geomspace(0.1, 100.0, 4001)
    likelihoods = [-25.0 * math.log(2 * math.pi * v) - float(y @ y) / (2 * v) for v in variances]
    assert noise_only_likelihood(y) == pytest.approx(max(likelihoods), abs=1e-4)
    assert noise_only_likelihood(torch.tensor(y)) == noise_only_likelihood(y)
    assert gaussian_log_likelihood(y @ y / 50, 50) == pytest.approx(noise_only_likelihood(y))


def test_on_standardised_targets_it_depends_on_their_number_only() -> None:
    y = np.random.default_rng(1).normal(size=50)
    assert noise_only_likelihood((y - y.mean()) / y.std()) == pytest.approx(standardised_likelihood(50))
    assert standardised_likelihood(50) == pytest.approx(-25.0 * (math.log(2 * math.pi) + 1.0))
    assert math.isnan(standardised_likelihood(None))


def test_constant_targets_have_the_least_variance_that_models_may_have() -> None:
    assert DEFAULT_NUMERICS.floor == LEAST_VARIANCE
    assert noise_only_likelihood(np.zeros(10)) == pytest.approx(-5.0 * math.log(2 * math.pi * LEAST_VARIANCE))
    assert noise_only_likelihood(np.zeros(10), 1e-3) == pytest.approx(-5.0 * math.log(2 * math.pi * 1e-3))


def test_a_model_must_beat_noise_by_a_margin() -> None:
    assert explains_nothing(-100.0, -100.0, 10)
    assert explains_nothing(math.nan, -100.0, 10)
    assert not explains_nothing(-100.0 + 1.01 * NOISE_MARGIN * 10, -100.0, 10)


def test_what_hyperparameters_gain_by_chance_does_not_count() -> None:
    assert explains_nothing(-100.0 + 5.0 + 0.99 * CHANCE_GAIN, -100.0, 10, parameters=5)
    assert not explains_nothing(-100.0 + 5.0 + 1.01 * CHANCE_GAIN, -100.0, 10, parameters=5)
    assert explains_nothing(-100.0 + 10.0, -100.0, 10_000, parameters=5)
