"""Conjugate gradients on several columns: solutions, error bounds and Lanczos matrices against dense algebra."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from nearexact.gp import sgpr_objective
from nearexact.gp.block_cg import BlockSolution, NotConvergedError, block_cg
from nearexact.gp.budget import TimeIsUpError
from nearexact.gp.quadratic import Preconditioner
from nearexact.kernels import SquaredExponential
from tests.gp.helpers import Problem, problems
from tests.problems import regression

KERNEL, NOISE = SquaredExponential([0.6, 1.1, 2.0], 1.7), 0.05


def matrices(n: int = 120, m: int = 20) -> tuple[Tensor, Tensor]:
    """K̂ = K + sI, and P = Q + sI with m inducing points."""
    X, _ = regression(n)
    K, Z = KERNEL(X), X[:m]
    Q = KERNEL(X, Z) @ np.linalg.solve(KERNEL(Z) + 1e-10 * np.eye(m), KERNEL(Z, X))
    return torch.tensor(K + NOISE * np.eye(n)), torch.tensor(Q + NOISE * np.eye(n))


def columns(n: int, c: int, seed: int = 0) -> Tensor:
    return torch.randn(n, c, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def solve(K: Tensor, P: Tensor, B: Tensor, **options: object) -> BlockSolution:
    settings: dict[str, object] = {"tolerance": 1e-20, "most_iterations": 500} | options
    return block_cg(lambda D: K @ D, lambda R: torch.linalg.solve(P, R), B, **settings)  # type: ignore[arg-type]


def test_columns_equal_the_dense_solution() -> None:
    K, P = matrices()
    B = columns(len(K), 5)
    solution = solve(K, P, B)
    assert torch.allclose(solution.columns, torch.linalg.solve(K, B), rtol=1e-8, atol=1e-8)
    assert torch.allclose(solution.residuals, B - K @ solution.columns, atol=1e-8)


@settings(max_examples=100, deadline=None)
@given(problems(), st.integers(1, 8), st.floats(1e-6, 0.5))
def test_residual_bounds_are_not_less_than_the_squared_errors(problem: Problem, c: int, tolerance: float) -> None:
    kernel, s, X, y, m = problem
    objective = sgpr_objective(kernel, s, X, y, X[:m])
    precondition = Preconditioner(objective, objective.factorise(kernel, s)).solve
    K = torch.tensor(kernel(X) + s * np.eye(len(X)))
    B = columns(len(X), c)
    solution = block_cg(
        lambda D: K @ D, lambda R: precondition(R)[0], B, tolerance=tolerance, most_iterations=50 * len(X)
    )
    errors = solution.columns - torch.linalg.solve(K, B)
    squared = (errors * (K @ errors)).sum(0)
    first = precondition(B)[1]
    assert (solution.residual_bounds <= tolerance * first).all()
    assert (squared <= solution.residual_bounds * (1.0 + 1e-3) + 1e-6 * first).all()


def test_preconditioner_solves_several_columns_as_one_by_one_and_as_dense_algebra() -> None:
    X, y = regression(120)
    objective = sgpr_objective(KERNEL, NOISE, X, y, X[:20])
    precondition = Preconditioner(objective, objective.factorise(KERNEL, NOISE))
    R = columns(120, 3)
    solved, quadratics = precondition.solve(R)
    expected = torch.linalg.solve(matrices()[1], R)
    assert torch.allclose(solved, expected, rtol=1e-8, atol=1e-8)
    assert torch.allclose(quadratics, (R * expected).sum(0), rtol=1e-8)
    for c in range(3):
        one, quadratic = precondition(R[:, c].contiguous())
        assert torch.allclose(one, solved[:, c])
        assert quadratic == pytest.approx(float(quadratics[c]))


def test_coefficients_make_lanczos_matrices_of_the_preconditioned_matrix() -> None:
    """After as many iterations as there are rows, (bᵀP⁻¹b) e₁ᵀ f(T) e₁ is a quadratic form with f(P^(-½) K̂ P^(-½))."""
    K, P = matrices(12, 3)
    B = columns(12, 2)
    solution = solve(K, P, B, tolerance=1e-24)
    values, vectors = torch.linalg.eigh(P)
    root = vectors @ (vectors * values.rsqrt()).T  # P^(-½)
    values, vectors = torch.linalg.eigh(root @ K @ root)
    for c in range(2):
        taken = int((solution.alphas[:, c] > 0.0).sum())
        alphas, betas = solution.alphas[:taken, c], solution.betas[:taken, c]
        diagonal = 1.0 / alphas
        diagonal[1:] += betas[:-1] / alphas[:-1]
        off = betas[:-1].sqrt() / alphas[:-1]
        nodes, weights = torch.linalg.eigh(torch.diag(diagonal) + torch.diag(off, 1) + torch.diag(off, -1))
        b = root @ B[:, c]
        expected = ((vectors.T @ b).square() * values.log()).sum()
        found = b.square().sum() * (weights[0].square() * nodes.log()).sum()
        assert float(found) == pytest.approx(float(expected), rel=1e-6)


def test_converged_columns_are_left_out_of_products() -> None:
    K, P = matrices()
    B = torch.cat([P @ columns(len(K), 1), columns(len(K), 2, seed=1), torch.zeros(len(K), 1, dtype=K.dtype)], dim=1)
    tolerance = torch.tensor([1e-2, 1e-20, 1e-10, 1e-10], dtype=K.dtype)
    widths: list[int] = []

    def multiply(D: Tensor) -> Tensor:
        widths.append(D.shape[1])
        return K @ D

    solution = block_cg(multiply, lambda R: torch.linalg.solve(P, R), B, tolerance=tolerance, most_iterations=500)
    assert widths[0] == 3  # a column of zeros needs no iteration
    assert widths == sorted(widths, reverse=True)
    assert widths[-1] == 1
    assert len(widths) == solution.iterations == len(solution.alphas)
    assert (solution.columns[:, 3] == 0.0).all()
    assert torch.allclose(solution.columns[:, 1], torch.linalg.solve(K, B[:, 1]), rtol=1e-7, atol=1e-7)


def test_iterations_that_do_not_converge_are_an_error_that_has_what_is_proved_so_far() -> None:
    K, P = matrices()
    B = columns(len(K), 3)
    with pytest.raises(NotConvergedError, match="not converged after 2 iterations") as caught:
        solve(K, P, B, most_iterations=2)
    solution = caught.value.solution
    errors = solution.columns - torch.linalg.solve(K, B)
    assert solution.iterations == 2
    assert ((errors * (K @ errors)).sum(0) <= solution.residual_bounds * (1.0 + 1e-9)).all()


def test_products_in_float32_lead_to_the_solution_in_float64() -> None:
    K, P = matrices()
    B, single = columns(len(K), 3), K.float()
    solution = block_cg(
        lambda D: (single @ D.float()).double(),
        lambda R: torch.linalg.solve(P, R),
        B,
        tolerance=1e-20,
        most_iterations=500,
        exact_multiply=lambda D: K @ D,
    )
    first = (B * torch.linalg.solve(P, B)).sum(0)
    residuals = B - K @ solution.columns
    assert ((residuals * torch.linalg.solve(P, residuals)).sum(0) <= 1.01e-20 * first).all()
    assert torch.allclose(solution.columns, torch.linalg.solve(K, B), rtol=1e-7, atol=1e-7)


def test_products_that_are_too_coarse_are_an_error_and_not_a_solution() -> None:
    K, P = matrices()
    wrong = K + 10.0 * torch.diag(torch.linspace(0.0, 1.0, len(K), dtype=K.dtype))
    with pytest.raises(NotConvergedError, match="rounding errors"):
        block_cg(
            lambda D: wrong @ D,
            lambda R: torch.linalg.solve(P, R),
            columns(len(K), 2),
            tolerance=1e-12,
            most_iterations=500,
            exact_multiply=lambda D: K @ D,
        )


@pytest.mark.parametrize("entry", [-1.0, math.nan, math.inf])
def test_a_matrix_that_is_not_positive_definite_is_an_error(entry: float) -> None:
    K, P = matrices(30, 5)
    K[3, 3] = entry
    with pytest.raises(NotConvergedError, match="not positive definite"):
        solve(K, P, columns(30, 2))


def test_check_ends_the_iterations_and_on_iteration_sees_each() -> None:
    K, P = matrices()
    seen: list[int] = []

    def check() -> None:
        if len(seen) == 3:
            raise TimeIsUpError

    with pytest.raises(TimeIsUpError):
        solve(K, P, columns(len(K), 2), check=check, on_iteration=lambda solution: seen.append(solution.iterations))
    assert seen == [1, 2, 3]


def test_a_preconditioner_that_has_lost_its_digits_is_no_convergence() -> None:
    """Of rᵀP⁻¹r nothing may be left but rounding errors, which look like a residual of zero."""
    K, _ = matrices()
    B = columns(len(K), 2)
    options = {"tolerance": 1e-4, "most_iterations": 50, "rounding": 1e-6}
    with pytest.raises(NotConvergedError, match="rounding errors"):
        block_cg(lambda D: K @ D, lambda R: -1e-9 * R, B, **options)  # type: ignore[arg-type]


def test_what_rounding_may_hide_counts_as_if_it_were_there() -> None:
    K, P = matrices()
    B = columns(len(K), 3)
    plain, careful = solve(K, P, B, tolerance=1e-6), solve(K, P, B, tolerance=1e-6, rounding=0.5)
    squares = careful.residuals.square().sum(0)
    computed = (careful.residuals * torch.linalg.solve(P, careful.residuals)).sum(0)
    assert torch.allclose(careful.residual_bounds, computed + 0.5 * squares, rtol=1e-6)
    assert bool((plain.residual_bounds <= 1e-6 * (B * torch.linalg.solve(P, B)).sum(0)).all())
