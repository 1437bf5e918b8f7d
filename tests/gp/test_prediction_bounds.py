"""Bounds on the exact GP's predictions: theorems in extended precision, limits, and factors that are wrong."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nearexact.gp import ExactPosterior, SparsePosterior, gpr_objective, sgpr_objective
from nearexact.gp.budget import Timer
from nearexact.gp.kernel_product import BLOCK_ROWS
from nearexact.gp.posterior import SparsePosterior as Sparse
from nearexact.gp.prediction_bounds import ExactSystem, PredictionBounds
from nearexact.gp.prediction_solvers import CholeskySolver, Solver, SparseSolver
from nearexact.gp.tighten_predictions import TightenedPredictions, nearest_rows_bounds, tighten_predictions
from nearexact.kernels import Kernel, Matern12, SquaredExponential
from tests.gp import extended_precision
from tests.problems import BUILT_IN, KERNELS, regression
from tests.tensors import Allocations

extended = pytest.mark.skipif(np.finfo(np.longdouble).eps > 1e-18, reason="needs long doubles of 80 bits")
PLENTY = 10**9
ORACLE = [kernel for name, kernel in BUILT_IN.items() if name != "arc_cosine_0_elsewhere"]  # with a formula there
Problem = tuple[Kernel, float, np.ndarray, np.ndarray, np.ndarray, int]


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    """Kernel, noise, data with and without copies, rows to predict on, near, among and far from them, and M."""
    kernel = draw(st.sampled_from(ORACLE))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    n = draw(st.integers(2, 60))
    X = rng.normal(size=(n, 3)) * draw(st.sampled_from([0.1, 1.0, 5.0])) + draw(st.sampled_from([0.0, 10.0]))
    if draw(st.booleans()):
        X[n // 2 :] = X[: n - n // 2]
    if draw(st.booleans()):
        X[-1] = X[0] * (1.0 + 1e-9)
    y = rng.normal(size=n) * draw(st.sampled_from([0.01, 1.0, 10.0]))
    changed = {name: value * np.exp(rng.normal(size=value.shape)) for name, value in kernel.parameters.items()}
    X_new = np.concatenate([X[:2], X[:1] + 1e-7, rng.normal(size=(3, 3)), 100.0 * rng.normal(size=(2, 3))])
    return kernel.with_parameters(changed), 10.0 ** draw(st.floats(-5, 0)), X, y, X_new, draw(st.integers(1, n))


def sparse_posterior(kernel: Kernel, s: float, X: np.ndarray, y: np.ndarray, m: int) -> SparsePosterior:
    Z = X[np.random.default_rng(m).permutation(len(X))[:m]]
    return sgpr_objective(kernel, s, X, y, Z).factorise(kernel, s).posterior()


def exact_posterior(kernel: Kernel, s: float, X: np.ndarray, y: np.ndarray) -> ExactPosterior:
    return gpr_objective(kernel, s, X, y).factorise(kernel, s)


def exact_system(kernel: Kernel, s: float, X: np.ndarray, y: np.ndarray) -> ExactSystem:
    return ExactSystem(kernel.for_inputs(X.shape[1]), s, torch.tensor(X), torch.tensor(y))


def tightened(
    posterior: SparsePosterior | ExactPosterior,
    s: float,
    X: np.ndarray,
    y: np.ndarray,
    X_new: np.ndarray,
    **limits: object,
) -> TightenedPredictions:
    system = exact_system(posterior.kernel, s, X, y)
    solver: Solver = (
        SparseSolver(posterior, system, PLENTY) if isinstance(posterior, Sparse) else CholeskySolver(posterior)
    )
    return tighten_predictions(system, solver, torch.tensor(X_new), **{"memory": PLENTY, **limits})  # type: ignore[arg-type]


def assert_bracket(
    bounds: PredictionBounds, mean: np.ndarray, variance: np.ndarray, room: np.ndarray | float = 0.0
) -> None:
    parts = (bounds.mean_lower, bounds.mean_upper, bounds.variance_lower, bounds.variance_upper)
    below, above, least, most = (part.numpy().astype(np.longdouble) for part in parts)
    assert (below <= mean + room).all(), (below - mean).max()
    assert (mean <= above + room).all(), (mean - above).max()
    assert (least <= variance + room).all(), (least - variance).max()
    assert (variance <= most + room).all(), (variance - most).max()
    assert (least >= 0.0).all()


@extended
@settings(max_examples=120, deadline=None)
@given(problems(), st.integers(0, 2**32 - 1), st.floats(-12, 0), st.integers(0, 2))
def test_any_vectors_give_bounds(problem: Problem, seed: int, magnitude: float, solved: int) -> None:
    """Near the solutions or nowhere near them: v, w and the functions f are arbitrary."""
    kernel, s, X, y, X_new, m = problem
    system = exact_system(kernel, s, X, y)
    columns = system.columns(torch.tensor(X_new))
    exact, sparse = exact_posterior(kernel, s, X, y), sparse_posterior(kernel, s, X, y, m)
    generator = torch.Generator().manual_seed(seed)
    v = exact.weights * min(solved, 1) + 10.0**magnitude * torch.randn(len(y), generator=generator, dtype=torch.float64)
    W = 10.0**magnitude * torch.randn(columns.K.shape, generator=generator, dtype=torch.float64)
    if solved == 2:
        W += torch.cholesky_solve(columns.K, exact.L)
    r, R = system.residuals(system.y, v), system.residuals(columns.K, W)
    weights = sparse.weights + 10.0**magnitude * torch.randn(m, generator=generator, dtype=torch.float64)
    wrong = replace(sparse, L_B=sparse.L_B * 1.1, weights=weights)
    for posterior in (sparse, wrong):
        solver = SparseSolver(posterior, system, PLENTY)
        solution = system.solution(v, r, solver.explain(r[:, None], None, lambda: None))
        bounds = system.bounds(columns, solution, W, R, solver.explain(R, columns.X_new, lambda: None))
        assert_bracket(bounds, *extended_precision.predict(kernel, s, X, y, X_new))
    assert_bracket(
        system.bounds(columns, system.solution(v, r, None), W, R, None),
        *extended_precision.predict(kernel, s, X, y, X_new),
    )


@extended
@settings(max_examples=120, deadline=None)
@given(problems())
def test_bounds_close_in_on_the_exact_predictions(problem: Problem) -> None:
    """For a sparse GP and for an exact one; with little noise, rounding errors may leave more open than is wanted."""
    kernel, s, X, y, X_new, m = problem
    mean, variance, room = extended_precision.predict(kernel, s, X, y, X_new)
    for posterior in (sparse_posterior(kernel, s, X, y, m), exact_posterior(kernel, s, X, y)):
        result = tightened(posterior, s, X, y, X_new)
        assert_bracket(result.bounds, mean, variance, room)
        if s >= 0.01 and float(np.abs(kernel.diag(X)).max()) < 100.0:
            assert result.known[:-2].all()  # the last two are far out


@extended
@settings(max_examples=100, deadline=None)
@given(problems())
def test_some_rows_bound_a_variance_from_above(problem: Problem) -> None:
    kernel, s, X, y, X_new, _ = problem
    system = exact_system(kernel, s, X, y)
    upper = nearest_rows_bounds(system, system.columns(torch.tensor(X_new)), Timer())
    _, variance, room = extended_precision.predict(kernel, s, X, y, X_new)
    assert (variance <= upper.numpy() + room).all()


@extended
@settings(max_examples=100, deadline=None)
@given(problems())
def test_values_of_kernels_are_as_accurate_as_is_said(problem: Problem) -> None:
    kernel, s, X, y, X_new, _ = problem
    system = exact_system(kernel, s, X, y)
    columns = system.columns(torch.tensor(X_new))
    errors = np.abs(columns.K.numpy() - extended_precision.kernel_matrix(kernel.for_inputs(3), X, X_new))
    sizes = np.sqrt(np.outer(kernel.diag(X), kernel.diag(X_new)))
    assert (errors <= columns.rounding.numpy() * sizes).all()


@pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS.keys())
def test_every_kernel_gets_tight_bounds(kernel: Kernel) -> None:
    X, y = regression(150)
    X_new = regression(7, seed=1)[0]
    K, k = kernel(X) + 0.1 * np.eye(150), kernel(X, X_new)
    mean, variance = k.T @ np.linalg.solve(K, y), kernel.diag(X_new) - (k * np.linalg.solve(K, k)).sum(0)
    result = tightened(sparse_posterior(kernel, 0.1, X, y, 10), 0.1, X, y, X_new)
    assert result.known.all()
    assert_bracket(result.bounds, mean, variance, room=1e-8 * (1.0 + kernel.diag(X_new)))


def test_more_iterations_narrow_the_bounds_to_rounding_errors() -> None:
    """With a clock that ticks whenever it is read, so that a time limit is a number of steps."""
    X, y = regression(300)
    X_new = regression(5, seed=1)[0]
    kernel, s = SquaredExponential([1.0, 1.0, 1.0]), 0.01
    posterior = sparse_posterior(kernel, s, X, y, 20)
    mean, variance, room = extended_precision.predict(kernel, s, X, y, X_new)
    widths = []
    for ticks in (1, 20, 60, 100, 200, 100_000):
        clock = itertools.count().__next__
        bounds = tightened(posterior, s, X, y, X_new, time_limit=ticks, clock=clock).bounds
        assert_bracket(bounds, mean, variance, room)
        widths.append(float((bounds.variance_upper - bounds.variance_lower).max()))
        assert float((bounds.mean_upper - bounds.mean_lower).max()) < np.inf
    assert widths == sorted(widths, reverse=True)
    assert widths[0] == pytest.approx(1.0)  # nothing but the prior
    assert widths[-1] < 2e-2 * variance.max()  # an std known to 1 %
    exact = tightened(exact_posterior(kernel, s, X, y), s, X, y, X_new).bounds
    assert float((exact.variance_upper - exact.variance_lower).max()) < 1e-9
    assert float((exact.mean_upper - exact.mean_lower).max()) < 1e-6


def test_the_variance_of_a_sparse_gp_is_no_upper_bound() -> None:
    """At inducing points it is below the exact one: there it takes for signal what the exact GP knows to be unclear."""
    X, y = regression(30)
    kernel, s = Matern12([0.5, 0.5, 0.5]), 0.01
    posterior = sparse_posterior(kernel, s, X + 0.2, y, 3)
    posterior = sgpr_objective(kernel, s, X, y, posterior.Z).factorise(kernel, s).posterior()
    exact = exact_posterior(kernel, s, X, y).predict(posterior.Z)[1]
    assert (posterior.predict(posterior.Z)[1] < exact).all()


def test_jitter_on_the_exact_matrix_is_seen_through() -> None:
    """A factor of K + (s + jitter)I gives bounds on the exact GP with noise s all the same."""
    X, y = regression(80)
    X_new = regression(5, seed=1)[0]
    kernel, s = SquaredExponential([1.0, 1.0, 1.0]), 0.01
    other = exact_posterior(kernel, s + 0.002, X, y)
    posterior = replace(exact_posterior(kernel, s, X, y), L=other.L, weights=other.weights)
    result = tightened(posterior, s, X, y, X_new)
    assert result.known.all()
    assert_bracket(result.bounds, *extended_precision.predict(kernel, s, X, y, X_new))


def test_rows_beyond_all_bounds_get_those_of_the_prior() -> None:
    X, y = regression(40)
    X_new = np.array([[1e150, 0.0, 0.0], [1e150, -1e150, 1e150], [0.1, 0.2, 0.3]])
    for kernel in (BUILT_IN["squared_exponential"], BUILT_IN["linear"], BUILT_IN["arc_cosine_2"]):
        bounds = tightened(sparse_posterior(kernel, 0.1, X, y, 10), 0.1, X, y, X_new).bounds
        for part in (bounds.mean_lower, bounds.mean_upper, bounds.variance_lower, bounds.variance_upper):
            assert not part.isnan().any()
        assert (bounds.variance_lower <= bounds.variance_upper).all()
        assert bounds.variance_upper[-1] < kernel.diag(X_new[-1:])[0]


def test_data_that_a_model_was_not_made_from_are_recognised() -> None:
    X, y = regression(60)
    kernel, s = SquaredExponential([1.0, 1.0, 1.0]), 0.01
    posterior = sparse_posterior(kernel, s, X, y, 20)

    def fits(X: np.ndarray, y: np.ndarray, posterior: SparsePosterior = posterior) -> bool:
        system = exact_system(kernel, s, X, y)
        return SparseSolver(posterior, system, PLENTY).fits(system.y)

    assert fits(X, y)
    assert fits(X[::-1].copy(), y[::-1].copy())
    assert not fits(X, y[::-1].copy())
    assert not fits(X[::-1].copy(), y)
    assert not fits(1.01 * X, y)
    constant = sparse_posterior(kernel, s, X, 0.0 * y, 20)
    assert fits(X, 0.0 * y, constant)
    assert not fits(1.01 * X, 0.0 * y, constant)


@pytest.mark.parametrize("kind", ["sparse", "exact"])
def test_memory_is_kept(kind: str) -> None:
    X, y = regression(500)
    X_new = regression(40, seed=1)[0]
    kernel, s, memory = SquaredExponential([1.0, 1.0, 1.0]), 0.2, 1_000_000
    posterior = sparse_posterior(kernel, s, X, y, 30) if kind == "sparse" else exact_posterior(kernel, s, X, y)
    with Allocations() as allocations:
        result = tightened(posterior, s, X, y, X_new, memory=memory)
    assert result.known.all()
    blocks = 8 * 8 * BLOCK_ROWS**2  # of K, those of the kernel's own and of a sample of rows
    assert allocations.peak_bytes < memory + blocks
