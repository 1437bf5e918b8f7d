"""Predictions without a factor of K + sI, against those of the exact GP by Cholesky."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from nearexact.gp import gpr_objective, greedy_variance, iterative_posterior
from nearexact.gp.budget import TimeIsUpError
from nearexact.gp.iterative_posterior import IterativePosterior, ModelSolver
from nearexact.gp.neighbours import SIZES, Extrapolation, nearest_rows, nearest_variances
from nearexact.gp.posterior import ExactPosterior
from nearexact.gp.sparse import SparseObjective
from nearexact.gp.stored_kernel import StoredKernel
from nearexact.kernels import Kernel, Linear, Matern32, SquaredExponential
from tests.problems import KERNELS, standardised

NOISE = 0.05
ROUGH = SquaredExponential([0.4, 0.5, 0.8], 1.3)
N = 600


def both(kernel: Kernel, s: float = NOISE, n: int = N, m: int = 60) -> tuple[IterativePosterior, ExactPosterior]:
    X, y = (torch.tensor(values) for values in standardised(n))
    objective = SparseObjective(kernel, s, X, y, X[torch.from_numpy(greedy_variance(kernel, X, m, seed=0))])
    solver = ModelSolver(objective, kernel, s, StoredKernel(X, 10**9))
    end = solver.finish(torch.zeros_like(y), 1e-4, seed=0)
    posterior = IterativePosterior.of(solver.factorisation, X, y, end.weights, end.residual_bound, end.variances)
    return posterior, gpr_objective(kernel, s, X, y).factorise(kernel, s)


NEW = standardised(200, seed=9)[0]


@pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS.keys())
def test_the_mean_is_the_exact_one_within_what_is_proved(kernel: Kernel) -> None:
    posterior, exact = both(kernel, n=150, m=20)
    mean, _ = posterior.predict(NEW[:20])
    assert posterior.mean_error <= 2e-4
    room = posterior.residual_bound**0.5 * exact.kernel.diag(torch.tensor(NEW[:20])).sqrt() + 1e-9
    assert ((mean - exact.mean(NEW[:20])).abs() <= room).all()
    assert torch.allclose(posterior.mean(NEW[:20]), mean, atol=1e-12)


@pytest.mark.parametrize(
    ("kernel", "median", "most"),
    [(Matern32([0.3, 0.5, 0.8], 1.3), 0.01, 0.05), (ROUGH, 0.01, 0.05), (Linear([1.0, 0.3, 0.2], 0.5), 0.01, 0.05)],
    ids=["matern32", "squared_exponential", "linear"],
)
def test_variances_are_near_the_exact_ones(kernel: Kernel, median: float, most: float) -> None:
    """Where inducing points are far too few, where nearest rows are, and where both are enough."""
    posterior, exact = both(kernel)
    _, variance = posterior.predict(NEW)
    errors = (variance / exact.predict(NEW)[1] - 1.0).abs()
    assert float(errors.median()) <= median
    assert float(errors.quantile(0.95)) <= most


def test_extrapolation_learns_what_nearest_rows_leave_out() -> None:
    """A smooth function with little noise: 256 of 1500 rows leave much more variance than all of them."""
    kernel = SquaredExponential([1.0, 1.2, 1.5], 1.0)
    posterior, exact = both(kernel, 0.1, n=1500, m=20)
    expected = exact.predict(NEW)[1]
    features = kernel.features(torch.tensor(NEW), posterior.X.mean(0))
    of_X = kernel.features(posterior.X, posterior.X.mean(0))
    nearest = nearest_rows(kernel.cross(features, of_X), kernel.diagonal(of_X), 0.1)
    near = nearest_variances(kernel, 0.1, of_X, features, nearest)[:, -1]
    before, after = ((values / expected - 1.0).abs().median() for values in (near, posterior.predict(NEW)[1]))
    assert float(after) <= 0.25 * float(before)
    assert (near >= expected * (1.0 - 1e-9)).all()


def test_nearest_variances_fall_to_the_exact_one_as_rows_are_added() -> None:
    X, y = standardised(200)  # fewer than the largest size
    exact = gpr_objective(ROUGH, NOISE, X, y).factorise(ROUGH, NOISE)
    centre = torch.tensor(X).mean(0)
    of_X, of_new = (ROUGH.features(torch.tensor(rows), centre) for rows in (X, NEW[:30]))
    K = ROUGH.cross(of_new, of_X)
    near = nearest_variances(ROUGH, NOISE, of_X, of_new, nearest_rows(K, ROUGH.diagonal(of_X), NOISE))
    assert near.shape == (30, len(SIZES))
    assert (near[:, 1:] <= near[:, :-1] * (1.0 + 1e-12)).all()
    assert torch.allclose(near[:, -1], exact.predict(NEW[:30])[1], rtol=1e-8)


def test_extrapolation_never_exceeds_what_is_proved_nor_what_was_seen() -> None:
    near = torch.tensor([[1.0, 0.8, 0.6, 0.5], [1.0, 0.9, 0.7, 0.3], [0.9, 0.8, 0.5, 0.4]], dtype=torch.float64)
    sparse, exact = torch.tensor([0.6, 0.5, 0.5], dtype=near.dtype), torch.tensor([0.4, 0.2, 0.25], dtype=near.dtype)
    learnt = Extrapolation.learnt(near, sparse, exact)
    steep = torch.tensor([[1.0, 0.1, 0.01, 0.001], [1.0, 1.0, 1.0, 1.0]], dtype=near.dtype)
    found = learnt(steep, torch.ones(2, dtype=near.dtype))
    assert float(found[0]) >= 0.001 * 0.625 * (1.0 - 1e-9)  # the least share that was seen
    assert float(found[1]) == pytest.approx(1.0)  # far from all rows nothing is extrapolated
    assert torch.equal(Extrapolation.none(near)(near, sparse), near[:, -1])


def test_joint_covariance_and_draws_are_those_of_the_exact_gp() -> None:
    posterior, exact = both(ROUGH, n=300)
    mean, covariance = posterior.joint(NEW[:40])
    expected_mean, expected = exact.joint(NEW[:40])
    assert torch.allclose(mean, expected_mean, atol=1e-5)
    assert torch.allclose(covariance, expected, atol=1e-7)
    assert torch.allclose(posterior.sample(NEW[:5], 3, 7), exact.sample(NEW[:5], 3, 7), atol=1e-4)


def test_what_is_asked_later_makes_use_of_blocks_where_a_function_is_rough(monkeypatch: pytest.MonkeyPatch) -> None:
    posterior, exact = both(ROUGH, m=20)
    smooth, _ = both(SquaredExponential([5.0, 5.0, 5.0], 1.0), m=60)
    monkeypatch.setattr(iterative_posterior, "FEWEST_BLOCKS", 0)
    monkeypatch.setattr(iterative_posterior, "GIVEN", 60)
    assert ModelSolver.of(posterior).blocks is not None
    assert ModelSolver.of(smooth).blocks is None
    for found, expected in zip(posterior.joint(NEW[:20]), exact.joint(NEW[:20]), strict=True):
        assert torch.allclose(found, expected, atol=2e-4)
    monkeypatch.setattr(iterative_posterior, "blocks_memory", lambda *_: 10**15)  # no room for them
    assert ModelSolver.of(posterior).blocks is None


def test_a_finished_solution_brackets_the_quadratic_form() -> None:
    X, y = (torch.tensor(values) for values in standardised(200))
    solver = ModelSolver(SparseObjective(ROUGH, NOISE, X, y, X[:20]), ROUGH, NOISE, StoredKernel(X, 10**9))
    end = solver.finish(torch.zeros_like(y), 0.5, seed=0)
    K = torch.tensor(ROUGH(X.numpy()) + NOISE * np.eye(200))
    truth = float(y @ torch.linalg.solve(K, y))
    assert end.quadratic.lower <= truth * (1.0 + 1e-9)
    assert end.quadratic.upper >= truth * (1.0 - 1e-9)
    assert end.quadratic.width == pytest.approx(end.residual_bound)
    finer = solver.finish(end.weights, 1e-4, seed=0)
    assert finer.residual_bound < end.residual_bound
    assert torch.allclose(K @ finer.weights, y, atol=1e-4)


@pytest.mark.parametrize(("looks", "is_usable"), [(12, False), (150, True)])
def test_when_time_is_up_weights_are_taken_if_they_are_near_enough(looks: int, is_usable: bool) -> None:
    X, y = (torch.tensor(values) for values in standardised(300))
    rough, noise = SquaredExponential([0.2, 0.2, 0.2], 1.0), 0.01
    solver = ModelSolver(SparseObjective(rough, noise, X, y, X[:20]), rough, noise, StoredKernel(X, 10**9))
    left = iter(range(looks))

    def check() -> None:
        if next(left, None) is None:
            raise TimeIsUpError

    solver.check = check
    if not is_usable:
        with pytest.raises(TimeIsUpError):
            solver.finish(None, 1e-9, seed=0, rows=8)
        return
    end = solver.finish(None, 1e-9, seed=0, rows=8)
    assert (end.variances.as_tensor() == 0.0).all()  # upper bounds, as nothing is known
    K = torch.tensor(rough(X.numpy()) + noise * np.eye(300))
    residual = y - K @ end.weights
    assert 0.0 < float(residual.square().mean()) <= 0.25 * noise
    truth = torch.linalg.solve(K, y)
    assert end.quadratic.lower <= float(y @ truth) * (1.0 + 1e-9) <= end.quadratic.upper * (1.0 + 2e-9)


def test_with_few_rows_a_row_is_not_its_own_neighbour() -> None:
    """All other rows are neighbours then, and nothing is left to extrapolate."""
    posterior, exact = both(ROUGH, n=100, m=20)
    assert torch.allclose(posterior.extrapolation, torch.zeros(len(SIZES) + 1, dtype=torch.float64), atol=1e-2)
    assert torch.allclose(posterior.predict(NEW)[1], exact.predict(NEW)[1], rtol=0.01)
