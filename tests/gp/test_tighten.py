"""Bounds by conjugate gradients and moments: theorems on random problems, formulas against dense algebra, limits."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nearexact.gp import (
    Interval,
    Iteration,
    SparseObjective,
    conjugate_gradients,
    gpr_objective,
    log_determinant,
    sgpr_objective,
    tighten_bounds,
)
from nearexact.gp.factorisation import Factorisation
from nearexact.gp.kernel_product import KernelBlocks, KernelProduct
from nearexact.gp.log_determinant import Moments, unexplained
from nearexact.gp.quadratic import Preconditioner, quadratic_of
from nearexact.gp.row_noise import RowNoise
from nearexact.gp.tighten import bounds_with_weights
from nearexact.kernels import Kernel, Matern12, SquaredExponential
from tests.gp import dense
from tests.gp.helpers import Problem, problems, slack
from tests.problems import KERNELS, SIMPLE, regression
from tests.tensors import Allocations

every_kernel = pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS.keys())
NOISE = 0.05


def sparse(
    kernel: Kernel, s: float, X: np.ndarray, y: np.ndarray, Z: np.ndarray, **options: object
) -> tuple[SparseObjective, Factorisation]:
    objective = sgpr_objective(kernel, s, X, y, Z, **options)  # type: ignore[arg-type]
    return objective, objective.factorise(kernel, s, residuals=True)


def half_cglb(f: Factorisation, quadratic: Interval) -> float:
    """The lower bound of Artemev et al. (2021): the trace inside one logarithm, and conjugate gradients."""
    excess = f.n * math.log1p(f.trace / (f.n * f.noise_variance))
    return -0.5 * (f.n * math.log(2.0 * math.pi) + f.log_det + excess + quadratic.upper)


@settings(max_examples=300, deadline=None)
@given(problems())
def test_every_bound_holds_and_together_they_are_never_looser(problem: Problem) -> None:
    """The allowance is the rounding error of a log likelihood: 1e-8 plus 10 eps·(1 + tr K/s), relative to its size.

    Bounds also leave room for what rounding may have hidden of residual variances; formulas of others do not.
    """
    kernel, s, X, y, m = problem
    objective, f = sparse(kernel, s, X, y, X[np.random.default_rng(m).permutation(len(X))[:m]])
    exact = gpr_objective(kernel, s, X, y).factorise(kernel, s).bounds
    room = slack(problem, exact.elbo) + slack(problem, exact.quadratic.upper)
    others = max(f.elbo, f.tight_bound)  # Titsias 2009 and 2025
    hidden = room + 2.0 * f.residual_error / s * (f.n + abs(others))
    steps: list[Iteration] = []
    result = tighten_bounds(objective, f, iterations=10, tolerance=0.0, on_iteration=steps.append)
    for bounds in (f.bounds, *(step.bounds for step in steps), result.bounds):
        assert bounds.lower <= exact.elbo + room
        assert exact.elbo <= bounds.upper + room
        assert bounds.lower >= others - hidden
        assert bounds.upper <= f.upper_bound + room  # Titsias 2014
    for step in steps:
        assert step.quadratic.lower <= exact.quadratic.upper + room
        assert exact.quadratic.lower <= step.quadratic.upper + room
        assert step.bounds.lower >= half_cglb(f, step.quadratic) - hidden
    every = [f.bounds, *(step.bounds for step in steps), result.bounds]
    assert all(b.lower >= a.lower and b.upper <= a.upper for a, b in pairwise(every))  # monotone, to the bit
    logs = unexplained(objective, f).sum_of_logs()
    assert logs.lower <= exact.log_det.lower - f.log_det + room
    assert exact.log_det.lower - f.log_det <= logs.upper + room


@settings(max_examples=100, deadline=None)
@given(problems(), st.floats(-12.0, 0.0), st.booleans())
def test_weights_that_are_nearly_right_prove_where_the_quadratic_form_lies(
    problem: Problem, digits: float, differs: bool
) -> None:
    kernel, s, X, y, m = problem
    rng = np.random.default_rng(m)
    noise = RowNoise(*torch.from_numpy(rng.uniform(0.5, 2.0, size=(2, len(y))) * [[1.0], [s]])) if differs else None
    objective, f = sparse(kernel, s, X, y, X[:m], row_noise=noise)
    exact = gpr_objective(kernel, s, X, y, row_noise=noise).factorise(kernel, s)
    weights = exact.weights * (1.0 + 10.0**digits * torch.from_numpy(rng.normal(size=len(y))))
    room = slack(problem, exact.lml) + slack(problem, exact.bounds.quadratic.upper)
    found = quadratic_of(objective, f, weights, lambda: None)
    assert found.lower <= exact.bounds.quadratic.upper + room
    assert exact.bounds.quadratic.lower <= found.upper + room
    bounds = bounds_with_weights(objective, f, weights)
    assert bounds.lower <= exact.lml + room
    assert exact.lml <= bounds.upper + room
    assert bounds.lower >= f.bounds.lower


def test_without_time_weights_prove_nothing_more() -> None:
    X, y = regression(100)
    objective, f = sparse(SIMPLE["matern12"], NOISE, X, y, X[:5])
    assert bounds_with_weights(objective, f, torch.zeros(100, dtype=torch.float64), time_limit=-1.0) == f.bounds


@every_kernel
@pytest.mark.parametrize("keeps_v", [True, False])
def test_the_gap_of_each_iteration_is_the_formula(kernel: Kernel, keeps_v: bool) -> None:
    """½ Σ log(1 + d_n/s) + ½ rᵀP⁻¹r with dense P and r = y − K̂v; and the certificate's is never above it."""
    X, y = regression(250)
    objective = sgpr_objective(kernel, NOISE, X, y, X[:4])
    objective.sweeps.plan = replace(objective.plan, keeps_v=keeps_v, rows=100)
    f = objective.factorise(kernel, NOISE, residuals=True)
    K = kernel(X)
    Q = dense.q_matrix(kernel, X, X[:4], f.jitter)
    P, d = Q + NOISE * np.eye(250), np.maximum(np.diag(K) - np.diag(Q), 0.0)
    assert f.residuals is not None
    steps = 0
    for step in conjugate_gradients(objective, f, tolerance=0.0):
        r = y - K @ step.solution.numpy() - NOISE * step.solution.numpy()
        expected = 0.5 * np.log1p(d / NOISE).sum() + 0.5 * r @ np.linalg.solve(P, r)
        hadamard = float(torch.log1p(f.residuals / NOISE).sum())
        assert 0.5 * (hadamard + step.quadratic.width) == pytest.approx(expected, rel=1e-8, abs=1e-8)
        assert step.bounds.upper - step.bounds.lower <= expected * (1.0 + 1e-8) + 1e-8
        steps += 1
        if steps == 8:
            break
    assert steps
    bounds = tighten_bounds(objective, f, iterations=8, tolerance=0.0).bounds
    assert bounds.upper - bounds.lower <= expected * (1.0 + 1e-8) + 1e-8
    lml = dense.lml(kernel, NOISE, X, y)
    assert bounds.lower - 1e-6 <= lml <= bounds.upper + 1e-6


