"""The scikit-learn interface: conventions, units, inputs of every kind, mistakes."""

from __future__ import annotations

import pickle
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.stats import norm
from sklearn.base import clone
from sklearn.datasets import load_diabetes
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel
from sklearn.linear_model import LinearRegression
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import QuantileTransformer
from sklearn.utils.estimator_checks import parametrize_with_checks

from nearexact import GPRegressor, SGPRegressor, load
from nearexact.gp import ExactObjective, sgpr_objective
from nearexact.kernels import Matern32, SquaredExponential
from tests.problems import many_inputs, regression
from tests.tensors import Allocations

ESTIMATORS = [SGPRegressor, GPRegressor]


OTHER_WEIGHTS = {
    "check_sample_weight_equivalence_on_dense_data": "a row of weight 2 is one observation with half the noise, not two"
}


@parametrize_with_checks([SGPRegressor(), GPRegressor()], expected_failed_checks=lambda _: OTHER_WEIGHTS)
def test_scikit_learn_conventions(estimator: object, check: object) -> None:
    check(estimator)  # type: ignore[operator]


@pytest.fixture(scope="module")
def data() -> tuple[np.ndarray, np.ndarray]:
    """Inputs and targets far from mean 0 and variance 1."""
    X, y = regression(120)
    return X * [10.0, 0.01, 1.0] + [5.0, 0.0, -300.0], 40.0 * y + 1000.0


@pytest.fixture(scope="module", params=ESTIMATORS, ids=lambda cls: cls.__name__)
def fitted(request: pytest.FixtureRequest, data: tuple[np.ndarray, np.ndarray]) -> SGPRegressor | GPRegressor:
    return request.param(random_state=0).fit(*data)


def test_fitted_attributes_and_certificate(
    fitted: SGPRegressor | GPRegressor, data: tuple[np.ndarray, np.ndarray]
) -> None:
    rows = {tuple(row) for row in np.round(data[0], 9)}
    assert all(tuple(point) in rows for point in np.round(fitted.inducing_points_, 9))  # in the user's units
    assert fitted.n_features_in_ == 3
    assert fitted.elbo_ <= fitted.upper_bound_ + 1e-9
    certificate = fitted.certificate_
    assert certificate.upper == fitted.upper_bound_
    assert certificate.lower >= certificate.elbo - 1e-9
    assert certificate.elbo == pytest.approx(fitted.elbo_, abs=1e-9)
    assert certificate.gap_per_point == (certificate.upper - certificate.lower) / 120
    assert certificate.kl_bound == certificate.upper - certificate.elbo
    assert certificate.trace_gap + certificate.residual_gap == pytest.approx(certificate.upper - certificate.lower)
    assert certificate.iterations == 0
    assert certificate.verdict == ("certified" if isinstance(fitted, SGPRegressor) else "exact")
    assert str(certificate).startswith(f"{certificate.verdict}: ")
    assert certificate.evidence is not None
    assert certificate.evidence.rows == 120
    assert certificate.evidence.agreeing >= 2
    assert fitted.history_[-1].ended == ("certified" if isinstance(fitted, SGPRegressor) else "optimum found")
    again = fitted.certify()
    assert again.lower >= certificate.lower - 1e-6
    assert again.upper <= certificate.upper + 1e-6
    assert again.verdict == certificate.verdict


def exact_likelihood(model: SGPRegressor, X: np.ndarray, y: np.ndarray) -> float:
    """At the model's hyperparameters, on the standardised scale."""
    inputs, targets = (X - X.mean(0)) / X.std(0), (y - y.mean()) / y.std()
    objective = ExactObjective(model.kernel_, model.noise_variance_, inputs, targets)
    return objective.factorise(model.kernel_, model.noise_variance_).lml


