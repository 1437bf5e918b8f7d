"""Noise of each row and several targets, in the mathematics: dense formulas, scikit-learn's alpha, and theorems."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process import kernels as sk

from nearexact.gp import ExactObjective, IterativeObjective, SparseObjective, tighten_bounds
from nearexact.gp.iterative_model import HeldModel
from nearexact.gp.iterative_posterior import ModelSolver
from nearexact.gp.prediction_bounds import ExactSystem
from nearexact.gp.prediction_solvers import CholeskySolver, Solver, SparseSolver
from nearexact.gp.row_blocks import RowBlocks
from nearexact.gp.row_noise import RowNoise, noise_only
from nearexact.gp.search import Search
from nearexact.gp.stored_kernel import StoredKernel
from nearexact.gp.tighten_predictions import tighten_predictions
from nearexact.kernels import Kernel, Matern32, SquaredExponential
from tests.gp import dense, extended_precision
from tests.gp.helpers import Problem, assert_gradient_is_right, problems, slack
from tests.gp.test_prediction_bounds import assert_bracket
from tests.problems import KERNELS, regression

KERNEL = SquaredExponential([0.6, 1.1, 2.0], 1.7)
NOISE = 0.05
PLENTY = 10**9


def noise_of_rows(n: int, seed: int = 0, spread: float = 1.0) -> RowNoise:
    """Some rows have no known noise, others have a thousand times as much as is learnt."""
    rng = np.random.default_rng(seed)
    known = np.where(rng.uniform(size=n) < 0.3, 0.0, np.exp(rng.normal(-2.0, spread, size=n)))
    return RowNoise(torch.tensor(np.exp(rng.normal(size=n))), torch.tensor(known))


def variances(noise: RowNoise, s: float) -> np.ndarray:
    return s * noise.factors.numpy() + noise.known.numpy()


def dense_lml(kernel: Kernel, s: float, X: np.ndarray, y: np.ndarray, noise: RowNoise) -> float:
    columns = y.reshape(len(y), -1).T
    return sum(dense.gaussian_log_density(column, kernel(X) + np.diag(variances(noise, s))) for column in columns)


def two_targets(n: int = 60) -> tuple[np.ndarray, np.ndarray]:
    X, y = regression(n)
    return X, np.column_stack([y, np.cos(X[:, 1]) - 0.5 * y])


def test_value_gradient_and_predictions_equal_sklearns_alpha() -> None:
    X, y = regression(150)
    X_new, noise = regression(20, seed=4)[0], noise_of_rows(150)
    lengthscales = KERNEL.parameters["lengthscales"]
    twin = sk.ConstantKernel(1.7) * sk.RBF(lengthscales)
    theirs = GaussianProcessRegressor(twin, alpha=variances(noise, NOISE), optimizer=None).fit(X, y)
    lml, by_log = theirs.log_marginal_likelihood(theirs.kernel_.theta, eval_gradient=True)
    objective = ExactObjective(KERNEL, NOISE, X, y, row_noise=noise)
    value, by_parameter, _ = objective.value_and_gradient(KERNEL, NOISE)
    assert value == pytest.approx(lml, rel=1e-8)
    ours = [1.7 * float(by_parameter["variance"]), *(lengthscales * by_parameter["lengthscales"].numpy())]
    assert ours == pytest.approx(by_log.tolist(), rel=1e-8)
    mean, covariance = theirs.predict(X_new, return_cov=True)
    model = objective.factorise(KERNEL, NOISE)
    got_mean, got_covariance = model.joint(X_new)
    assert np.allclose(got_mean, mean, rtol=1e-8, atol=1e-10)
    assert np.allclose(got_covariance, covariance, rtol=1e-8, atol=1e-10)
    assert np.allclose(model.predict(X_new)[1], np.diag(covariance), rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("name", ["squared_exponential", "matern12"])
@pytest.mark.parametrize("bound", ["exact", "elbo", "tight"])
def test_values_are_dense_formulas_and_gradients_their_derivatives(name: str, bound: str) -> None:
    kernel, noise = KERNELS[name], noise_of_rows(40, seed=1)
    X, Y = two_targets(40)
    Z, D = X[:12], variances(noise, NOISE)
    for y in (Y[:, 0], Y):
        columns = y.reshape(40, -1).T
        if bound == "exact":
            exact = ExactObjective(kernel, NOISE, X, y, row_noise=noise)
            assert -exact(exact.theta0)[0] == pytest.approx(dense_lml(kernel, NOISE, X, y, noise), rel=1e-9)
            assert_gradient_is_right(exact, exact.theta0, step=1e-4, rel=1e-5)
            continue
        Q = dense.q_matrix(kernel, X, Z, 1e-10)
        d = (kernel.diag(X) - np.diag(Q)) / D
        missing = np.log1p(np.maximum(d, 0.0)).sum() if bound == "tight" else d.sum()
        expected = sum(dense.gaussian_log_density(column, Q + np.diag(D)) - 0.5 * missing for column in columns)
        for memory in (None, 200_000):  # with V kept, and computed again
            sparse = SparseObjective(kernel, NOISE, X, y, Z, bound=bound, row_noise=noise, memory_limit=memory)
            assert -sparse(sparse.theta0)[0] == pytest.approx(expected, rel=1e-8)
            assert_gradient_is_right(sparse, sparse.theta0, step=1e-4, rel=1e-4)


@settings(max_examples=60, deadline=None)
@given(problems(), st.integers(0, 2**32 - 1), st.integers(1, 3))
def test_bounds_bracket_the_likelihood(problem: Problem, seed: int, targets: int) -> None:
    kernel, s, X, y, m = problem
    noise = noise_of_rows(len(y), seed, spread=3.0)
    Y = y if targets == 1 else np.column_stack([y, *np.random.default_rng(seed).normal(size=(targets - 1, len(y)))])
    lml, room = dense_lml(kernel, s, X, Y, noise), slack(problem, dense_lml(kernel, s, X, Y, noise))
    objective = SparseObjective(kernel, s, X, Y, X[:m], row_noise=noise)
    f = objective.factorise(kernel, s, residuals=True)
    room += 1e-6 * abs(lml - f.elbo)
    tightened = tighten_bounds(objective, f, iterations=5).bounds
    for bounds in (f.bounds, tightened):
        assert f.elbo - room <= bounds.lower <= lml + room
        assert lml - room <= bounds.upper <= f.upper_bound + room


@pytest.mark.parametrize("method", ["exact", "sparse"])
def test_predictions_lie_within_proved_bounds(method: str) -> None:
    kernel = Matern32([0.6, 1.1, 2.0], 1.7)
    X, y = regression(50)
    X_new = np.concatenate([X[:2], regression(4, seed=2)[0], [[50.0, 0.0, 0.0]]])
    for seed in range(3):
        noise = noise_of_rows(50, seed, spread=3.0)
        system = ExactSystem(kernel, NOISE, torch.tensor(X), torch.tensor(y), noise)
        exact = ExactObjective(kernel, NOISE, X, y, row_noise=noise).factorise(kernel, NOISE)
        sparse = SparseObjective(kernel, NOISE, X, y, X[:10], row_noise=noise).factorise(kernel, NOISE).posterior()
        solver: Solver = CholeskySolver(exact) if method == "exact" else SparseSolver(sparse, system, PLENTY)
        result = tighten_predictions(system, solver, torch.tensor(X_new), memory=PLENTY)
        mean, variance, room = extended_precision.predict(kernel, variances(noise, NOISE), X, y, X_new)
        assert_bracket(result.bounds, mean, variance, room)
        assert result.known.all()


@pytest.mark.parametrize("targets", [1, 2])
def test_conjugate_gradients_find_the_exact_gp(targets: int) -> None:
    """With all rows as inducing points, or given for blocks, nothing has to be estimated."""
    X, Y = two_targets(50)
    y, noise = Y[:, 0] if targets == 1 else Y, noise_of_rows(50, seed=2)
    exact = ExactObjective(KERNEL, NOISE, X, y, row_noise=noise)
    expected, expected_gradient = exact(exact.theta0)
    given = RowBlocks.chosen(KERNEL, NOISE, exact.X, 40, row_noise=noise)  # all rows before each block
    for Z, blocks in ((X, None), (X[:15], given)):
        objective = IterativeObjective(KERNEL, NOISE, X, y, Z, blocks=blocks, row_noise=noise, tolerance=1e-20)
        value, gradient = objective(objective.theta0)
        assert value == pytest.approx(expected, abs=1e-5)
        assert gradient == pytest.approx(expected_gradient, rel=1e-4, abs=1e-4)

    few = IterativeObjective(KERNEL, NOISE, X, y, X[:15], row_noise=noise, probes=64)
    estimate = few.estimate(KERNEL, NOISE)
    assert estimate.bounds.lower <= -expected <= estimate.bounds.upper
    assert estimate.value == pytest.approx(-expected, abs=5.0 * estimate.standard_error + 1e-3)
    solver = ModelSolver(few.sparse, KERNEL, NOISE, StoredKernel(few.X, PLENTY))
    held = HeldModel.estimated(few.theta0, estimate, few.X, few.y, noise)
    posterior = held.finished(solver, 0, 64).posterior
    X_new, model = regression(10, seed=3)[0], exact.factorise(KERNEL, NOISE)
    for got, wanted in zip(posterior.joint(X_new), model.joint(X_new), strict=True):
        torch.testing.assert_close(got, wanted, rtol=0.0, atol=1e-4)
    for got, wanted in zip(posterior.predict(X_new), model.predict(X_new), strict=True):
        torch.testing.assert_close(got, wanted, rtol=0.0, atol=1e-4)  # all rows are among the nearest


@pytest.mark.parametrize("method", ["exact", "elbo", "tight"])
def test_several_targets_are_a_sum_with_one_factorisation(method: str) -> None:
    X, Y = two_targets()
    X_new = regression(7, seed=5)[0]

    def objective(y: np.ndarray) -> ExactObjective | SparseObjective:
        if method == "exact":
            return ExactObjective(KERNEL, NOISE, X, y)
        return SparseObjective(KERNEL, NOISE, X, y, X[:20], bound=method)

    together, parts = objective(Y), [objective(y) for y in Y.T]
    value, gradient = together(together.theta0)
    assert value == pytest.approx(sum(part(part.theta0)[0] for part in parts), rel=1e-10)
    assert gradient == pytest.approx(sum(part(part.theta0)[1] for part in parts), rel=1e-8)
    models = [model.factorise(KERNEL, NOISE) for model in (together, *parts)]
    posteriors = [model if method == "exact" else model.posterior() for model in models]  # type: ignore[union-attr]
    mean, variance = posteriors[0].predict(X_new)
    singles = [posterior.predict(X_new) for posterior in posteriors[1:]]
    assert torch.allclose(mean, torch.stack([single[0] for single in singles], dim=1), rtol=1e-10, atol=1e-12)
    assert torch.allclose(variance, singles[0][1], rtol=1e-12)
    upper = sum(model.bounds.upper for model in models[1:])
    assert models[0].bounds.upper == pytest.approx(upper, rel=1e-10)


def test_equal_noise_of_all_rows_is_the_usual_model() -> None:
    X, y = regression(80)
    noise = RowNoise(torch.ones(80, dtype=torch.float64), torch.zeros(80, dtype=torch.float64))
    for kind, more in ((ExactObjective, ()), (SparseObjective, (X[:20],))):
        plain, same = kind(KERNEL, NOISE, X, y, *more), kind(KERNEL, NOISE, X, y, *more, row_noise=noise)
        assert same(plain.theta0)[0] == pytest.approx(plain(plain.theta0)[0], rel=1e-12)
        assert same(plain.theta0)[1] == pytest.approx(plain(plain.theta0)[1], rel=1e-8)
    # Known noise that is the same for all rows is learnt noise.
    more = RowNoise(noise.factors, noise.factors * 0.03)
    other = ExactObjective(KERNEL, NOISE, X, y, row_noise=more).factorise(KERNEL, NOISE).lml
    assert other == pytest.approx(dense.lml(KERNEL, NOISE + 0.03, X, y), rel=1e-10)


def test_the_search_sees_the_noise_of_its_rows() -> None:
    X, y = regression(60)
    noise = noise_of_rows(60)
    search = Search(KERNEL, X, y, row_noise=noise, seed=0)
    assert search.objective(60).factorise(KERNEL, NOISE).lml == pytest.approx(
        dense_lml(KERNEL, NOISE, X, y, noise), rel=1e-9
    )


def test_the_constant_predictor_has_the_best_of_learnt_noises() -> None:
    y, noise = regression(40)[1], noise_of_rows(40, spread=2.0)
    tried = [dense.gaussian_log_density(y, np.diag(variances(noise, s))) for s in np.geomspace(1e-5, 100.0, 2000)]
    assert noise_only(torch.tensor(y), noise) == pytest.approx(max(tried), abs=1e-3)
    assert noise_only(torch.tensor(y), noise) >= max(tried) - 1e-9


@pytest.mark.parametrize(
    ("factors", "known", "message"),
    [
        ([1.0], [0.0, 0.0], "vectors of one length"),
        ([1.0, 0.0], [0.0, 0.0], "factors must be positive"),
        ([1.0, 1.0], [0.0, -1.0], "must not be negative"),
        ([1.0, 1.0], [0.0, np.nan], "must be finite"),
        ([1.0, 1.0], [0.0, 0.0], "noise of 5 rows is needed, got that of 2"),
    ],
)
def test_noise_that_is_none_is_refused(factors: list[float], known: list[float], message: str) -> None:
    X, y = regression(5)
    with pytest.raises(ValueError, match=message):
        ExactObjective(KERNEL, NOISE, X, y, row_noise=RowNoise(torch.tensor(factors), torch.tensor(known)))
