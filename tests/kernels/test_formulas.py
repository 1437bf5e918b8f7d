"""Kernels that are nothing but a formula; that they are kernels like any other is in `test_conformance`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch
from sklearn.base import clone
from torch import Tensor

from nearexact import GPRegressor, SGPRegressor, kernels
from nearexact.kernels import ArcCosine, Kernel, Linear
from nearexact.kernels.autodiff import TEMPORARIES
from nearexact.kernels.base import Tensors
from tests.kernels import formulas
from tests.problems import FORMULAS, SIMPLE, features, regression
from tests.tensors import Allocations

TWINS: list[tuple[Kernel, type[Kernel]]] = [
    (SIMPLE["squared_exponential"], formulas.SquaredExponentialTwin),
    (SIMPLE["matern12"], formulas.Matern12Twin),
    (SIMPLE["matern32"], formulas.Matern32Twin),
    (SIMPLE["matern52"], formulas.Matern52Twin),
    (SIMPLE["periodic"], formulas.PeriodicTwin),
    (SIMPLE["linear"], formulas.LinearTwin),
    *((SIMPLE[f"arc_cosine_{order}"], formulas.ArcCosineTwin) for order in (0, 1, 2)),
]


def test_every_built_in_kernel_has_a_twin() -> None:
    names = {type(kernel).__name__ for kernel, _ in TWINS}
    assert names == set(kernels.__all__) - {"Kernel", "Composite", "named_kernel"}


@pytest.mark.parametrize(("kernel", "kind"), TWINS, ids=[repr(kernel) for kernel, _ in TWINS])
def test_gradients_by_hand_are_those_of_autodiff(kernel: Kernel, kind: type[Kernel]) -> None:
    settings = {name: getattr(kernel, name) for name in kind.settings}
    twin = kind(**settings, **kernel.parameters)
    X, Z = regression(150)[0], regression(40, seed=1)[0]
    assert np.allclose(kernel(X, Z), twin(X, Z), rtol=1e-10)
    rng = np.random.default_rng(2)
    K_bar, weights = torch.tensor(rng.normal(size=(150, 40))), torch.tensor(rng.normal(size=150))
    by_hand = kernel.cross_vjp(*features(kernel, X, Z), K_bar.clone())
    by_torch = twin.cross_vjp(*features(twin, X, Z), K_bar.clone())
    assert by_hand.keys() == by_torch.keys()
    for name in by_hand:
        assert torch.allclose(by_hand[name], by_torch[name], rtol=1e-8), name
    if isinstance(kernel, ArcCosine):  # the angle on the diagonal is zero, where acos has no derivative
        return
    assert np.allclose(kernel.diag(X), twin.diag(X), rtol=1e-7)
    by_hand = kernel.diagonal_vjp(*features(kernel, X), weights)
    by_torch = twin.diagonal_vjp(*features(twin, X), weights)
    for name in by_hand:
        assert torch.allclose(by_hand[name], by_torch[name], rtol=1e-6, atol=1e-12), name


@pytest.mark.parametrize("n_inputs", [1, 40])
def test_memory_stays_within_what_is_promised(n_inputs: int) -> None:
    """Although the formula forms [N, M, D] differences: blocks of rows are as small as that takes."""
    n, m = 800, 60
    kernel = formulas.RationalQuadratic().for_inputs(n_inputs)
    rng = np.random.default_rng(0)
    A, B = features(kernel, rng.normal(size=(n, n_inputs)), rng.normal(size=(m, n_inputs)))
    K_bar = torch.ones(n, m, dtype=torch.float64)
    with Allocations() as allocations:
        cross = kernel.against(B)
        cross.values(A, out=torch.empty_like(K_bar))
        cross.add_adjoint(A, K_bar)
    assert kernel.temporaries == TEMPORARIES
    assert allocations.peak_bytes <= 8 * (1 + TEMPORARIES) * n * m


def test_sums_over_chunks_are_sums_over_all_rows() -> None:
    X, Z = regression(90)[0], regression(20, seed=1)[0]
    for kernel in FORMULAS.values():
        kernel = kernel.for_inputs(3)
        A, B = features(kernel, X, Z)
        K_bar = torch.tensor(np.random.default_rng(2).normal(size=(90, 20)))
        expected, cross = kernel.cross_vjp(A, B, K_bar.clone()), kernel.against(B)
        for rows in (slice(0, 7), slice(7, 50), slice(50, 90)):
            cross.add_adjoint(A[rows], K_bar[rows].clone())
        for name, value in cross.gradients().items():
            assert torch.allclose(value, expected[name], rtol=1e-10)


@dataclass(frozen=True)
class Constant(Kernel):
    """The same covariance everywhere: a formula without X, Z and its second parameter."""

    variance: npt.ArrayLike = 1.0
    bias_variance: npt.ArrayLike = 1.0

    def formula(self, p: Tensors, X: Tensor, Z: Tensor) -> Tensor:
        return p["variance"].expand(len(X), len(Z))


def test_a_parameter_without_influence_has_the_gradient_zero() -> None:
    X = regression(12)[0]
    assert np.array_equal((Constant(2.0) * Constant(3.0) + Constant())(X), np.full((12, 12), 7.0))
    (A,) = features(Constant(), X)
    gradients = Constant().cross_vjp(A, A[:5], torch.ones(12, 5, dtype=torch.float64))
    assert {name: float(value) for name, value in gradients.items()} == {"variance": 60.0, "bias_variance": 0.0}
    gradients = Constant().diagonal_vjp(A, torch.ones(12, dtype=torch.float64))
    assert {name: float(value) for name, value in gradients.items()} == {"variance": 12.0, "bias_variance": 0.0}


@pytest.mark.parametrize("formula", [lambda p, X, Z: X, lambda p, X, Z: (X @ Z.T).sum()], ids=["rows", "number"])
def test_a_formula_of_the_wrong_shape_is_named(formula: Callable[[Tensors, Tensor, Tensor], Tensor]) -> None:
    class Wrong(Constant):
        def formula(self, p: Tensors, X: Tensor, Z: Tensor) -> Tensor:
            return formula(p, X, Z)

    X = np.ones((4, 3))
    with pytest.raises(ValueError, match=r"one value for each pair of 4 rows of X and 2 rows of Z, got \("):
        Wrong()(X, X[:2])
    with pytest.raises(ValueError, match=r"must return one value for each pair of"):
        Wrong().diag(X)


def test_a_kernel_without_a_formula_says_so() -> None:
    @dataclass(frozen=True)
    class Empty(Kernel):
        variance: npt.ArrayLike = 1.0

    with pytest.raises(TypeError, match=r"Empty must define formula\(self, p, X, Z\)"):
        Empty()(np.ones((2, 1)))


@pytest.mark.parametrize("kernel", [formulas.RationalQuadratic(), formulas.RationalQuadratic() + Linear()], ids=repr)
@pytest.mark.parametrize("model", [SGPRegressor(max_inducing=20), GPRegressor()], ids=repr)
def test_estimators_fit_with_a_formula_but_do_not_save_it(
    model: SGPRegressor | GPRegressor, kernel: Kernel, tmp_path: Path
) -> None:
    X, y = regression(160, d=2)
    model = clone(model).set_params(kernel=kernel, random_state=0, time_limit=None).fit(X[:100], y[:100])
    assert model.kernel_.parameters.keys() == kernel.parameters.keys()
    assert model.score(X[100:], y[100:]) > 0.9
    assert -1e-9 <= model.certify().gap_per_point < 0.5
    with pytest.raises(ValueError, match=r"only kernels of nearexact\.kernels can be saved, got RationalQuadratic"):
        model.save(tmp_path / "model.nx")
    assert list(tmp_path.iterdir()) == []