@pytest.mark.parametrize("bound", ["elbo", "tight"])
def test_certify_brackets_the_exact_likelihood_and_is_kept(bound: str, tmp_path: Path) -> None:
    X, y = regression(300, noise=0.3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model = SGPRegressor(Matern32(), bound=bound, random_state=0, max_inducing=50).fit(X, y)
    cheap, lml = model.certificate_, exact_likelihood(model, X, y)
    standard = sgpr_objective(
        model.kernel_, model.noise_variance_, (X - X.mean(0)) / X.std(0), (y - y.mean()) / y.std(),
        (model.inducing_points_ - X.mean(0)) / X.std(0),
    ).factorise(model.kernel_, model.noise_variance_)  # fmt: skip
    assert cheap.elbo == pytest.approx(standard.elbo, abs=1e-5)  # the standard one, for either bound
    assert model.elbo_ == pytest.approx(cheap.lower if bound == "tight" else cheap.elbo, abs=1e-5)
    assert cheap.elbo <= cheap.lower <= lml <= cheap.upper
    assert cheap.verdict == "not reached"
    assert cheap.dominated_by == "residual"  # of the quadratic form's bounds, as ever without conjugate gradients
    assert (cheap.iterations, cheap.seconds) == (0, 0.0)
    assert "came with the fit" in repr(cheap)
    again = model.certify(cg_iterations=0)
    assert (again.lower, again.upper) == pytest.approx((cheap.lower, cheap.upper), abs=1e-6)
    model.certificate_ = cheap
    full = model.certify()
    assert cheap.lower <= full.lower <= lml <= full.upper < cheap.upper
    assert full.kl_bound == full.upper - cheap.elbo or full.elbo == pytest.approx(cheap.elbo, abs=1e-6)
    assert full.gap_per_point < 0.2 * cheap.gap_per_point
    assert full.iterations > 0
    assert full.seconds > 0.0
    assert full.dominated_by == "trace"
    assert f"{full.iterations} CG iterations" in repr(full)
    assert model.certificate_ is full
    model.save(tmp_path / "model.nx")
    loaded = load(tmp_path / "model.nx")
    assert loaded.certificate_ == full
    assert loaded.certify(X, y).upper == pytest.approx(full.upper, abs=1e-6)
    looser = model.certify(cg_iterations=0)
    assert looser.upper > full.upper
    assert model.certificate_ is full  # what was proved stays proved


def test_certify_within_a_time_limit(data: tuple[np.ndarray, np.ndarray]) -> None:
    model = SGPRegressor(random_state=0).fit(*data)
    short = model.certify(time_limit=1e-9)
    assert short.iterations == 0
    assert short.lower == pytest.approx(model.certificate_.lower, abs=1e-6)


def test_certify_shows_its_progress_on_request(
    data: tuple[np.ndarray, np.ndarray], capfd: pytest.CaptureFixture[str]
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model = SGPRegressor(random_state=0, max_inducing=10).fit(*data)
    model.certify()
    assert capfd.readouterr() == ("", "")
    model.set_params(progress=True).certify()
    shown = capfd.readouterr().out
    assert ", gap per point 0." in shown
    assert "log determinant 0%" in shown


def test_fits_stop_as_soon_as_the_tighter_gap_allows() -> None:
    X, y = regression(400, noise=1.0)
    *earlier, last = SGPRegressor(random_state=0).fit(X, y).history_
    assert last.ended == "certified"
    assert last.elbo < last.lower_bound
    assert last.gap_per_point == (last.upper_bound - last.lower_bound) / 400 < 0.01
    assert all(stage.gap_per_point >= 0.01 for stage in earlier)


def test_the_two_estimators_agree(data: tuple[np.ndarray, np.ndarray]) -> None:
    """A certified sparse model predicts as the exact one does."""
    X, y = data
    sparse, exact = SGPRegressor(random_state=0).fit(X, y), GPRegressor().fit(X, y)
    assert sparse.elbo_ == pytest.approx(exact.elbo_, abs=0.01 * len(y))
    (mean, std), (exact_mean, exact_std) = (model.predict(X, return_std=True) for model in (sparse, exact))
    assert np.abs(mean - exact_mean).max() < 0.1 * exact_std.min()
    np.testing.assert_allclose(std, exact_std, rtol=0.05)


def test_exact_predictions_are_scikit_learns_at_the_same_hyperparameters(data: tuple[np.ndarray, np.ndarray]) -> None:
    X, y = data
    model = GPRegressor().fit(X, y)
    kernel = ConstantKernel(model.kernel_.variance) * RBF(model.kernel_.lengthscales)
    peer = GaussianProcessRegressor(kernel, alpha=model.noise_variance_, optimizer=None)
    peer.fit((X - X.mean(0)) / X.std(0), (y - y.mean()) / y.std())
    assert model.elbo_ == pytest.approx(peer.log_marginal_likelihood_value_, rel=1e-8)
    new = data[0][:40] + 0.003
    mean, covariance = peer.predict((new - X.mean(0)) / X.std(0), return_cov=True)
    ours, ours_covariance = model.predict(new, return_cov=True, noise=False)
    np.testing.assert_allclose(ours, mean * y.std() + y.mean(), rtol=1e-6)
    np.testing.assert_allclose(ours_covariance, covariance * y.var(), atol=1e-6 * y.var())


def test_std_covariance_density_and_samples_tell_the_same(
    fitted: SGPRegressor | GPRegressor, data: tuple[np.ndarray, np.ndarray]
) -> None:
    X, y = data[0][:6] + 0.01, data[1][:6]
    mean, std = fitted.predict(X, return_std=True)
    joint_mean, covariance = fitted.predict(X, return_cov=True)
    _, latent_std = fitted.predict(X, return_std=True, noise=False)
    np.testing.assert_allclose(joint_mean, mean, rtol=1e-9)
    np.testing.assert_allclose(np.diag(covariance), std**2, rtol=1e-7)
    np.testing.assert_allclose(std**2 - latent_std**2, fitted.noise_variance_ * data[1].var(), rtol=1e-6)
    np.testing.assert_allclose(fitted.predict(X), mean)
    np.testing.assert_allclose(fitted.log_predictive_density(X, y), norm(mean, std).logpdf(y), rtol=1e-9)
    draws = fitted.sample_y(X, n_samples=20_000, random_state=1)
    assert draws.shape == (6, 20_000)
    np.testing.assert_allclose(draws.mean(1), mean, atol=5 * std.max() / np.sqrt(20_000))
    np.testing.assert_allclose(np.cov(draws), covariance, atol=0.05 * covariance.max())
    np.testing.assert_array_equal(fitted.sample_y(X, 3, random_state=1), fitted.sample_y(X, 3, random_state=1))
    assert (fitted.sample_y(X, 1, random_state=1) != fitted.sample_y(X, 1, random_state=2)).all()


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_predictions_move_with_the_units(estimator: type[SGPRegressor], data: tuple[np.ndarray, np.ndarray]) -> None:
    X, y = data
    mean, std = estimator(random_state=0).fit(X, y).predict(X, return_std=True)
    factors, shifts = np.array([8.0, 0.25, 2.0]), np.array([64.0, 0.0, -512.0])  # no rounding
    moved = estimator(random_state=0).fit(X * factors, 4.0 * y)
    moved_mean, moved_std = moved.predict(X * factors, return_std=True)
    np.testing.assert_allclose(moved_mean, 4.0 * mean, rtol=1e-7)
    np.testing.assert_allclose(moved_std, 4.0 * std, rtol=1e-5)
    shifted = estimator(random_state=0).fit(X + shifts, y - 1000.0)
    np.testing.assert_allclose(shifted.predict(X + shifts), mean - 1000.0, rtol=1e-3, atol=0.1)


# ---- inputs ----------------------------------------------------------------------------------------------------------


def test_inputs_of_every_kind_give_the_same_model() -> None:
    rng = np.random.default_rng(0)
    X = rng.integers(-5, 6, size=(30, 2))
    y = X[:, 0] ** 2 + X[:, 1]
    expected = SGPRegressor(random_state=0).fit(X.astype(float), y.astype(float)).predict(X)
    kinds = {
        "integers": (X, y),
        "lists": (X.tolist(), y.tolist()),
        "float32": (X.astype(np.float32), y.astype(np.float32)),
        "tensors": (torch.tensor(X), torch.tensor(y, dtype=torch.float32)),
        "fortran": (np.asfortranarray(X.astype(float)), y),
        "strided": (np.repeat(X, 2, axis=0)[::2], np.repeat(y, 2)[::2]),
    }
    for name, (inputs, targets) in kinds.items():
        model = SGPRegressor(random_state=0).fit(inputs, targets)
        np.testing.assert_array_equal(model.predict(inputs), expected, err_msg=name)
        assert not hasattr(model, "feature_names_in_")
    frame = pd.DataFrame(X, columns=["height", "width"])
    model = SGPRegressor(random_state=0).fit(frame, pd.Series(y))
    np.testing.assert_array_equal(model.predict(frame), expected)
    assert model.feature_names_in_.tolist() == ["height", "width"]
    with pytest.raises(ValueError, match="feature names should match"):
        model.predict(frame.rename(columns={"width": "depth"}))
    with pytest.raises(ValueError, match="Feature names must be in the same order"):
        model.predict(frame[["width", "height"]])


def test_works_inside_scikit_learn(data: tuple[np.ndarray, np.ndarray]) -> None:
    X, y = data
    model = SGPRegressor(max_inducing=20, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        scores = cross_val_score(model, X, y, cv=2)
        assert scores.min() > cross_val_score(LinearRegression(), X, y, cv=2).max() + 0.1
        pipeline = make_pipeline(QuantileTransformer(n_quantiles=20), model).fit(X, y)
        assert pipeline.score(X, y) > 0.9
        grid = {"kernel": [None, Matern32()], "max_inducing": [3, 20]}
        search = GridSearchCV(model, grid, cv=2).fit(X, y)
    assert search.best_params_["max_inducing"] == 20
    copy = clone(search.best_estimator_)
    assert copy.get_params()["kernel"] == search.best_params_["kernel"]
    with pytest.raises(NotFittedError):
        copy.predict(X)


def test_a_pickled_model_predicts_the_same(fitted: SGPRegressor, data: tuple[np.ndarray, np.ndarray]) -> None:
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(fitted)).predict(data[0]), fitted.predict(data[0]))


def test_fitting_changes_neither_data_nor_parameters(data: tuple[np.ndarray, np.ndarray]) -> None:
    X, y = (array.copy() for array in data)
    kernel = SquaredExponential(2.0)
    model = SGPRegressor(kernel, random_state=0, max_inducing=10, time_limit="5m")
    with pytest.warns(ConvergenceWarning):
        model.fit(X, y)
    np.testing.assert_array_equal(X, data[0])
    np.testing.assert_array_equal(y, data[1])
    assert model.kernel is kernel
    assert model.time_limit == "5m"


def test_prediction_for_many_rows_needs_no_array_of_rows_by_points() -> None:
    X, y = regression(150)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model = SGPRegressor(random_state=0, max_inducing=100, procedure="paper").fit(X, y)
    many = np.random.default_rng(0).normal(size=(300_000, 3))
    with Allocations() as allocations:
        _, std = model.predict(many, return_std=True)
    assert std.shape == (300_000,)
    assert allocations.peak_bytes < 8 * 300_000 * len(model.inducing_points_) / 10
    np.testing.assert_allclose(model.predict(many[-5:], return_std=True)[1], std[-5:], rtol=1e-9)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_a_fit_that_fails_changes_nothing(estimator: type[SGPRegressor], data: tuple[np.ndarray, np.ndarray]) -> None:
    X, y = data
    model = estimator(random_state=0).fit(pd.DataFrame(X, columns=list("abc")), y)
    expected = model.predict(pd.DataFrame(X, columns=list("abc")))
    with pytest.raises(ValueError, match="memory limit is 1e-06 MB"):
        model.set_params(memory_limit=1).fit(X[:, :2], y)
    assert model.n_features_in_ == 3
    np.testing.assert_array_equal(model.predict(pd.DataFrame(X, columns=list("abc"))), expected)


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"time_limit": -1}, "time limit must be a positive number of seconds"),
        ({"time_limit": "soon"}, "text such as \"5m\", or None, got 'soon'"),
        ({"memory_limit": "-2GB"}, "memory size must be a positive number of bytes"),
        ({"memory_limit": 0}, "got 0"),
        ({"device": "abacus"}, "device must be \"auto\" or a device that torch has here, got 'abacus'"),
        ({"device": "cuda:7"}, "device must be"),
        ({"kernel": "rbf"}, "there is no kernel 'rbf'; there are se, matern12"),
        ({"kernel": 3}, "kernel must be a kernel such as Matern52"),
        ({"kernel": SquaredExponential([1.0, 2.0])}, "lengthscales has 2 values, but the inputs have 3 columns"),
    ],
)
def test_wrong_settings_are_named(
    estimator: type[SGPRegressor], settings: dict[str, object], message: str, data: tuple[np.ndarray, np.ndarray]
) -> None:
    with pytest.raises(ValueError, match=message):
        estimator(**settings).fit(*data)  # type: ignore[arg-type]