@every_kernel
@pytest.mark.parametrize("rows", [7, 50, 1000])
@pytest.mark.parametrize("columns", [None, 1, 4])
def test_products_are_those_of_the_whole_matrix(kernel: Kernel, rows: int, columns: int | None) -> None:
    X, v = regression(100)
    v = v if columns is None else np.stack([v**power for power in range(1, columns + 1)], axis=1)
    product = KernelProduct(kernel, NOISE, torch.tensor(X), rows)
    expected = kernel(X) @ v + NOISE * v
    np.testing.assert_allclose(product(torch.tensor(v)).numpy(), expected, rtol=1e-10, atol=1e-12 * abs(expected).max())


@pytest.mark.parametrize("memory_limit", ["1GB", "4MB"])
def test_the_preconditioner_is_the_inverse(memory_limit: str) -> None:
    X, y = regression(3000)
    kernel = SquaredExponential([0.6, 1.1, 2.0], 1.7)
    objective, f = sparse(kernel, NOISE, X, y, X[:60], memory_limit=memory_limit)
    assert objective.plan.keeps_v == (memory_limit == "1GB")
    P = dense.q_matrix(kernel, X, X[:60], f.jitter) + NOISE * np.eye(3000)
    expected = np.linalg.solve(P, y)
    for _ in range(2):  # V at hand, and computed again
        solved, quadratic = Preconditioner(objective, f)(torch.tensor(y))
        np.testing.assert_allclose(solved.numpy(), expected, rtol=1e-6, atol=1e-7)
        assert quadratic == pytest.approx(y @ expected, rel=1e-9)
    objective.factorise(SquaredExponential([1.0] * 3), NOISE)  # overwrites V
    assert Preconditioner(objective, f)(torch.tensor(y))[1] == pytest.approx(y @ expected, rel=1e-9)


