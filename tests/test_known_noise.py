"""`noise_variance` and `sample_weight`, and several targets, of all estimators, in the user's units."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

from nearexact import GPRegressor, SGPRegressor, load
from nearexact.certificate import NEAR_EXACT
from nearexact.gp.function_draws import draw_functions
from nearexact.kernels import SquaredExponential

Model = SGPRegressor | GPRegressor
MAKERS = {
    "cholesky": lambda: GPRegressor(method="cholesky", random_state=0, time_limit=0.7),
    "iterative": lambda: GPRegressor(method="iterative", random_state=0, time_limit=0.7),
    "sparse": lambda: SGPRegressor(random_state=0, time_limit=0.7),
}
N = 60
SCALE, SHIFT = 3.0, 500.0


def latent(X: np.ndarray) -> np.ndarray:
    return SHIFT + SCALE * (np.sin(2.0 * X[:, 0]) + 0.3 * X[:, 1])


@pytest.fixture(scope="module")
def data() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Inputs, targets and the variance of their noise: every second row is measured well."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-3.0, 3.0, size=(N, 2))
    std = SCALE * np.where(np.arange(N) % 2, 0.05, 1.5)
    return X, latent(X) + std * rng.normal(size=N), std**2


@pytest.fixture(scope="module", params=MAKERS)
def fitted(request: pytest.FixtureRequest, data: tuple[np.ndarray, np.ndarray, np.ndarray]) -> Model:
    X, y, variance = data
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model: Model = MAKERS[request.param]().fit(X, y, noise_variance=variance)
    return model


@pytest.fixture(scope="module")
def X_new() -> np.ndarray:
    return np.random.default_rng(1).uniform(-3.0, 3.0, size=(50, 2))


def dense_predictions(
    model: Model, X: np.ndarray, y: np.ndarray, variance: np.ndarray, X_new: np.ndarray, *, sparse: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """The exact or the sparse GP at the model's hyperparameters, in the user's units: mean and std of the function."""
    scale, shift = model._scaling_y.scale, model._scaling_y.shift
    X, X_new = (model._scaling_X.apply(rows) for rows in (X, X_new))
    K, k = model.kernel_(X), model.kernel_(X, X_new)
    if sparse:
        Z = model._scaling_X.apply(model.inducing_points_)
        to_Z = np.linalg.solve(model.kernel_(Z) + 1e-10 * np.eye(len(Z)), model.kernel_(Z, X))
        K, k = model.kernel_(X, Z) @ to_Z, (model.kernel_(X_new, Z) @ to_Z).T
    solved = np.linalg.solve(scale**2 * (K + model.noise_variance_ * np.eye(len(X))) + np.diag(variance), scale**2 * k)
    return shift + solved.T @ (y - shift), scale * np.sqrt(model.kernel_.diag(X_new) - (k * solved).sum(0))


def test_predictions_are_those_of_the_dense_formula(
    fitted: Model, data: tuple[np.ndarray, np.ndarray, np.ndarray], X_new: np.ndarray
) -> None:
    mean, std = dense_predictions(fitted, *data, X_new, sparse=fitted.method_ == "sparse")
    got_mean, got_std = fitted.predict(X_new, return_std=True, noise=False)
    tolerance = {"cholesky": 1e-8, "iterative": 1e-3, "sparse": 1e-5}[fitted.method_]
    assert np.abs(got_mean - mean).max() <= tolerance * SCALE
    assert got_std == pytest.approx(std, rel=1e-3)
    mean, std = dense_predictions(fitted, *data, X_new)
    certified = fitted.certify_predictions(X_new[:5])
    assert (np.abs(certified.mean - mean[:5]) <= certified.mean_error + 1e-9).all()
    assert (certified.std_lower <= std[:5] + 1e-9).all()
    assert (std[:5] <= certified.std_upper + 1e-9).all()


def test_gradients_and_drawn_functions_know_the_noise(
    fitted: Model, data: tuple[np.ndarray, np.ndarray, np.ndarray], X_new: np.ndarray
) -> None:
    step = 1e-5
    gradients = fitted.predict_gradient(X_new[:2])
    for i in range(2):
        change = step * np.eye(2)[i]
        above, below = (fitted.predict(X_new[:2] + sign * change, return_std=True) for sign in (1.0, -1.0))
        for gradient, more, less in zip(gradients, above, below, strict=True):
            assert gradient[:, i] == pytest.approx((more - less) / (2.0 * step), rel=1e-3, abs=1e-3)
    rows = torch.tensor(fitted._scaling_X.apply(X_new[:5]))
    draws = draw_functions(fitted._posterior, 2000, seed=0)(rows).numpy()
    mean, variance = (part.numpy() for part in fitted._posterior.predict(rows))
    std = np.sqrt(variance)
    assert (np.abs(draws.mean(1) - mean) < 0.15 * std).all()
    assert draws.std(1) == pytest.approx(std, rel=0.25)


def test_known_noise_halves_the_error(
    fitted: Model, data: tuple[np.ndarray, np.ndarray, np.ndarray], X_new: np.ndarray
) -> None:
    X, y, _ = data
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        told_nothing = MAKERS["cholesky"]().fit(X, y)
    errors = [np.sqrt(np.mean((model.predict(X_new) - latent(X_new)) ** 2)) for model in (fitted, told_nothing)]
    assert errors[0] < 0.5 * errors[1]


def test_a_model_with_known_noise_is_kept_in_a_file(
    fitted: Model, data: tuple[np.ndarray, np.ndarray, np.ndarray], X_new: np.ndarray, tmp_path: Path
) -> None:
    X, y, variance = data
    fitted.save(tmp_path / "model.nx")
    loaded = load(tmp_path / "model.nx")
    for before, after in zip(fitted.predict(X_new, True), loaded.predict(X_new, True), strict=True):
        assert np.array_equal(before, after)
    assert np.allclose(loaded.predict(X_new[:3], return_cov=True)[1], fitted.predict(X_new[:3], return_cov=True)[1])
    certificate = loaded.certify(X, y, noise_variance=variance)
    assert certificate.lower == pytest.approx(fitted.certify().lower, abs=1e-6)
    with pytest.raises(ValueError, match=r"with their noise_variance and sample_weight: the(ir likelihood| noise of)"):
        loaded.certify(X, y)
    if fitted.method_ == "sparse":
        passed = loaded.certify_predictions(X_new[:3], X_train=X, y_train=y, noise_variance=variance)
        assert np.allclose(passed.mean, fitted.predict(X_new[:3]))
        with pytest.raises(ValueError, match="are not the data that the model was fitted to"):
            loaded.certify_predictions(X_new[:3], X_train=X, y_train=y)


def test_zero_noise_and_equal_weights_change_nothing(data: tuple[np.ndarray, np.ndarray, np.ndarray]) -> None:
    X, y, _ = data
    plain, same = (
        GPRegressor(method="cholesky", random_state=0).fit(X[:30], y[:30], **options)
        for options in ({}, {"noise_variance": np.zeros(30), "sample_weight": np.full(30, 7.0)})
    )
    assert same.elbo_ == plain.elbo_
    assert np.array_equal(same.predict(X), plain.predict(X))


def test_weights_divide_the_learnt_noise(data: tuple[np.ndarray, np.ndarray, np.ndarray], X_new: np.ndarray) -> None:
    X, y, variance = data
    X, y, weights = X[:24], y[:24], 1.0 / variance[:24]
    model = GPRegressor(method="cholesky", random_state=0).fit(X, y, sample_weight=weights)
    noise = model.noise_variance_ * model._scaling_y.scale**2 * (weights.mean() / weights - 1.0)
    mean, std = dense_predictions(model, X, y, noise, X_new)
    got_mean, got_std = model.predict(X_new, return_std=True, noise=False)
    assert np.allclose(got_mean, mean, rtol=1e-8)
    assert np.allclose(got_std, std, rtol=1e-6)
    # Only ratios of weights count, and a row of weight 0 is not there.
    extra_X, extra_y = np.vstack([X, X[:1] + 1.0]), np.append(y, 1e6)
    other = GPRegressor(method="cholesky", random_state=0).fit(
        extra_X, extra_y, sample_weight=np.append(4 * weights, 0)
    )
    assert other.elbo_ == model.elbo_
    assert other.certificate_.n == 24


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"noise_variance": np.ones(5)}, r"noise_variance must have one number for each of 20 rows, got shape \(5,\)"),
        ({"noise_variance": -np.ones(20)}, "noise_variance must not be negative, got -1 in row 0"),
        ({"noise_variance": np.full(20, np.nan)}, "noise_variance must be finite, got 20 NaN or infinite values"),
        ({"noise_variance": ["a"] * 20}, "noise_variance must be numeric"),
        ({"sample_weight": np.ones((20, 2))}, "sample_weight must have one number for each of 20 rows"),
        ({"sample_weight": np.zeros(20)}, "sample_weight must be positive for some rows, got zero for all"),
        ({"sample_weight": -np.ones(20)}, "sample_weight must not be negative"),
    ],
)
@pytest.mark.parametrize("call", ["fit", "update"])
def test_wrong_noise_is_named_and_changes_nothing(
    fitted: Model, data: tuple[np.ndarray, np.ndarray, np.ndarray], call: str, options: dict[str, object], message: str
) -> None:
    X, y, _ = data
    before, attributes = fitted.predict(X), fitted.__dict__.copy()
    with pytest.raises(ValueError, match=message):
        getattr(fitted, call)(X[:20], y[:20], **options)
    assert np.array_equal(fitted.predict(X), before)
    assert fitted.__dict__.keys() == attributes.keys()
    assert all(fitted.__dict__[name] is value for name, value in attributes.items())


@pytest.mark.parametrize("size", [1e308, 1e-300])
def test_only_ratios_of_weights_count_however_large_they_are(
    data: tuple[np.ndarray, np.ndarray, np.ndarray], size: float
) -> None:
    X, y, variance = data
    options = {"method": "cholesky", "random_state": 0, "noise_bounds": 0.05}
    kernel = SquaredExponential(2.0).with_bounds(lengthscales="fixed", variance="fixed")
    weights = variance.min() / variance
    models = [GPRegressor(kernel, **options).fit(X, y, sample_weight=w) for w in (weights, size * weights)]
    assert np.allclose(models[1].predict(X), models[0].predict(X), rtol=1e-9)


def test_weights_must_leave_two_rows_to_fit_to(fitted: Model, data: tuple[np.ndarray, np.ndarray, np.ndarray]) -> None:
    X, y, _ = data
    before = fitted.predict(X)
    with pytest.raises(ValueError, match="sample_weight must be positive for at least 2 rows, got 1"):
        fitted.fit(X[:20], y[:20], sample_weight=np.eye(20)[0])
    assert np.array_equal(fitted.predict(X), before)


# ---- several targets -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=MAKERS)
def of_two(request: pytest.FixtureRequest, data: tuple[np.ndarray, np.ndarray, np.ndarray]) -> Model:
    X, y, _ = data
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model: Model = MAKERS[request.param]().fit(X, two_targets(X, y), sample_weight=np.arange(N) % 3)
    return model


def two_targets(X: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.column_stack([y, 0.01 * np.cos(X[:, 1]) + 0.001 * (y - SHIFT)])


def test_several_targets_have_predictions_of_their_own(
    of_two: Model, data: tuple[np.ndarray, np.ndarray, np.ndarray], X_new: np.ndarray, tmp_path: Path
) -> None:
    X, y, _ = data
    used = np.flatnonzero(np.arange(N) % 3)
    weights = (np.arange(N) % 3)[used]
    Y = two_targets(X, y)[used]
    scale, shift = of_two._scaling_y.scale, of_two._scaling_y.shift
    rows, new = of_two._scaling_X.apply(X[used]), of_two._scaling_X.apply(X_new)
    K_hat = of_two.kernel_(rows) + of_two.noise_variance_ * np.diag(weights.mean() / weights)
    solved = np.linalg.solve(K_hat, of_two.kernel_(rows, new))
    expected = shift + scale * (solved.T @ ((Y - shift) / scale))
    mean, std = of_two.predict(X_new, return_std=True)
    if of_two.method_ != "sparse":  # of which only the certified predictions below say how near it is
        assert np.abs((mean - expected) / scale).max() < (1e-8 if of_two.method_ == "cholesky" else 1e-2)
    assert std.shape == (50, 2)
    assert np.allclose(std / scale, (std / scale)[:, :1])
    covariance = of_two.predict(X_new[:4], return_cov=True)[1]
    assert covariance.shape == (4, 4, 2)
    assert np.sqrt(np.einsum("iit->it", covariance)) == pytest.approx(std[:4], rel=0.05)
    assert of_two.sample_y(X_new[:4], 3).shape == (4, 2, 3)
    many = of_two.sample_y(np.tile(X_new[:1], (2049, 1)), 2)  # without a square array
    assert many.shape == (2049, 2, 2)
    assert np.abs((many.mean((0, 2)) - mean[0]) / std[0]).max() < 5.0
    assert of_two.log_predictive_density(X, two_targets(X, y)).shape == (N, 2)
    assert of_two.score(X, two_targets(X, y)) > 0.3
    certified = of_two.certify_predictions(X_new[:3])
    assert (np.abs(certified.mean - expected[:3]) <= certified.mean_error * (1.0 + 1e-6) + 1e-12).all()
    assert (certified.std_lower <= certified.std_upper).all()
    of_two.save(tmp_path / "model.nx")
    loaded = load(tmp_path / "model.nx")
    assert np.array_equal(loaded.predict(X_new, return_std=True)[1], std)
    assert np.array_equal(loaded.predict(X_new), of_two.predict(X_new))
    again = loaded.certify(X, two_targets(X, y), sample_weight=np.arange(N) % 3)
    assert again.lower == pytest.approx(of_two.certify().lower, abs=1e-6)


def test_several_targets_have_gradients_of_their_own_and_go_elsewhere(
    of_two: Model, X_new: np.ndarray, tmp_path: Path
) -> None:
    mean, std = of_two.predict(X_new, return_std=True)
    got_mean, got_variance = (part.detach().numpy() for part in of_two.to_torch()(torch.tensor(X_new)))
    np.testing.assert_allclose(got_mean, mean, rtol=1e-8)
    np.testing.assert_allclose(got_variance, std**2, rtol=1e-6)
    by_mean, by_std = of_two.predict_gradient(X_new)
    assert by_mean.shape == by_std.shape == (50, 2, X_new.shape[1])
    step = 1e-5
    for number in range(X_new.shape[1]):
        above, below = (
            np.stack(of_two.predict(X_new + sign * step * np.eye(X_new.shape[1])[number], return_std=True))
            for sign in (1.0, -1.0)
        )
        by_difference = (above - below) / (2.0 * step)
        scale = of_two._scaling_y.scale
        np.testing.assert_allclose(by_mean[:, :, number] / scale, by_difference[0] / scale, atol=1e-5)
        if of_two.method_ != "iterative":  # whose nearest rows may change within a step
            np.testing.assert_allclose(by_std[:, :, number] / scale, by_difference[1] / scale, atol=1e-5)
    if of_two.method_ == "sparse":
        onnxruntime = pytest.importorskip("onnxruntime")
        of_two.save_onnx(tmp_path / "model.onnx")
        got = onnxruntime.InferenceSession(tmp_path / "model.onnx").run(None, {"X": X_new})
        np.testing.assert_allclose(got[0] / scale, mean / scale, atol=1e-8)
        np.testing.assert_allclose(np.sqrt(got[1]) / scale, std / scale, atol=1e-8)


def test_targets_that_do_not_go_together_are_refused(
    of_two: Model, data: tuple[np.ndarray, np.ndarray, np.ndarray]
) -> None:
    X, y, variance = data
    before = of_two.predict(X)
    constant = np.column_stack([y, np.full(N, 3.0), y, np.zeros(N)])
    with pytest.raises(ValueError, match="of 4 targets these columns of y are constant: 1, 3"):
        of_two.fit(X, constant)
    with pytest.raises(ValueError, match="noise_variance is for one target, got 2"):
        of_two.fit(X, two_targets(X, y), noise_variance=variance)
    with pytest.raises(ValueError, match=r"fitted to 2 targets, got y of shape \(60,\)"):
        of_two.update(X, y)
    assert np.array_equal(of_two.predict(X), before)


# ---- more data later -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("kind", ["plain", "noise", "targets"])
def test_an_update_is_a_fit_from_scratch_at_the_same_hyperparameters(
    name: str, kind: str, data: tuple[np.ndarray, np.ndarray, np.ndarray], X_new: np.ndarray, tmp_path: Path
) -> None:
    X, y, variance = data
    Y = two_targets(X, y) if kind == "targets" else y
    noise = {} if kind == "plain" else {"sample_weight": 1.0 / variance}
    first, later = slice(0, 40), slice(40, N)
    model = MAKERS[name]().set_params(kernel=SquaredExponential(2.0), time_limit=0.3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(X[first], Y[first], **{key: value[first] for key, value in noise.items()})
        model.save(tmp_path / "model.nx")
        loaded = load(tmp_path / "model.nx")
        for estimator in (model, loaded):
            estimator.update(X[later], Y[later], **{key: value[later] for key, value in noise.items()})
    assert np.array_equal(loaded.predict(X_new), model.predict(X_new))
    rows, new = model._scaling_X.apply(X), model._scaling_X.apply(X_new)
    weights = noise["sample_weight"] / noise["sample_weight"][first].mean() if noise else np.ones(N)
    D, targets = model.noise_variance_ / weights, model._scaling_y.apply(Y)
    K = model.kernel_(rows)
    if model.method_ == "sparse":
        Z = model._posterior.inducing_points.numpy()
        cross = np.linalg.solve(model.kernel_(Z) + 1e-10 * np.eye(len(Z)), model.kernel_(Z, np.vstack([rows, new])))
        Q = model.kernel_(np.vstack([rows, new]), Z) @ cross
        mean = Q[N:, :N] @ np.linalg.solve(Q[:N, :N] + np.diag(D), targets)
    else:
        mean = model.kernel_(new, rows) @ np.linalg.solve(K + np.diag(D), targets)
    got = model._scaling_y.apply(model.predict(X_new))
    assert np.abs(got - mean).max() < (1e-6 if model.method_ != "iterative" else 1e-3)
    _, log_det = np.linalg.slogdet(K + np.diag(D))
    quadratic = np.sum(targets * np.linalg.solve(K + np.diag(D), targets))
    count = targets.size // N
    lml = -0.5 * (count * (N * np.log(2.0 * np.pi) + log_det) + quadratic)
    assert loaded.certificate_.verdict == model.certificate_.verdict
    for certificate in (model.certificate_, loaded.certificate_, model.certify()):
        assert certificate.n == N
        assert certificate.lower - 1e-6 <= lml <= certificate.upper + 1e-6
    model.save(tmp_path / "updated.nx")
    assert np.array_equal(load(tmp_path / "updated.nx").predict(X_new), model.predict(X_new))


@pytest.mark.parametrize("name", MAKERS)
def test_an_update_says_when_to_learn_anew(name: str, data: tuple[np.ndarray, np.ndarray, np.ndarray]) -> None:
    X, y, _ = data
    good = np.arange(N) % 2 == 1  # rows that are measured well
    X, y = X[good], y[good]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = MAKERS[name]().set_params(time_limit=20).fit(X[:24], y[:24])  # θ is learnt to its end
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.update(X[24:25], y[24:25])  # more of the same
        assert model.certificate_.evidence is not None
        model.update(X[25:], y[25:])  # so many rows may show what looked like noise before
    assert model.certificate_.evidence is None
    assert model.certificate_.verdict not in NEAR_EXACT
    with pytest.warns(UserWarning, match="times as far from the predictions as the model expects: fit again"):
        model.update(X[:10], y[:10] + 2.0 * SCALE * (-1.0) ** np.arange(10))
    assert model.certificate_.evidence is None
    rng = np.random.default_rng(3)
    many = rng.uniform(-3.0, 3.0, size=(40, 2))
    with pytest.warns(UserWarning, match="fit again with all rows"):
        model.update(many, latent(many) + 0.05 * SCALE * rng.normal(size=40))


@pytest.mark.parametrize("name", MAKERS)
def test_rows_that_come_one_by_one_count_together(
    name: str, data: tuple[np.ndarray, np.ndarray, np.ndarray], tmp_path: Path
) -> None:
    X, y, _ = data
    good = np.arange(N) % 2 == 1
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = MAKERS[name]().fit(X[good], y[good])
    model.save(tmp_path / "model.nx")
    rng = np.random.default_rng(4)
    new = rng.uniform(-3.0, 3.0, size=(12, 2))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.update(new[:1], model.predict(new[:1]))  # predicted right by chance, or made up: nothing is wrong
    seen, model = [], load(tmp_path / "model.nx")
    for row in new:
        mean, std = model.predict([row], return_std=True)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            model.update([row], mean + 2.5 * std)
        seen.append([str(warning.message) for warning in caught])
        model.save(tmp_path / "model.nx")
        model = load(tmp_path / "model.nx")  # which knows of the rows before
    assert not seen[0]  # one row at 2.5 standard deviations happens
    assert "the rows of all updates together are 2" in seen[-1][0]
    assert model.certificate_.evidence is None


@pytest.mark.parametrize("name", MAKERS)
def test_an_update_that_is_interrupted_changes_nothing(
    name: str, data: tuple[np.ndarray, np.ndarray, np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    X, y, _ = data
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = MAKERS[name]().fit(X[:40], y[:40])
    attributes = model.__dict__.copy()

    def pressed(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("nearexact.updating._stage", pressed)  # when half of the model is new already
    with pytest.raises(KeyboardInterrupt):
        model.update(X[40:], y[40:])
    assert all(model.__dict__[name] is value for name, value in attributes.items())


def test_an_update_with_other_columns_changes_nothing(
    fitted: Model, data: tuple[np.ndarray, np.ndarray, np.ndarray]
) -> None:
    X, y, _ = data
    before, n = fitted.predict(X), fitted.certificate_.n
    with pytest.raises(ValueError, match="features"):
        fitted.update(X[:, :1], y)
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        fitted.update(X, y[:3])
    with pytest.raises(ValueError, match="NaN"):
        fitted.update(X, np.full(N, np.nan))
    assert np.array_equal(fitted.predict(X), before)
    assert fitted.certificate_.n == n
