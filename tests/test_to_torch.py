"""Models elsewhere: as torch modules, and as ONNX graphs."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.exceptions import NotFittedError

from nearexact import GPRegressor, SGPRegressor
from nearexact.kernels import ArcCosine, Kernel, Linear, Periodic, SquaredExponential
from tests.kernels.formulas import RationalQuadratic
from tests.problems import BUILT_IN, regression


def fixed(kernel: Kernel, **options: Any) -> GPRegressor:
    """A model with these hyperparameters: nothing is learnt, so that a fit takes no time."""
    X, y = regression(60)
    model = GPRegressor(
        kernel.with_bounds(**dict.fromkeys(kernel.parameters, "fixed")), noise_bounds=0.05, random_state=0, **options
    )
    return model.fit(X * [1.0, 20.0, 0.1] + [3.0, 0.0, -5.0], 50.0 * y + 300.0)


def inputs(n: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(n, 3)) * [1.0, 20.0, 0.1] + [3.0, 0.0, -5.0]


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("method", ["sparse", "cholesky", "iterative"])
@pytest.mark.parametrize("noise", [True, False])
def test_the_module_gives_predictions_and_their_gradients(method: str, noise: bool) -> None:
    model = fixed(BUILT_IN["sum"], method=method)
    module = model.to_torch(noise=noise)
    X = inputs(6)
    mean, std = model.predict(X, return_std=True, noise=noise)
    at = torch.tensor(X.reshape(2, 3, 3)).requires_grad_()  # batches of rows
    got_mean, got_variance = module(at)
    assert got_mean.shape == got_variance.shape == (2, 3)
    assert got_mean.detach().numpy().ravel() == pytest.approx(mean, rel=1e-9)
    assert got_variance.detach().numpy().ravel() == pytest.approx(std**2, rel=1e-6)
    by_mean, by_std = model.predict_gradient(X, noise=noise)
    (gradient,) = torch.autograd.grad(got_mean.sum(), at, retain_graph=True)
    np.testing.assert_allclose(gradient.numpy().reshape(6, 3), by_mean, rtol=1e-8, atol=1e-9)
    (gradient,) = torch.autograd.grad(got_variance.sqrt().sum(), at)
    np.testing.assert_allclose(gradient.numpy().reshape(6, 3), by_std, rtol=1e-6, atol=1e-9)


def test_the_module_is_an_ordinary_one(tmp_path: Path) -> None:
    model = fixed(BUILT_IN["matern52"], method="cholesky")
    module = model.to_torch()
    assert list(module.parameters()) == []  # nothing is trained
    assert {"X", "L", "weights", "shift_X", "scale_y"} <= set(module.state_dict())
    assert float(module.noise_variance) == pytest.approx(0.05 * (50.0 * regression(60)[1]).var())
    torch.save(module, tmp_path / "module.pt")
    again = torch.load(tmp_path / "module.pt", weights_only=False)
    X = torch.tensor(inputs(4))
    assert torch.equal(again(X)[1], module(X)[1])
    assert module(X[0])[0].shape == ()  # one row
    with pytest.raises(ValueError, match=r"X must have 3 inputs in its last dimension, got shape \(4, 2\)"):
        module(X[:, :2])
    with pytest.raises(NotFittedError):
        GPRegressor().to_torch()


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("kernel", BUILT_IN.values(), ids=BUILT_IN.keys())
def test_onnx_predicts_the_same(kernel: Kernel, tmp_path: Path) -> None:
    pytest.importorskip("onnx", reason='the extra "onnx" is not installed')
    runtime = pytest.importorskip("onnxruntime", reason='the extra "onnx" is not installed')
    model = fixed(kernel, method="sparse", max_inducing=20)
    X = np.concatenate([inputs(50), model.inducing_points_])  # some rows coincide with points
    for noise in (True, False):
        model.save_onnx(tmp_path / "model.onnx", noise=noise)
        session = runtime.InferenceSession(tmp_path / "model.onnx", providers=["CPUExecutionProvider"])
        got_mean, got_variance = session.run(["mean", "variance"], {"X": X})
        mean, std = model.predict(X, return_std=True, noise=noise)
        np.testing.assert_allclose(got_mean, mean, rtol=0.0, atol=1e-9 * mean.std())
        np.testing.assert_allclose(got_variance, std**2, rtol=0.0, atol=1e-9 * mean.var())


@pytest.mark.parametrize("kernel", [SquaredExponential(), Linear(), Periodic(), ArcCosine()])
def test_onnx_of_one_input_and_few_points(kernel: Kernel, tmp_path: Path) -> None:
    """A single number next to a product is rounded by some runtimes; with one input all factors are single numbers."""
    pytest.importorskip("onnx", reason='the extra "onnx" is not installed')
    runtime = pytest.importorskip("onnxruntime", reason='the extra "onnx" is not installed')
    X = np.linspace(-1.0, 1.0, 12)[:, None] * 3.0 + 0.7
    model = SGPRegressor(kernel, max_inducing=1, procedure="paper", random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(X, np.exp(X[:, 0] / 3.0))
    model.save_onnx(tmp_path / "model.onnx")
    session = runtime.InferenceSession(tmp_path / "model.onnx", providers=["CPUExecutionProvider"])
    mean, std = model.predict(X, return_std=True)
    for got, expected in zip(session.run(["mean", "variance"], {"X": X}), (mean, std**2), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-11)


def test_what_cannot_be_exported_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match='only a sparse GP can be exported to ONNX, got method_ "cholesky"'):
        fixed(BUILT_IN["linear"], method="cholesky").save_onnx(tmp_path / "model.onnx")
    with pytest.raises(NotFittedError):
        SGPRegressor().save_onnx(tmp_path / "model.onnx")
    pytest.importorskip("onnx", reason='the extra "onnx" is not installed')
    with pytest.raises(ValueError, match=r"only kernels of nearexact\.kernels can be exported"):
        fixed(RationalQuadratic(), method="sparse").save_onnx(tmp_path / "model.onnx")
    assert not list(tmp_path.iterdir())


def test_without_the_extra_it_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = fixed(BUILT_IN["linear"], method="sparse")
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(ImportError, match=r'pip install "nearexact\[onnx\]"'):
        model.save_onnx(tmp_path / "model.onnx")
