"""What every kernel and every composition satisfies. A new kernel is added to `tests/problems.py` and runs here."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
import torch

from nearexact.kernels import Kernel
from tests.problems import KERNELS, SIMPLE, awkward_inputs, features
from tests.tensors import Allocations

every_kernel = pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS.keys())


@every_kernel
def test_is_positive_semidefinite_and_symmetric(kernel: Kernel) -> None:
    K = kernel(awkward_inputs())
    assert np.allclose(K, K.T, rtol=0, atol=1e-12 * np.abs(K).max())
    assert np.linalg.eigvalsh(K).min() > -1e-12 * np.abs(K).max() * len(K)


@every_kernel
def test_diag_is_the_diagonal(kernel: Kernel) -> None:
    X = awkward_inputs()
    diagonal = kernel.diag(X)
    assert np.array_equal(diagonal, np.diag(kernel(X)))
    assert np.allclose(diagonal, np.diag(kernel(X, X)), rtol=1e-8)
    assert diagonal == pytest.approx([kernel(X[i : i + 1])[0, 0] for i in range(len(X))], rel=1e-14)


@every_kernel
def test_does_not_depend_on_which_rows_come_together(kernel: Kernel) -> None:
    X, Z = awkward_inputs(), awkward_inputs(seed=4)
    one_by_one = np.array([[kernel(x[None], z[None])[0, 0] for z in Z] for x in X])
    assert np.allclose(kernel(X, Z), one_by_one, rtol=1e-11, atol=1e-12 * np.abs(one_by_one).max())
    assert np.allclose(kernel(X, Z), kernel(Z, X).T, rtol=1e-11, atol=1e-12 * np.abs(one_by_one).max())


@every_kernel
def test_gradients_agree_with_finite_differences(kernel: Kernel) -> None:
    """On generic rows and on coinciding, nearly coinciding, zero and parallel ones."""
    rng = np.random.default_rng(1)
    A, B = features(kernel, awkward_inputs(), np.concatenate([awkward_inputs()[:8], awkward_inputs(seed=4)[:4]]))
    K_bar, weights = torch.tensor(rng.normal(size=(len(A), len(B)))), torch.tensor(rng.normal(size=len(A)))
    cross, diagonal = kernel.cross_vjp(A, B, K_bar.clone()), kernel.diagonal_vjp(A, weights)
    assert list(cross) == list(diagonal) == list(kernel.parameters)

    def contracted(changed: Kernel) -> np.ndarray:
        return np.array([float((changed.cross(A, B) * K_bar).sum()), float(changed.diagonal(A) @ weights)])

    step = 1e-5
    for name, value in kernel.parameters.items():
        assert cross[name].shape == diagonal[name].shape == value.shape
        for i in range(value.size):
            change = np.zeros(value.size)
            change[i] = step
            up = kernel.with_parameters({name: value * np.exp(change.reshape(value.shape))})
            down = kernel.with_parameters({name: value * np.exp(-change.reshape(value.shape))})
            expected = (contracted(up) - contracted(down)) / (2 * step) / value.flat[i]
            got = [float(cross[name].ravel()[i]), float(diagonal[name].ravel()[i])]
            tolerance = 2e-6 * np.abs(contracted(kernel)).max()
            assert np.allclose(got, expected, rtol=2e-6, atol=tolerance), (name, i, got, expected)


@every_kernel
def test_the_differentiable_way_gives_the_same_values(kernel: Kernel) -> None:
    X, Z = torch.tensor(awkward_inputs()), torch.tensor(awkward_inputs(seed=4)[:9])
    A, B = features(kernel, awkward_inputs(), awkward_inputs(seed=4)[:9])
    K = kernel.cross(A, B)
    assert torch.allclose(kernel.differentiable(X, Z), K, rtol=1e-10, atol=1e-11 * float(K.abs().max()))
    assert torch.allclose(kernel.differentiable_diagonal(X), kernel.diagonal(A), rtol=1e-12)
    again = kernel.differentiable(X, X)  # of coinciding rows
    assert torch.allclose(
        again, torch.tensor(kernel(awkward_inputs())), rtol=1e-7, atol=1e-7 * float(again.abs().max())
    )


@every_kernel
def test_derivatives_by_the_inputs_agree_with_finite_differences(kernel: Kernel) -> None:
    rng = np.random.default_rng(2)
    X, Z = torch.tensor(rng.normal(size=(5, 3))).requires_grad_(), torch.tensor(rng.normal(size=(4, 3)))
    weights = torch.tensor(rng.normal(size=(5, 5)))

    def contracted(at: torch.Tensor) -> torch.Tensor:
        return (kernel.differentiable(at, Z) * weights[:, :4]).sum() + kernel.differentiable_diagonal(at) @ weights[
            :, 4
        ]

    (got,) = torch.autograd.grad(contracted(X), X)
    step, expected = 1e-5, torch.empty_like(got)
    with torch.no_grad():
        for i in range(X.numel()):
            change = torch.zeros(X.numel(), dtype=X.dtype)
            change[i] = step
            up, down = contracted(X + change.view_as(X)), contracted(X - change.view_as(X))
            expected.view(-1)[i] = (up - down) / (2.0 * step)
    assert torch.allclose(got, expected, rtol=1e-5, atol=1e-6 * float(expected.abs().max()))


@every_kernel
def test_derivatives_by_inputs_that_coincide_are_finite(kernel: Kernel) -> None:
    X = torch.tensor(awkward_inputs()).requires_grad_()
    Z = torch.tensor(awkward_inputs())
    (got,) = torch.autograd.grad((kernel.differentiable(X, Z).sum() + kernel.differentiable_diagonal(X).sum()), X)
    assert torch.isfinite(got).all()


@pytest.mark.parametrize("name", ["squared_exponential", "matern12", "matern32", "matern52", "periodic"])
def test_gradients_at_short_lengthscales_are_those_of_the_coinciding_points(name: str) -> None:
    """At a thousandth of the data's scale only coinciding rows count, and k there is the variance."""
    kernel = SIMPLE[name].with_parameters({"lengthscales": np.full(3, 1e-3)})
    A, B = features(kernel, awkward_inputs()[3:], awkward_inputs()[3:10])
    gradients = kernel.cross_vjp(A, B, torch.ones(len(A), len(B), dtype=torch.float64))
    assert float(gradients["variance"]) == pytest.approx(7.0, rel=1e-12)
    assert torch.allclose(gradients["lengthscales"], torch.zeros(3, dtype=torch.float64), atol=1e-9)


