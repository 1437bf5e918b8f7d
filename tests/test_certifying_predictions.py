"""`certify_predictions` of both estimators: bounds in the user's units, next to scikit-learn's exact GP."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.exceptions import NotFittedError
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel

import nearexact
from nearexact import CertifiedPredictions, GPRegressor, SGPRegressor, load
from nearexact.gp.kernel_product import KernelProduct
from nearexact.kernels import SquaredExponential
from tests.problems import regression

Data = tuple[np.ndarray, np.ndarray, np.ndarray]


def measured(scale: float = 1.0, offset: float = 0.0) -> Data:
    """Data in other units: X, y and new rows, some of them on rows of X and one far away."""
    X, y = regression(120, noise=0.3)
    X_new = np.concatenate([X[:3], regression(6, seed=1)[0], [[30.0, 0.0, 0.0]]])
    return offset + scale * X, offset + scale * y, offset + scale * X_new


def sparse(X: np.ndarray, y: np.ndarray) -> SGPRegressor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return SGPRegressor(max_inducing=10, random_state=0, time_limit=20).fit(X, y)


@pytest.fixture(scope="module")
def data() -> Data:
    return measured()


@pytest.fixture(scope="module")
def sparse_model(data: Data) -> SGPRegressor:
    return sparse(*data[:2])


@pytest.fixture(scope="module")
def exact_model(data: Data) -> GPRegressor:
    return GPRegressor(method="cholesky", random_state=0, time_limit=20).fit(*data[:2])


def by_scikit_learn(model: SGPRegressor | GPRegressor, X: np.ndarray, y: np.ndarray, X_new: np.ndarray) -> np.ndarray:
    """Mean and std of the latent function by the exact GP with the same hyperparameters, in the units of y."""
    kernel = model.kernel_
    assert isinstance(kernel, SquaredExponential)
    peer = GaussianProcessRegressor(
        ConstantKernel(float(kernel.variance)) * RBF(kernel.lengthscales), alpha=model.noise_variance_, optimizer=None
    ).fit((X - X.mean(0)) / X.std(0), (y - y.mean()) / y.std())
    mean, std = peer.predict((X_new - X.mean(0)) / X.std(0), return_std=True)
    return np.array([y.mean() + y.std() * mean, y.std() * std])


def assert_certified(certified: CertifiedPredictions, exact: np.ndarray, unit: float, room: float = 1e-7) -> None:
    """Bounds hold, but for the rounding errors of scikit-learn, which is a share `room` of the unit off at most."""
    mean, mean_error, std, std_lower, std_upper = certified
    assert all(part.shape == mean.shape and np.isfinite(part).all() for part in certified)
    assert (np.abs(mean - exact[0]) <= mean_error + room * unit).all()
    assert (std_lower <= exact[1] + room * unit).all()
    assert (exact[1] <= std_upper + room * unit).all()
    assert (std_lower >= 0.0).all()
    assert (std >= 0.0).all()


@pytest.mark.parametrize(("scale", "offset"), [(1.0, 0.0), (1e-6, 0.0), (1e5, 1e7)])
def test_the_exact_predictions_lie_within_the_bounds(scale: float, offset: float) -> None:
    """In any units; the sparse model is a coarse one, so that its predictions differ from the exact ones."""
    X, y, X_new = measured(scale, offset)
    model = sparse(X, y)
    exact = by_scikit_learn(model, X, y, X_new)
    certified = model.certify_predictions(X_new)
    assert_certified(certified, exact, scale)
    mean, std = model.predict(X_new, return_std=True, noise=False)
    assert (certified.mean == mean).all()
    assert (certified.std == std).all()
    noisy = np.hypot(exact[1], np.sqrt(model.noise_variance_) * y.std())
    known = np.abs(certified.mean - exact[0])
    assert (certified.mean_error <= known + 3e-3 * noisy).all()  # no more than the truth and what may stay open
    assert known.max() > 1e-2 * noisy.max()
    assert (certified.std_upper - certified.std_lower <= 0.011 * certified.std_upper).all()


def test_an_exact_model_is_exact_but_for_rounding(exact_model: GPRegressor, data: Data) -> None:
    X, y, X_new = data
    certified = exact_model.certify_predictions(X_new)
    assert_certified(certified, by_scikit_learn(exact_model, X, y, X_new), 1.0)
    assert (certified.mean_error < 1e-7).all()
    assert (certified.std_upper - certified.std_lower < 1e-7).all()


def test_what_is_proved_within_a_time_limit_is_looser_and_holds(sparse_model: SGPRegressor, data: Data) -> None:
    X, y, X_new = data
    exact = by_scikit_learn(sparse_model, X, y, X_new)
    whole = sparse_model.certify_predictions(X_new)
    for limit in (1e-9, 0.01, "0.05s"):
        certified = sparse_model.certify_predictions(X_new, time_limit=limit)
        assert_certified(certified, exact, 1.0)
        assert (certified.mean == whole.mean).all()
    at_once = sparse_model.certify_predictions(X_new, time_limit=1e-9)
    assert (at_once.std_lower == 0.0).all()
    assert (at_once.mean_error > whole.mean_error).all()


def test_loaded_models(sparse_model: SGPRegressor, exact_model: GPRegressor, data: Data, tmp_path: Path) -> None:
    """An exact one holds its rows; a sparse one has to be given them."""
    X, y, X_new = data
    sparse_model.save(tmp_path / "sparse.nx")
    exact_model.save(tmp_path / "exact.nx")
    for ours, again in zip(
        exact_model.certify_predictions(X_new), load(tmp_path / "exact.nx").certify_predictions(X_new), strict=True
    ):
        np.testing.assert_allclose(ours, again, rtol=1e-6, atol=1e-12)
    loaded = load(tmp_path / "sparse.nx")
    with pytest.raises(ValueError, match="does not hold its training data: pass them as X_train and y_train"):
        loaded.certify_predictions(X_new)
    with pytest.raises(ValueError, match="X_train and y_train must be passed both or not at all"):
        loaded.certify_predictions(X_new, X_train=X)
    with pytest.raises(ValueError, match="are not the data that the model was fitted to"):
        loaded.certify_predictions(X_new, X_train=X, y_train=y[::-1])
    with pytest.raises(ValueError, match="fitted to 120 rows, got 100 others"):
        loaded.certify_predictions(X_new, X_train=X[:100], y_train=y[:100])
    certified = loaded.certify_predictions(X_new, X_train=X, y_train=y)
    assert_certified(certified, by_scikit_learn(sparse_model, X, y, X_new), 1.0)
    np.testing.assert_allclose(certified.mean_error, sparse_model.certify_predictions(X_new).mean_error, rtol=1e-3)


def test_wrong_calls_are_named(sparse_model: SGPRegressor, exact_model: GPRegressor, data: Data) -> None:
    for model in (sparse_model, exact_model):
        with pytest.raises(ValueError, match="noise_variance and sample_weight are those of X_train and y_train"):
            model.certify_predictions(data[2], noise_variance=0.1)
    with pytest.raises(ValueError, match="are not the data that the model was fitted to"):
        exact_model.certify_predictions(data[2], X_train=data[0], y_train=data[1][::-1])
    with pytest.raises(ValueError, match="cg_iterations must be a whole number"):
        exact_model.certify(cg_iterations="many")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="noise_variance and sample_weight are for training data that are passed"):
        exact_model.certify(noise_variance=0.1)
    with pytest.raises(ValueError, match="a time limit must be a positive number"):
        sparse_model.certify_predictions(data[2], time_limit=-1)
    with pytest.raises(ValueError, match="2 features"):
        sparse_model.certify_predictions(data[2][:, :2])
    with pytest.raises(NotFittedError):
        SGPRegressor().certify_predictions(data[2])


def test_an_interrupt_is_passed_on(sparse_model: SGPRegressor, data: Data, monkeypatch: pytest.MonkeyPatch) -> None:
    before = sparse_model.certificate_
    product = KernelProduct.__call__
    calls = []

    def pressed(self: KernelProduct, *arguments: object) -> torch.Tensor:
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return product(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(KernelProduct, "__call__", pressed)
    with pytest.raises(KeyboardInterrupt):
        sparse_model.certify_predictions(data[2])
    monkeypatch.undo()
    assert sparse_model.certificate_ is before
    sparse_model.certify_predictions(data[2][:1])


def test_the_result_is_among_what_users_import() -> None:
    assert nearexact.CertifiedPredictions._fields == ("mean", "mean_error", "std", "std_lower", "std_upper")
    assert "CertifiedPredictions" in dir(nearexact)
