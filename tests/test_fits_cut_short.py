"""Estimators whose fit a limit or Ctrl-C ends: what they say, and what is left."""

from __future__ import annotations

import contextlib
import itertools
import signal
from collections.abc import Callable

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning

from nearexact import GPRegressor, SGPRegressor
from nearexact.gp import ExactObjective, ExactTraining, SparseObjective, Training
from nearexact.gp.inducing import select
from nearexact.gp.search import Search
from nearexact.gp.search_evidence import evidence_for
from nearexact.kernels import SquaredExponential

ESTIMATORS = [SGPRegressor, GPRegressor]


def rough(n: int = 200) -> tuple[np.ndarray, np.ndarray]:
    """A function that needs more inducing points than these tests allow."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-3.0, 3.0, size=(n, 2))
    return X, np.sin(8.0 * X[:, 0]) * np.cos(7.0 * X[:, 1]) + 0.1 * rng.normal(size=n)


@pytest.mark.parametrize(
    ("limits", "named"),
    [
        ({"max_inducing": 20}, r"max_inducing=20 ended the fit at \d+ inducing points"),
        ({"memory_limit": "2MB"}, "memory_limit='2MB' ended the fit"),
        ({"time_limit": 1e-3}, "time_limit=0.001 ended the fit"),
    ],
)
def test_a_fit_that_is_cut_short_says_what_is_missing(limits: dict[str, object], named: str) -> None:
    X, y = rough()
    with pytest.warns(ConvergenceWarning, match=named) as caught:
        model = SGPRegressor(random_state=0, **limits).fit(X, y)  # type: ignore[arg-type]
    assert "A gap of 0.01 would be certified" in str(caught[0].message)
    assert caught[0].filename == __file__
    assert np.isfinite(model.predict(X)).all()
    assert model.certificate_.verdict in ("not reached", "no better than noise")


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_a_model_that_has_hardly_begun_is_not_called_noise() -> None:
    """From a start with little noise the bound of a few points is far below that of the constant predictor."""
    X, y = rough(500)
    start = SquaredExponential([0.3, 0.3]), 1e-3
    model = SGPRegressor(random_state=0, time_limit=1e-3).fit(X, y, start=start)
    assert model.certificate_.lower < -0.5 * len(y) * (np.log(2.0 * np.pi) + 1.0)
    assert model.certificate_.verdict == "not reached"


def test_exact_gp_says_when_time_or_memory_is_short() -> None:
    X, y = rough()
    with pytest.warns(ConvergenceWarning, match="time_limit=1e-06 ended the fit before the optimiser had converged"):
        model = GPRegressor(time_limit=1e-6).fit(X, y)
    assert np.isfinite(model.predict(X)).all()
    with pytest.raises(
        ValueError, match=r"200 rows needs 0\.0\d+ GB, but the memory limit is 0\.001 GB: .* use a sparse GP"
    ):
        GPRegressor(method="cholesky", memory_limit="1MB").fit(X, y)


@pytest.mark.parametrize("at", [1, 12])  # in the first evaluation, and later
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_ctrl_c_leaves_a_fitted_estimator(
    estimator: type[SGPRegressor], at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    objective = SparseObjective if estimator is SGPRegressor else ExactObjective
    evaluate, calls = objective.__call__, itertools.count(1)

    def interrupted(self: SparseObjective, theta: np.ndarray) -> tuple[float, np.ndarray]:
        if next(calls) == at:
            signal.raise_signal(signal.SIGINT)
        return evaluate(self, theta)

    monkeypatch.setattr(objective, "__call__", interrupted)
    X, y = rough()
    model = estimator(random_state=0, time_limit=None)
    with pytest.raises(KeyboardInterrupt):
        model.fit(X, y)
    assert model.history_[-1].ended == "interrupted"
    mean, std = model.predict(X, return_std=True)
    assert np.isfinite(mean).all()
    assert (std > 0.0).all()
    assert model.elbo_ == max(stage.elbo for stage in model.history_)
    assert model.elbo_ <= model.upper_bound_


@pytest.mark.parametrize(
    ("estimator", "place"),
    [(SGPRegressor, "selection"), *itertools.product(ESTIMATORS, ["bounds", "posterior"])],
)
def test_ctrl_c_at_awkward_moments(estimator: type[SGPRegressor], place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = itertools.count(1)

    def once(function: Callable[..., object]) -> Callable[..., object]:
        def interrupted(*args: object, **options: object) -> object:
            if next(calls) == 1:
                signal.raise_signal(signal.SIGINT)
            return function(*args, **options)

        return interrupted

    if place == "selection":
        monkeypatch.setattr("nearexact.gp.rows.select", once(select))
    else:  # after training, while the model is put together
        training = Training if estimator is SGPRegressor else ExactTraining
        monkeypatch.setattr(training, place, once(getattr(training, place)))
    X, y = rough(60)
    model = estimator(random_state=0)
    with pytest.raises(KeyboardInterrupt):
        model.fit(X, y)
    assert np.isfinite(model.predict(X)).all()
    if place == "selection":
        assert model.history_[-1].ended == "interrupted"


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_a_certificate_never_stays_with_the_model_of_another_fit(
    estimator: type[SGPRegressor], monkeypatch: pytest.MonkeyPatch
) -> None:
    """However often Ctrl-C is pressed while a model is put together."""
    X, y = rough(60)
    model = estimator(random_state=0).fit(X, y)
    before, posterior = model.certificate_, model._posterior

    def interrupted(_: object) -> float:
        signal.raise_signal(signal.SIGINT)
        return 0.0

    for place in ("nearexact.certificate.Certificate.of", "nearexact.gp.training.evidence_for"):
        with monkeypatch.context() as patch:
            patch.setattr(place, lambda *_, **__: interrupted(None))
            with contextlib.suppress(KeyboardInterrupt):
                model.fit(X, -y)
        assert model._posterior is posterior or getattr(model, "certificate_", None) is not before


def test_whoever_interrupts_does_not_wait_for_evidence(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = []

    def looked(search: Search, theta: np.ndarray, limit: float) -> object:
        seconds.append(limit)
        return evidence_for(search, theta, limit)

    monkeypatch.setattr("nearexact.gp.training.evidence_for", looked)
    evaluate, calls = SparseObjective.__call__, itertools.count(1)

    def interrupted(self: SparseObjective, theta: np.ndarray) -> tuple[float, np.ndarray]:
        if next(calls) == 12:
            signal.raise_signal(signal.SIGINT)
        return evaluate(self, theta)

    monkeypatch.setattr(SparseObjective, "__call__", interrupted)
    with pytest.raises(KeyboardInterrupt):
        SGPRegressor(random_state=0, time_limit=None).fit(*rough())
    assert seconds[-1] == 0.0
