"""The exact likelihood by conjugate gradients, against dense formulas: unbiased, and honest about its error."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from nearexact.gp import gpr_objective, greedy_variance, iterative
from nearexact.gp.block_cg import NotConvergedError
from nearexact.gp.budget import TimeIsUpError
from nearexact.gp.iterative import TOLERANCE, Estimate, IterativeObjective
from nearexact.gp.kernel_product import KernelProduct
from nearexact.gp.row_blocks import RowBlocks
from nearexact.gp.stored_kernel import Storage, StoredKernel
from nearexact.kernels import Kernel, SquaredExponential
from tests.problems import KERNELS, regression, standardised
from tests.tensors import Allocations

with_both = pytest.mark.parametrize("given", [0, 8], ids=["points", "blocks"])
every_kernel = pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS.keys())
ROUGH, NOISE = SquaredExponential([0.4, 0.5, 0.8], 1.3), 0.05


def objective(
    kernel: Kernel, s: float, n: int, m: int, seed: int = 0, given: int = 0, **options: object
) -> tuple[IterativeObjective, np.ndarray, np.ndarray]:
    """Preconditioned with blocks, each given so many rows, or else with a sparse GP."""
    X, y = standardised(n)
    Z = X[greedy_variance(kernel, X, m, seed=0)]
    if given:
        noise = options.get("row_noise")
        chosen = kernel.for_inputs(X.shape[1]), s, torch.from_numpy(X), given
        options["blocks"] = RowBlocks.chosen(*chosen, row_noise=noise)  # type: ignore[arg-type]
    return IterativeObjective(kernel, s, X, y, Z, seed=seed, **options), X, y  # type: ignore[arg-type]


@with_both
@every_kernel
def test_value_and_gradient_are_unbiased(kernel: Kernel, given: int) -> None:
    """Over many sets of probes, the mean lies within five of its own standard errors of the dense formulas."""
    one, X, y = objective(kernel, NOISE, 60, 8, given=given, tolerance=1e-10)
    exact = gpr_objective(kernel, NOISE, X, y)
    expected, expected_gradient = exact(exact.theta0)
    found = [one.with_new_probes(seed)(one.theta0) for seed in range(15)]
    values, gradients = np.array([v for v, _ in found]), np.array([g for _, g in found])
    error = values.std(ddof=1) / math.sqrt(len(values))
    assert abs(values.mean() - expected) <= 5.0 * error + 1e-6 * abs(expected)
    errors = gradients.std(axis=0, ddof=1) / math.sqrt(len(values))
    assert (np.abs(gradients.mean(axis=0) - expected_gradient) <= 5.0 * errors + 1e-5 * np.abs(expected_gradient)).all()


@every_kernel
def test_with_all_points_nothing_is_random(kernel: Kernel) -> None:
    """P is K̂ but for the jitter: value and gradient are the exact ones, whatever the probes."""
    X, y = regression(60)
    every = IterativeObjective(kernel, NOISE, X, y, X, tolerance=1e-12)
    exact = gpr_objective(kernel, NOISE, X, y)
    value, gradient = exact(exact.theta0)
    found, slope = every(every.theta0)
    assert found == pytest.approx(value, rel=1e-6)
    assert np.allclose(slope, gradient, rtol=1e-4, atol=1e-4 * np.abs(gradient).max())
    assert every.estimate(every.layout.kernel, NOISE).standard_error <= 1e-3


@with_both
def test_the_standard_error_is_honest(given: int) -> None:
    """Two of them on either side hold the truth in about nine of ten cases (Student's t with ten degrees)."""
    one, X, y = objective(ROUGH, NOISE, 120, 20, given=given, tolerance=1e-8)
    truth = -gpr_objective(ROUGH, NOISE, X, y)(one.theta0)[0]
    estimates = [one.with_new_probes(seed).estimate(ROUGH, NOISE) for seed in range(40)]
    held = sum(abs(e.value - truth) <= 2.0 * e.standard_error for e in estimates)
    assert held >= 30
    spread = float(np.std([e.value for e in estimates]))
    assert 0.7 * spread <= np.mean([e.standard_error for e in estimates]) <= 1.4 * spread


def test_noise_falls_as_blocks_are_given_more_rows_and_iterations_too() -> None:
    errors, iterations = [], []
    for given in (8, 40, 160):
        one = objective(ROUGH, NOISE, 400, 20, given=given)[0]
        estimates = [one.with_new_probes(seed).estimate(ROUGH, NOISE) for seed in range(6)]
        errors.append(np.mean([e.standard_error for e in estimates]))
        iterations.append(max(e.iterations for e in estimates))
    assert errors[0] > 2.0 * errors[1] > 4.0 * errors[2]
    assert iterations[0] > iterations[1] > iterations[2]


def test_what_is_known_about_the_trace_makes_estimates_by_blocks_more_precise(monkeypatch: pytest.MonkeyPatch) -> None:
    one = objective(ROUGH, NOISE, 400, 20, given=40)[0]
    error = one.estimate(ROUGH, NOISE).standard_error
    gradients = np.array([one.with_new_probes(seed)(one.theta0)[1] for seed in range(8)])
    monkeypatch.setattr(iterative, "share_of_excess", lambda _: 0.0)
    assert error < 0.7 * one.estimate(ROUGH, NOISE).standard_error
    without = np.array([one.with_new_probes(seed)(one.theta0)[1] for seed in range(8)])
    assert (gradients.std(axis=0) < 0.8 * without.std(axis=0)).all()


def test_little_noise_leaves_no_bias_where_points_beside_blocks_are_few() -> None:
    """Points that explain next to nothing prove the bounds, and have no say in the estimate."""
    s = 1e-4
    one, X, y = objective(ROUGH, s, 400, 4, given=60)
    truth = gpr_objective(ROUGH, s, X, y).factorise(ROUGH, s).lml
    estimate = one.estimate(ROUGH, s)
    assert abs(estimate.value - truth) <= 5.0 * estimate.standard_error
    assert estimate.standard_error <= 0.05 * len(y)
    assert estimate.bounds.lower <= truth <= estimate.bounds.upper


def test_solutions_that_may_be_further_off_than_residuals_tell_are_none() -> None:
    """A smooth function with little noise: blocks of few rows leave eigenvalues that are nearly 0."""
    kernel, s = SquaredExponential([3.0, 3.0, 3.0], 30.0), 0.01
    one, _, _ = objective(kernel, s, 400, 60, given=4)
    with pytest.raises(NotConvergedError, match="eigenvalues"):
        one(one.theta0)


def test_blocks_prove_more_than_points_about_the_log_determinant() -> None:
    by_points, by_blocks = (objective(ROUGH, NOISE, 400, 40, given=given)[0] for given in (0, 80))
    points, blocks = (one.estimate(ROUGH, NOISE).bounds for one in (by_points, by_blocks))
    assert blocks.log_det.upper < points.log_det.upper - 10.0
    assert blocks.log_det.lower == points.log_det.lower


def test_noise_falls_as_points_are_added_and_iterations_too() -> None:
    errors, iterations = [], []
    for m in (20, 80, 200, 320):
        one = objective(ROUGH, NOISE, 400, m)[0]
        estimates = [one.with_new_probes(seed).estimate(ROUGH, NOISE) for seed in range(6)]
        errors.append(np.mean([e.standard_error for e in estimates]))
        iterations.append(max(e.iterations for e in estimates))
    assert errors == sorted(errors, reverse=True)
    assert errors[0] > 4.0 * errors[2] > 40.0 * errors[3]
    assert iterations == sorted(iterations, reverse=True)


@with_both
@pytest.mark.parametrize("s", [0.05, 0.002])
def test_the_tolerance_leaves_no_bias_to_speak_of(s: float, given: int) -> None:
    def estimates(tolerance: float) -> list[Estimate]:
        ones = [objective(ROUGH, s, 400, 60, seed, given, tolerance=tolerance)[0] for seed in range(2)]
        return [one.estimate(ROUGH, s) for one in ones]

    coarse, fine = estimates(TOLERANCE), estimates(1e-10)
    for a, b in zip(coarse, fine, strict=True):
        assert abs(a.value - b.value) <= 0.05 * b.standard_error


@with_both
def test_proved_bounds_hold_and_the_quadratic_form_is_nearly_known(given: int) -> None:
    one, X, y = objective(ROUGH, NOISE, 300, 40, given=given)
    estimate = one.estimate(ROUGH, NOISE)
    model = gpr_objective(ROUGH, NOISE, X, y).factorise(ROUGH, NOISE)
    assert estimate.bounds.lower <= model.lml <= estimate.bounds.upper
    assert estimate.bounds.quadratic.lower <= model.bounds.quadratic.lower * (1.0 + 1e-9)
    assert estimate.bounds.quadratic.upper >= model.bounds.quadratic.upper * (1.0 - 1e-9)
    assert estimate.bounds.residual_gap <= 1e-3 * len(y)


@with_both
def test_conjugate_gradients_that_do_not_converge_never_return_a_value(given: int) -> None:
    one, _, _ = objective(ROUGH, 1e-3, 300, 10, given=given, most_iterations=5)
    with pytest.raises(NotConvergedError, match="not converged after 5 iterations"):
        one(one.theta0)


def test_iterations_that_are_cut_short_are_not_done_again_in_64_bits() -> None:
    one, _, _ = objective(ROUGH, 0.1, 300, 10, most_iterations=2)
    with pytest.raises(NotConvergedError):
        one(one.theta0)
    assert one.product.storage is Storage.FLOAT32


def test_check_ends_an_evaluation() -> None:
    calls: list[int] = []

    def check() -> None:
        calls.append(1)
        if len(calls) == 5:
            raise TimeIsUpError

    one, _, _ = objective(ROUGH, NOISE, 200, 20, check=check)
    with pytest.raises(TimeIsUpError):
        one(one.theta0)


def test_same_probes_same_value_and_other_probes_another_one() -> None:
    one, _, _ = objective(ROUGH, NOISE, 200, 20)
    first, second = one(one.theta0)[0], one(one.theta0)[0]
    assert first == second
    assert one.with_new_probes(7)(one.theta0)[0] != first
    assert one(one.theta0)[0] == first


def test_fewer_than_two_probes_have_no_standard_error() -> None:
    with pytest.raises(ValueError, match="at least 2 probes, got 1"):
        objective(ROUGH, NOISE, 50, 5, probes=1)


def test_nan_where_theta_is_not_finite() -> None:
    one, _, _ = objective(ROUGH, NOISE, 50, 5)
    assert math.isnan(one(np.full_like(one.theta0, math.inf))[0])


# ---- memory and precision --------------------------------------------------------------------------------------------


def test_a_memory_limit_gives_the_same_result_and_is_kept() -> None:
    limit = 13_000_000
    free, X, _ = objective(ROUGH, NOISE, 1100, 60, tolerance=1e-10, in_full=True)
    tight, _, _ = objective(ROUGH, NOISE, 1100, 60, tolerance=1e-10, memory_limit=limit)
    value, gradient = free(free.theta0)
    with Allocations() as allocations:
        found, slope = tight(tight.theta0)
    assert free.product.storage is not Storage.NONE
    assert tight.product.storage is Storage.NONE
    assert allocations.peak_bytes <= limit + X.nbytes
    assert found == pytest.approx(value, rel=1e-8)
    assert np.allclose(slope, gradient, rtol=1e-6, atol=1e-6 * np.abs(gradient).max())


def test_float32_is_used_where_it_does_no_harm() -> None:
    one, X, y = objective(ROUGH, NOISE, 1100, 60)
    value = one.estimate(ROUGH, NOISE).value
    assert one.product.storage is Storage.FLOAT32
    full = IterativeObjective(ROUGH, NOISE, X, y, one.sparse.Z, memory_limit=13_000_000)
    assert full.estimate(ROUGH, NOISE).value == pytest.approx(value, abs=1e-4 * len(y))
    assert full.product.storage is Storage.NONE


def test_float64_is_used_where_32_bits_would_drown_what_is_estimated() -> None:
    """A smooth function: the sparse GP is all but exact, and rounding errors are larger than what it leaves."""
    kernel, s = SquaredExponential([1.7, 30.0, 30.0], 36.0), 0.01
    one, X, y = objective(kernel, s, 1500, 100)
    truth = gpr_objective(kernel, s, X, y).factorise(kernel, s).lml
    assert one.estimate(kernel, s).value == pytest.approx(truth, abs=1e-3)
    assert one.product.storage is Storage.FLOAT64


@every_kernel
def test_a_few_rows_show_how_large_rounding_errors_are(kernel: Kernel) -> None:
    X, _ = regression(1300)
    noise = 10.0  # so much that 32 bits are enough for each kernel
    scales = torch.linspace(0.5, 1.5, 1300, dtype=torch.float64)
    product = StoredKernel(torch.tensor(X), 10**9)
    product.update(kernel, noise, scales=scales)
    assert product.storage is Storage.FLOAT32
    D = torch.randn(1300, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    rounded = product(D)
    errors = (rounded - product.in_full(D)).square().sum(0)
    found = product.rounding_errors(D, rounded)
    assert ((found > 0.5 * errors) & (found < 2.0 * errors)).all()
    rows, full = torch.tensor([0, 700, 1299]), KernelProduct(kernel, noise, torch.tensor(X), scales=scales)
    assert torch.allclose(full.some_rows(rows, D), full(D)[rows], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("storage", list(Storage))
def test_products_are_those_of_the_dense_matrix(storage: Storage) -> None:
    X, _ = regression(1300)  # more than one tile, and one that is not full
    product = StoredKernel(torch.tensor(X), {Storage.NONE: 0}.get(storage, 10**9))
    product.update(ROUGH, NOISE, in_full=storage is Storage.FLOAT64)
    assert product.storage is storage
    D = torch.randn(1300, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    expected = torch.tensor(ROUGH(X) + NOISE * np.eye(1300)) @ D
    rounding = 1e-4 if storage is Storage.FLOAT32 else 1e-10
    assert torch.allclose(product(D), expected, rtol=0.0, atol=rounding)
    assert torch.allclose(product.in_full(D), expected, rtol=0.0, atol=1e-10)


def test_little_noise_under_a_large_signal_is_not_kept_in_32_bits() -> None:
    X, _ = regression(1300)
    product = StoredKernel(torch.tensor(X), 10**9)
    product.update(SquaredExponential([0.4, 0.5, 0.8], 1e4), 1e-4)
    assert product.storage is Storage.FLOAT64


def test_the_kernel_matrix_follows_the_hyperparameters() -> None:
    X, _ = regression(100)
    product = StoredKernel(torch.tensor(X), 10**9)
    D = torch.eye(100, dtype=torch.float64)
    for kernel, s in ((ROUGH, 0.1), (SquaredExponential([1.0, 1.0, 1.0], 2.0), 0.3)):
        product.update(kernel, s)
        assert torch.allclose(product(D), torch.tensor(kernel(X) + s * np.eye(100)), atol=1e-5)
