"""Rows in blocks: exact where all rows before are given, near where many are, with gradients, draws and an inverse."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from nearexact.gp import chain_rule, gpr_objective
from nearexact.gp.block_preconditioner import BlockPreconditioner
from nearexact.gp.parameters import ParameterLayout
from nearexact.gp.row_blocks import RowBlocks
from nearexact.gp.row_noise import RowNoise
from nearexact.gp.safety import NumericalError
from nearexact.gp.sparse import SparseObjective
from nearexact.kernels import Kernel, Matern12, Periodic, SquaredExponential
from nearexact.typing import FloatArray
from tests.gp.helpers import assert_gradient_is_right
from tests.problems import KERNELS, standardised

every_kernel = pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS.keys())
NOISE, ENOUGH = 0.05, 10**9


class Density:
    """The negative density of targets as a function of θ."""

    def __init__(
        self,
        kernel: Kernel,
        n: int,
        given: int,
        y: FloatArray | None = None,
        row_noise: RowNoise | None = None,
        weights: torch.Tensor | None = None,
    ) -> None:
        X, usual = standardised(n)
        self.layout = ParameterLayout(kernel, X.shape[1])
        self.theta = self.layout.pack(self.layout.kernel, NOISE)
        self.weights = weights
        self.y = torch.from_numpy(usual if y is None else y)
        self.blocks = RowBlocks.chosen(self.layout.kernel, NOISE, torch.from_numpy(X), given, row_noise=row_noise)

    def __call__(self, theta: FloatArray) -> tuple[float, FloatArray]:
        return self.layout.negated(
            lambda kernel, s: self.blocks.density(kernel, s, self.y, weights=self.weights), theta
        )


def some_noise(n: int, known: float) -> RowNoise:
    factors = np.random.default_rng(0).uniform(0.5, 2.0, size=n)
    return RowNoise(torch.from_numpy(factors), torch.full((n,), known, dtype=torch.float64))


@every_kernel
def test_it_is_the_exact_density_where_all_rows_before_are_given(kernel: Kernel) -> None:
    exact, density = gpr_objective(kernel, NOISE, *standardised(90)), Density(kernel, 90, given=60)
    assert len(density.blocks.blocks) == 3
    (value, gradient), (expected, expected_gradient) = density(density.theta), exact(density.theta)
    assert value == pytest.approx(expected, rel=1e-6)
    assert gradient == pytest.approx(expected_gradient, rel=1e-5, abs=1e-5 * np.abs(expected_gradient).max())
    log_det, quadratic = density.blocks.parts(density.layout.kernel, NOISE, density.y)
    assert value == pytest.approx(0.5 * (90 * math.log(2.0 * math.pi) + log_det + quadratic))


@every_kernel
def test_its_gradient_is_right(kernel: Kernel) -> None:
    density = Density(kernel, 60, given=10)
    assert_gradient_is_right(density, density.theta)


@pytest.mark.parametrize("known", [0.0, 0.02])
def test_several_targets_and_noise_of_rows_have_their_gradients(known: float) -> None:
    y, noise = np.random.default_rng(0).normal(size=(60, 2)), some_noise(60, known)
    density = Density(Matern12(1.0), 60, 10, y, noise)
    assert_gradient_is_right(density, density.theta)
    whole = Density(Matern12(1.0), 60, 60, y, noise)
    exact = gpr_objective(Matern12(1.0), NOISE, standardised(60)[0], y, row_noise=noise)
    assert whole(whole.theta)[0] == pytest.approx(exact(whole.theta)[0])


def test_weights_are_those_of_quadratic_forms_beside_one_determinant() -> None:
    y, noise = np.random.default_rng(0).normal(size=(60, 2)), some_noise(60, 0.0)
    weighted = Density(Matern12(1.0), 60, 10, y, noise, weights=torch.tensor([0.7, -0.2], dtype=torch.float64))
    assert_gradient_is_right(weighted, weighted.theta)
    values = [Density(Matern12(1.0), 60, 10, y[:, i] * scale, noise) for i in (0, 1) for scale in (0.0, 1.0)]
    none, first, _, second = (value(value.theta)[0] for value in values)
    assert weighted(weighted.theta)[0] == pytest.approx(none + 0.7 * (first - none) - 0.2 * (second - none))


def test_with_more_rows_given_it_comes_nearer_to_the_exact_one() -> None:
    kernel, (X, y) = Matern12(0.5), standardised(600)
    exact = gpr_objective(kernel, NOISE, X, y)
    densities = [Density(kernel, 600, given) for given in (8, 32, 128)]
    log_dets = [density.blocks.parts(density.layout.kernel, NOISE, density.y)[0] for density in densities]
    K = torch.from_numpy(kernel.for_inputs(X.shape[1])(X) + NOISE * np.eye(600))
    assert log_dets[0] > log_dets[1] > log_dets[2] > float(torch.logdet(K))
    errors = [abs(density(density.theta)[0] - exact(density.theta)[0]) for density in densities]
    assert errors[2] < 0.3 * errors[0]
    assert errors[2] < 0.005 * 600


# ---- as a preconditioner ---------------------------------------------------------------------------------------------


def preconditioner(kernel: Kernel, n: int, given: int, row_noise: RowNoise | None = None) -> BlockPreconditioner:
    X, y = standardised(n)
    sparse = SparseObjective(kernel, NOISE, X, y, X[:10], row_noise=row_noise)
    f = sparse.factorise(sparse.layout.kernel, NOISE, residuals=True)
    chosen = RowBlocks.chosen(f.kernel, NOISE, sparse.X, given, row_noise=row_noise)
    return BlockPreconditioner(chosen, f)


@every_kernel
def test_with_all_rows_before_given_it_is_the_inverse(kernel: Kernel) -> None:
    X, _ = standardised(90)
    K = torch.from_numpy(kernel.for_inputs(X.shape[1])(X) + NOISE * np.eye(90))
    P, R = preconditioner(kernel, 90, 60), torch.randn(90, 3, dtype=torch.float64)
    solved, quadratics = P.solve(R)
    assert torch.allclose(solved, torch.linalg.solve(K, R), rtol=1e-5, atol=1e-5)
    assert torch.allclose(quadratics, (R * solved).sum(0))
    assert P.log_det == pytest.approx(float(torch.logdet(K)), abs=1e-5)


@pytest.mark.parametrize("known", [None, 0.0, 0.02])
def test_draws_have_the_covariance_whose_inverse_it_is(known: float | None) -> None:
    """P is what standard normal numbers become: from those of every unit vector P = ZZᵀ, and P⁻¹P = I."""
    noise = None if known is None else some_noise(120, known)
    P, one = preconditioner(Matern12(0.5), 120, 20, noise), torch.eye(120, dtype=torch.float64)
    Z = P.draws(one)
    assert torch.allclose(P.solve(Z @ Z.T)[0], one, atol=1e-8)
    scaled = 0.0 if noise is None else 2.0 * float(noise.scales(NOISE).log().sum())
    assert P.log_det + scaled == pytest.approx(2.0 * float(torch.linalg.slogdet(Z)[1]))


@every_kernel
def test_its_log_determinant_is_proved_to_be_no_less(kernel: Kernel) -> None:
    X, _ = standardised(200)
    K = torch.from_numpy(kernel.for_inputs(X.shape[1])(X) + NOISE * np.eye(200))
    P = preconditioner(kernel, 200, 20)
    assert P.log_det <= P.most_log_det <= P.log_det + 1e-3
    assert float(torch.logdet(K)) <= P.most_log_det


def test_rows_that_a_kernel_cannot_tell_apart_from_too_little_noise_end_in_an_error() -> None:
    X = torch.zeros(40, 2, dtype=torch.float64)
    blocks = RowBlocks.chosen(SquaredExponential([1.0, 1.0], 1.0), NOISE, X, 10)
    with pytest.raises(NumericalError, match="no Cholesky factor"):
        blocks.density(SquaredExponential([1.0, 1.0], 1.0), -0.5, torch.zeros(40))
    assert math.isfinite(blocks.density(SquaredExponential([1.0, 1.0], 1.0), NOISE, X[:, 0])[0])


def test_rows_are_known_to_be_near_where_one_lengthscale_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Correlations are then 0 between nearly all rows, which does not tell near ones from far ones."""
    random = np.random.default_rng(0)
    X = torch.from_numpy(random.uniform(size=(600, 3)))
    kernel = SquaredExponential([2e-4, 0.5, 0.5], 1.0)
    K = torch.from_numpy(kernel(X.numpy()) + 1e-3 * np.eye(600))

    def excess() -> float:
        blocks = RowBlocks.chosen(kernel, 1e-3, X, 16)
        logs = [float(2.0 * factor.L.diagonal().log().sum()) for factor in blocks.factors(kernel, 1e-3)]
        return sum(logs) - float(torch.logdet(K))

    found = excess()
    monkeypatch.setattr(chain_rule, "MOST_HALVINGS", 1)
    assert found < 0.1 * excess()


def test_rows_in_phase_are_near_however_far_away() -> None:
    X = torch.from_numpy(np.random.default_rng(0).uniform(0.0, 50.0, size=(400, 1)))
    kernel = Periodic(period=1.0, lengthscales=0.05, variance=1.0)
    blocks = RowBlocks.chosen(kernel, 0.01, X, 20)
    last, given = blocks.blocks[-1], blocks.known[-1]
    K = torch.from_numpy(kernel(X.numpy()))
    before = torch.cat(list(blocks.blocks[:-1]))
    assert float(K[last][:, given].amax(0).min()) >= float(K[last][:, before].amax(0).topk(20).values.min()) - 1e-4