@every_kernel
def test_gradients_at_coinciding_points_are_finite_and_right(kernel: Kernel) -> None:
    """At x = z the kernel is its diagonal, and so are its derivatives."""
    (A,) = features(kernel, awkward_inputs())
    weights = torch.linspace(-1.0, 2.0, len(A), dtype=torch.float64)
    cross, diagonal = kernel.cross_vjp(A, A, torch.diag(weights)), kernel.diagonal_vjp(A, weights)
    for name in kernel.parameters:
        assert torch.isfinite(cross[name]).all()
        assert torch.allclose(
            cross[name], diagonal[name], rtol=1e-6, atol=1e-6 * float(diagonal[name].abs().max()) + 1e-9
        )


@pytest.mark.parametrize("scale", [1e-3, 1e-2, 30.0])
@pytest.mark.parametrize("name", ["squared_exponential", "matern12", "matern32", "matern52"])
def test_short_and_long_lengthscales_lose_no_digits(name: str, scale: float) -> None:
    """Against distances computed from differences, with an offset that the product form alone would not survive."""
    kernel = SIMPLE[name].with_parameters({"lengthscales": SIMPLE[name].parameters["lengthscales"] * scale})
    X = awkward_inputs() + 100.0
    X[2] = X[0] + 1e-7
    r = np.sqrt((((X[:, None] - X[None]) / kernel.parameters["lengthscales"]) ** 2).sum(-1))
    formulas = {
        "squared_exponential": np.exp(-0.5 * r**2),
        "matern12": np.exp(-r),
        "matern32": (1 + np.sqrt(3) * r) * np.exp(-np.sqrt(3) * r),
        "matern52": (1 + np.sqrt(5) * r + 5 / 3 * r**2) * np.exp(-np.sqrt(5) * r),
    }
    assert np.allclose(kernel(X, X), 1.7 * formulas[name], rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("name", ["squared_exponential", "matern12", "matern32", "matern52", "periodic"])
def test_stationary_gradients_build_no_three_dimensional_array(name: str) -> None:
    n, m, d = 300, 80, 3
    rng = np.random.default_rng(0)
    A, B = features(SIMPLE[name], rng.normal(size=(n, d)), rng.normal(size=(m, d)))
    with Allocations() as allocations:
        SIMPLE[name].cross_vjp(A, B, torch.ones(n, m, dtype=torch.float64))
    assert n * m <= allocations.largest_elements < 1.01 * n * m


@every_kernel
def test_writes_into_the_buffer_it_is_given(kernel: Kernel) -> None:
    A, B = features(kernel, awkward_inputs(), awkward_inputs(seed=4)[:7])
    out = torch.full((len(A), len(B)), torch.nan, dtype=torch.float64)
    result = kernel.cross(A, B, out=out)
    assert result.data_ptr() == out.data_ptr()
    assert torch.equal(out, kernel.cross(A, B))
    K_bar = torch.ones_like(out)
    with_scratch = kernel.cross_vjp(A, B, K_bar.clone(), scratch=out)
    for name, value in kernel.cross_vjp(A, B, K_bar).items():
        assert torch.equal(value, with_scratch[name])


@every_kernel
def test_returns_the_kind_of_array_that_came(kernel: Kernel) -> None:
    X = awkward_inputs()
    assert isinstance(kernel(X), np.ndarray)
    assert isinstance(kernel.diag(X), np.ndarray)
    assert isinstance(kernel(torch.tensor(X)), torch.Tensor)
    assert np.array_equal(kernel(torch.tensor(X), torch.tensor(X[:3])).numpy(), kernel(X, X[:3]))
    assert np.allclose(kernel(X.astype(np.float32)), kernel(X.astype(np.float32).astype(float)))


@every_kernel
def test_copies_and_pickles_are_equal(kernel: Kernel) -> None:
    assert copy.deepcopy(kernel) == kernel
    assert pickle.loads(pickle.dumps(kernel)) == kernel
    assert hash(copy.deepcopy(kernel)) == hash(kernel)
    assert kernel.with_parameters({}) == kernel
    name, value = next(iter(kernel.parameters.items()))
    assert kernel.with_parameters({name: value * 1.5}) != kernel
