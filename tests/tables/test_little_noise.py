"""Functions without noise: kernels may have less of it than usual where rows that are left out agree."""

from __future__ import annotations

import warnings

import numpy as np
import pandas as pd
import pytest
import torch

from nearexact.bench import metrics
from nearexact.gp import gpr_objective
from nearexact.gp.leave_one_out import left_out_densities
from nearexact.gp.safety import DEFAULT_NUMERICS
from nearexact.kernels import Matern32
from nearexact.known_noise import KnownNoise
from nearexact.tables import Fitted, fit
from nearexact.tables.kernel_choice import LITTLE_NOISE, Choice, choose
from nearexact.tables.kernel_names import SPLIT
from nearexact.tables.little_noise import LITTLE, LessNoise

FLOOR = DEFAULT_NUMERICS.noise_floor


def smooth(n: int = 160, noise: float = 0.0, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1.0, 1.0, size=(n, 2))
    return X, np.sin(2.0 * X[:, 0]) + X[:, 1] ** 2 + noise * rng.normal(size=n)


def fitted(y_noise: float = 0.0, **options: object) -> Fitted:
    X, y = smooth(noise=y_noise)
    frame = pd.DataFrame(X, columns=["a", "b"]).assign(y=y)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return fit(frame, "y", **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("targets", [1, 2])
def test_densities_are_those_of_models_that_have_not_seen_the_row(targets: int) -> None:
    X, y = smooth(30, noise=0.1)
    y = y if targets == 1 else np.stack([y, X[:, 0]], axis=1)
    kernel, s = Matern32([0.5, 1.0], 1.3), 0.02
    densities = left_out_densities(gpr_objective(kernel, s, X, y).factorise(kernel, s))
    for row in (0, 7, 29):
        others = np.arange(30) != row
        mean, variance = gpr_objective(kernel, s, X[others], y[others]).factorise(kernel, s).predict(X[row : row + 1])
        errors = np.atleast_1d(y[row]) - np.atleast_1d(mean[0].numpy())
        total = float(variance[0]) + s
        expected = -0.5 * (errors**2 / total + np.log(2.0 * np.pi * total)).sum()
        assert float(densities[row]) == pytest.approx(expected, rel=1e-6)


def test_a_function_without_noise_has_less_than_usual_and_is_predicted_better() -> None:
    choice = choose(*smooth())
    assert choice.less_noise is not None
    assert choice.optimum is not None
    assert choice.optimum.noise_variance < FLOOR
    usual = choice.less_noise.instead
    assert usual.less_noise is None
    assert usual.optimum is not None
    assert usual.optimum.noise_variance == pytest.approx(FLOOR, rel=0.01)
    found = fitted()
    assert found.model.noise_variance_ < FLOOR
    assert found.model.noise_bounds == LITTLE.noise_bounds
    X, y = smooth(seed=1)
    predicted = found.predict(pd.DataFrame(X, columns=["a", "b"]))
    nlpd = metrics.nlpd(y, predicted["mean"].to_numpy(), predicted["std"].to_numpy() ** 2)
    at_floor = 0.5 * np.log(2.0 * np.pi * FLOOR * y.var())  # with errors of 0: nothing at the floor is better
    assert nlpd < at_floor - 0.5


def test_a_function_with_noise_is_not_asked_and_nor_are_known_variances() -> None:
    assert choose(*smooth(noise=0.05)).less_noise is None
    X, y = smooth()
    assert choose(X, y, noise=KnownNoise.of(np.full(160, 1e-8), None, y)).less_noise is None


def test_kernels_with_a_step_where_the_data_have_one_are_not_asked() -> None:
    X, _ = smooth()
    trials = choose(X, (X[:, 0] > 0.1) + 0.0).trials
    asked = {trial.kernel for trial in trials if trial.note == LITTLE_NOISE}
    assert "arccosine" in asked
    assert not {name for name in asked if SPLIT in name}


def test_a_model_that_does_not_bear_it_out_is_trained_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LessNoise, "is_borne_out_by", lambda self, posterior: False)
    events: list[str] = []
    found = fitted(on_event=events.append)
    assert found.model.noise_variance_ >= FLOOR
    assert found.model.noise_bounds is None
    assert any("trained again" in event for event in events)


def test_what_is_borne_out_is_an_exact_model_that_is_as_good() -> None:
    kernel, (X, y) = Matern32([0.5, 1.0], 1.3), smooth(40)
    model = gpr_objective(kernel, 1e-4, X, y).factorise(kernel, 1e-4)
    density = float(left_out_densities(model).mean())
    usual = Choice("matern32", kernel, ())
    assert LessNoise(density, usual).is_borne_out_by(model)
    assert not LessNoise(density + 0.01, usual).is_borne_out_by(model)
    assert not LessNoise(-np.inf, usual).is_borne_out_by(torch.zeros(1))
