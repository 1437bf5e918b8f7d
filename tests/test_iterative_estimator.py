"""GPRegressor(method="iterative"): the exact GP's predictions and verdict, its file, its limits."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning

from nearexact import GPRegressor, load
from nearexact.certificate import Certificate, Estimate, judge_estimate
from nearexact.evidence import Evidence
from nearexact.gp import ExactObjective, gpr_objective
from tests.problems import regression

X, Y = regression(400)
X_NEW, Y_NEW = regression(60, seed=5)


@pytest.fixture(scope="module")
def iterative() -> GPRegressor:
    return GPRegressor(method="iterative", time_limit=60, random_state=0).fit(X, Y)


@pytest.fixture(scope="module")
def cholesky() -> GPRegressor:
    return GPRegressor(method="cholesky", time_limit=60, random_state=0).fit(X, Y)


def test_it_predicts_as_the_exact_gp_does(iterative: GPRegressor, cholesky: GPRegressor) -> None:
    assert iterative.method_ == "iterative"
    (mean, std), (expected, expected_std) = (m.predict(X_NEW, return_std=True) for m in (iterative, cholesky))
    scale = np.std(Y)
    assert np.abs(mean - expected).max() <= 0.02 * scale
    assert np.median(np.abs(std / expected_std - 1.0)) <= 0.01
    assert iterative.log_predictive_density(X_NEW, Y_NEW).mean() == pytest.approx(
        cholesky.log_predictive_density(X_NEW, Y_NEW).mean(), abs=0.02
    )


def test_joint_predictions_and_draws_are_there(iterative: GPRegressor) -> None:
    mean, covariance = iterative.predict(X_NEW[:5], return_cov=True)
    assert np.allclose(mean, iterative.predict(X_NEW[:5]))
    assert (np.linalg.eigvalsh(covariance) > 0.0).all()
    assert iterative.sample_y(X_NEW[:5], 3).shape == (5, 3)


def test_the_certificate_names_the_estimate_next_to_what_is_proved(
    iterative: GPRegressor, cholesky: GPRegressor
) -> None:
    certificate = iterative.certificate_
    assert certificate.verdict == "exact"
    assert certificate.estimate == iterative.elbo_
    assert certificate.standard_error is not None
    assert certificate.lower <= certificate.upper
    assert "standard error" in str(certificate)
    assert "estimated as" in repr(certificate)
    assert "KL" not in repr(certificate)  # the ELBO is that of the preconditioner
    assert "divergence" not in certificate._repr_html_()
    assert "KL" in repr(cholesky.certificate_)
    assert cholesky.certificate_.estimate is None
    assert "estimated" not in repr(cholesky.certificate_)
    assert abs(iterative.elbo_ - cholesky.elbo_) <= 0.01 * len(Y)


def test_certify_tightens_the_bounds_and_keeps_the_estimate(iterative: GPRegressor) -> None:
    before = iterative.certificate_
    certificate = iterative.certify()
    assert certificate.estimate == pytest.approx(before.estimate, rel=1e-12)
    assert certificate.verdict == "exact"
    assert certificate.lower >= before.lower - 1e-6 * len(Y)
    assert certificate.iterations == 0  # the fit has solved the system already
    with pytest.raises(ValueError, match="not the data"):
        iterative.certify(X, Y + np.linspace(0.0, 3.0, len(Y)))


def test_a_loaded_model_holds_its_rows_and_knows_others(iterative: GPRegressor, tmp_path: Path) -> None:
    iterative.save(tmp_path / "model.nx")
    loaded = load(tmp_path / "model.nx")
    certificate = loaded.certify()
    assert certificate.lower <= certificate.upper
    assert loaded.certify(X, Y).lower == certificate.lower
    with pytest.raises(ValueError, match="not the data"):
        loaded.certify(X, Y + 1e-3 * np.std(Y))
    with pytest.raises(ValueError, match="not the data"):
        loaded.certify_predictions(X_NEW[:2], X_train=X, y_train=Y + 1e-3 * np.std(Y))


def test_a_saved_model_predicts_the_same_to_the_bit(iterative: GPRegressor, tmp_path: Path) -> None:
    iterative.save(tmp_path / "model.nx")
    loaded = load(tmp_path / "model.nx")
    assert loaded.method_ == "iterative"
    assert loaded.certificate_ == iterative.certificate_
    for ours, theirs in zip(
        loaded.predict(X_NEW, return_std=True), iterative.predict(X_NEW, return_std=True), strict=True
    ):
        assert np.array_equal(ours, theirs)
    ours, theirs = (m.predict(X_NEW[:4], return_cov=True)[1] for m in (loaded, iterative))
    assert np.allclose(ours, theirs, rtol=1e-6, atol=1e-10)
    assert loaded.certify(X, Y).verdict == "exact"


def test_auto_is_iterative_where_memory_is_too_small_for_cholesky() -> None:
    model = GPRegressor(time_limit=30, memory_limit="18MB", random_state=0)
    rows, targets = regression(900)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(rows, targets)
    assert model.method_ == "iterative"
    assert model.score(X_NEW, Y_NEW) > 0.95


def test_auto_is_sparse_where_memory_is_too_small_for_either() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model = GPRegressor(time_limit=5, memory_limit="7MB", random_state=0).fit(X, Y)
    assert model.method_ == "sparse"


def test_a_time_limit_that_is_far_too_short_warns_and_leaves_a_model() -> None:
    with pytest.warns(ConvergenceWarning, match="time_limit"):
        model = GPRegressor(method="iterative", time_limit=0.01, random_state=0).fit(X, Y)
    assert np.isfinite(model.predict(X_NEW)).all()
    assert model.certificate_.verdict not in ("exact", "certified")


ALL = Evidence(rows=1000, starts=10, agreeing=5, gain_per_row=1e-4, likelihood=-500.0)


@pytest.mark.parametrize(
    ("estimate", "evidence", "mean_error", "verdict"),
    [
        (Estimate(-500.0, 1.0), ALL, 1e-4, "exact"),
        (Estimate(-500.0, 1.0), ALL, 0.1, "not reached"),  # conjugate gradients were cut off
        (Estimate(-500.0, 5.0), ALL, 1e-4, "not reached"),  # two standard errors are a certified gap
        (Estimate(-500.0, 1.0), None, 1e-4, "not reached"),
        (Estimate(-500.0, 1.0), replace(ALL, gain_per_row=None), 1e-4, "not reached"),  # still rising
        (Estimate(-500.0, 1.0), replace(ALL, agreeing=1), 1e-4, "not reached"),
        (Estimate(-515.0, 1.0), ALL, 1e-4, "not reached"),  # another start has come higher
        (Estimate(-1419.0, 1.0), replace(ALL, likelihood=-1419.0), 1e-4, "no better than noise"),
    ],
)
def test_the_verdict_is_never_rosier_than_the_evidence(
    estimate: Estimate, evidence: Evidence | None, mean_error: float, verdict: str
) -> None:
    assert judge_estimate(estimate, -1418.9, 1000, evidence, mean_error) == verdict


def test_a_certificate_without_an_estimate_is_as_before() -> None:
    certificate = Certificate(lower=-2.0, upper=-1.0, elbo=-2.0, n=10, verdict="not reached")
    assert certificate.known_estimate is None
    assert certificate.estimated == ""


@pytest.mark.parametrize("rows", [2, 3, 40])
def test_a_few_rows_are_enough(rows: int) -> None:
    model = GPRegressor(method="iterative", time_limit=10, random_state=0).fit(X[:rows], Y[:rows])
    assert model.method_ == "iterative"
    mean, std = model.predict(X_NEW, return_std=True)
    assert np.isfinite(mean).all()
    assert (std > 0.0).all()


def test_constant_targets_and_repeated_rows_are_no_trouble() -> None:
    rows = np.repeat(X[:30], 3, axis=0)
    for targets in (np.full(90, 7.0), np.repeat(Y[:30], 3)):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            model = GPRegressor(method="iterative", time_limit=10, random_state=0).fit(rows, targets)
        assert np.allclose(model.predict(rows), targets, atol=0.2 * max(np.std(targets), 0.1))


@pytest.mark.parametrize("at", [1, 40])  # in the first evaluation of the search, and later
def test_ctrl_c_leaves_a_fitted_estimator(at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    original = ExactObjective.value_and_gradient

    def interrupted(self: ExactObjective, *arguments: object) -> object:
        calls.append(1)
        if len(calls) == at:
            raise KeyboardInterrupt
        return original(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(ExactObjective, "value_and_gradient", interrupted)
    model = GPRegressor(method="iterative", random_state=0)
    with pytest.raises(KeyboardInterrupt):
        model.fit(X, Y)
    assert model.history_[-1].ended == "interrupted"
    assert np.isfinite(model.predict(X_NEW)).all()


def test_certified_predictions_hold_the_exact_gp(iterative: GPRegressor) -> None:
    posterior = iterative._posterior
    exact = gpr_objective(posterior.kernel, posterior.noise_variance, posterior.X, posterior.y)  # type: ignore[union-attr]
    mean, variance = exact.factorise(posterior.kernel, posterior.noise_variance).predict(
        iterative._scaling_X.apply(X_NEW[:20])
    )
    certified = iterative.certify_predictions(X_NEW[:20])
    scale = float(iterative._scaling_y.scale)
    room = 1e-9 * scale
    assert (np.abs(certified.mean - iterative._scaling_y.undo(mean.numpy())) <= certified.mean_error + room).all()
    std = np.sqrt(variance.numpy()) * scale
    assert (certified.std_lower <= std + room).all()
    assert (std <= certified.std_upper + room).all()


def test_auto_takes_a_cholesky_factor_at_what_conjugate_gradients_have_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where an evaluation with all rows is too slow but one factorisation is not, which depends on the machine."""
    monkeypatch.setattr("nearexact.gp.affordable.exact_fits", lambda *_: False)
    model = GPRegressor(time_limit=60, random_state=0).fit(X, Y)
    assert model.history_[-1].m < len(X)  # the preconditioner's
    assert (model.method_, model.certificate_.verdict, model.certificate_.estimate) == ("cholesky", "exact", None)
    problem = model._problem
    assert problem is not None
    exact = gpr_objective(model.kernel_, model.noise_variance_, problem.X, problem.y)
    assert model.certificate_.lower == model.certificate_.upper == pytest.approx(-exact(exact.theta0)[0], abs=1e-6)
    assert model.elbo_ == model.certificate_.lower