def test_wrong_calls_are_named(fitted: SGPRegressor | GPRegressor, data: tuple[np.ndarray, np.ndarray]) -> None:
    X, y = data
    with pytest.raises(ValueError, match="return_std and return_cov exclude each other"):
        fitted.predict(X, return_std=True, return_cov=True)
    with pytest.raises(ValueError, match="n_samples must be a whole number of at least 1, got 0"):
        fitted.sample_y(X, 0)
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        fitted.log_predictive_density(X, y[:-1])
    with pytest.raises(ValueError, match='bound must be "elbo" or "tight", got \'loose\''):
        SGPRegressor(bound="loose").fit(X, y)
    if isinstance(fitted, SGPRegressor):
        for wrong in (-1, 1.5, True, "many"):
            with pytest.raises(ValueError, match="cg_iterations must be a whole number of at least 0, or None, got"):
                fitted.certify(cg_iterations=wrong)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="a time limit must be a positive number of seconds"):
            fitted.certify(time_limit=0)
        with pytest.raises(ValueError, match="X and y must be passed both or not at all"):
            fitted.certify(X)
        with pytest.raises(ValueError, match="the model was fitted to 120 rows, got 100"):
            fitted.certify(X[:100], y[:100])
        with pytest.raises(ValueError, match="these are not the data that the model was fitted to"):
            fitted.certify(X, y[::-1])


def test_diabetes_is_certified_and_beats_the_linear_model() -> None:
    X, y = load_diabetes(return_X_y=True)
    train, test = np.arange(442) % 4 > 0, np.arange(442) % 4 == 0
    model = SGPRegressor(random_state=0).fit(X[train], y[train])
    assert model.certificate_.verdict in ("certified", "converged")
    assert model.score(X[test], y[test]) > 0.4


def test_exact_gp_leaves_the_noise_trap() -> None:
    X, y = many_inputs(200, 30)
    model = GPRegressor().fit(X, y)
    assert model.certificate_.verdict == "exact"
    assert model.score(X, y) > 0.9


@pytest.mark.parametrize("method", ["auto", "cholesky", "iterative", "sparse"])
def test_max_inducing_is_checked_whichever_way_is_taken(method: str) -> None:
    X, y = regression(30, d=2)
    for wrong in (0, 10_001, "many"):
        with pytest.raises(ValueError, match="max_inducing must be a whole number from 1 to 10000, got"):
            GPRegressor(method=method, max_inducing=wrong).fit(X, y)  # type: ignore[arg-type]