@every_kernel
@pytest.mark.parametrize("rows", [7, 64])
def test_moments_are_those_of_the_dense_matrices(kernel: Kernel, rows: int) -> None:
    X, y = regression(64)
    objective, f = sparse(kernel, NOISE, X, y, X[:4])
    Q = dense.q_matrix(kernel, X, X[:4], f.jitter)
    A = np.linalg.solve(Q + NOISE * np.eye(64), kernel(X) - Q)
    shares: list[float] = []
    moments = unexplained(objective, f, rows=rows, on_share=shares.append)
    assert moments.n == 64
    assert moments.first == pytest.approx(np.trace(A), rel=1e-6, abs=1e-7)
    assert moments.second == pytest.approx(np.trace(A @ A), rel=1e-6, abs=1e-7)
    assert shares == sorted(shares)
    assert 0.0 <= shares[0] <= shares[-1] < 1.0


@settings(max_examples=500, deadline=None)
@given(st.lists(st.floats(0.0, 1e6), min_size=1, max_size=30))
def test_two_moments_bound_a_sum_of_logarithms(values: list[float]) -> None:
    mu = np.array(values)
    logs = Moments(len(mu), float(mu.sum()), float((mu**2).sum())).sum_of_logs()
    exact = float(np.log1p(mu).sum())
    assert logs.lower <= exact + 1e-9 * (1.0 + exact)
    assert exact <= logs.upper + 1e-6 * (1.0 + exact)
    if mu.mean() > 1e-90:
        assert logs.upper <= len(mu) * np.log1p(mu.mean()) * (1.0 + 1e-6)  # never looser than Jensen's inequality


@pytest.mark.parametrize(("n", "value"), [(1, 2.5), (7, 0.3), (1000, 1e-9)])
def test_equal_numbers_are_known_from_their_moments(n: int, value: float) -> None:
    logs = Moments(n, n * value, n * value**2).sum_of_logs()
    assert logs.lower == pytest.approx(n * math.log1p(value), rel=1e-6)
    assert logs.upper == pytest.approx(n * math.log1p(value), rel=1e-6)
    assert Moments(n, 0.0, 0.0).sum_of_logs() == Interval(0.0)


def test_nothing_of_size_n_by_n_is_stored() -> None:
    n, m = 3000, 20
    X, y = (torch.tensor(part) for part in regression(n))
    for kernel in (SquaredExponential([1.0] * 3), Matern12([1.0] * 3)):
        objective, f = sparse(kernel, NOISE, X, y, X[:m])
        with Allocations() as allocations:
            tighten_bounds(objective, f, iterations=3)
        assert allocations.largest_elements <= log_determinant.BLOCK_ROWS**2 < n * n / 8


def test_iterations_end_by_themselves() -> None:
    X, y = regression(400)
    kernel = SquaredExponential([1.0] * 3)
    objective, f = sparse(kernel, NOISE, X, y, X[:50])
    result = tighten_bounds(objective, f)
    assert result.finished
    assert 0 < result.iterations < 20
    assert result.bounds.residual_gap <= max(1e-4 * 400, 1e-3 * f.bounds.trace_gap)
    assert tighten_bounds(objective, f, iterations=1).iterations == 1
    # Without a tolerance, they go on until nothing shrinks any more; there is no end without progress.
    endless = tighten_bounds(objective, f, iterations=10_000, tolerance=0.0)
    assert endless.iterations < 1000
    assert endless.bounds.residual_gap < 1e-6


def test_no_iterations_cost_nothing() -> None:
    X, y = regression(400)
    objective, f = sparse(SquaredExponential([1.0] * 3), NOISE, X, y, X[:50])
    with Allocations() as allocations:
        result = tighten_bounds(objective, f, iterations=0)
    assert result.bounds == f.bounds
    assert result.iterations == 0
    assert allocations.largest_elements <= 400 * 50


def test_time_limit_is_kept_and_what_was_proved_remains(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that moves with the work: a second for each block of K."""
    X, y = regression(1000)
    kernel = SquaredExponential([0.7] * 3)
    objective, f = sparse(kernel, NOISE, X, y, X[:50])
    now, block = [0.0], KernelBlocks.__call__

    def slow_block(self: KernelBlocks, i: int, j: int) -> torch.Tensor:
        now[0] += 1.0
        return block(self, i, j)

    monkeypatch.setattr(KernelBlocks, "__call__", slow_block)
    blocks = 6  # of a product: three by three, half of them
    whole = tighten_bounds(objective, f, clock=lambda: now[0])
    assert whole.finished
    assert whole.seconds == blocks * whole.iterations + 1  # and the moments have a block of their own
    gaps = []
    for limit in (0.0, 3.0, 6.5, 20.0, blocks * whole.iterations - 1.0):
        started, steps = now[0], []
        result = tighten_bounds(objective, f, time_limit=limit, clock=lambda: now[0], on_iteration=steps.append)
        assert not result.finished
        assert now[0] - started <= limit + 3.0  # blocks between two looks at the clock
        assert result.iterations == len(steps) == int(limit // blocks)
        assert result.bounds == (steps[-1].bounds if steps else f.bounds)
        gaps.append(result.bounds.upper - result.bounds.lower)
    assert gaps == sorted(gaps, reverse=True)
    assert whole.bounds.upper - whole.bounds.lower < gaps[-1]


def test_moments_are_left_out_where_memory_is_short() -> None:
    X, y = regression(3000)
    kernel = SquaredExponential([2.0] * 3)
    objective, f = sparse(kernel, NOISE, X, y, X[:60], memory_limit="4MB")
    result = tighten_bounds(objective, f)
    assert result.finished
    assert result.bounds.log_det == f.bounds.log_det
    assert result.bounds.residual_gap < 0.01 * f.bounds.residual_gap
    with pytest.raises(ValueError, match="does not fit"):
        objective.whole_V(f)
    roomy = tighten_bounds(*sparse(kernel, NOISE, X, y, X[:60]))
    assert roomy.bounds.trace_gap < 0.7 * result.bounds.trace_gap


@pytest.mark.parametrize("noise", [1e-5, 0.1])
@pytest.mark.parametrize(
    "case", ["one row", "two equal rows", "copies", "constant target", "zero target", "all points", "far apart"]
)
def test_extreme_data(case: str, noise: float) -> None:
    X, y = regression(60, noise=0.0)
    kernel = SquaredExponential([2.0, 3.0, 4.0], 10.0)
    m = 20
    match case:
        case "one row":
            X, y, m = X[:1], y[:1], 1
        case "two equal rows":
            X, y, m = X[[0, 0]], y[:2], 1
        case "copies":
            X = X[np.arange(60) % 10]
        case "constant target":
            y = np.full(60, 3.0)
        case "zero target":
            y = np.zeros(60)
        case "all points":
            m = 60
        case "far apart":
            X = X * 1e4
    objective, f = sparse(kernel, noise, X, y, X[:m])
    result = tighten_bounds(objective, f, tolerance=0.0)
    lml = gpr_objective(kernel, noise, X, y).factorise(kernel, noise).lml
    room = slack((kernel, noise, X, y, m), lml)
    assert result.finished
    assert result.bounds.lower <= lml + room
    assert lml <= result.bounds.upper + room
    assert math.isfinite(result.bounds.lower)
    assert math.isfinite(result.bounds.upper)
