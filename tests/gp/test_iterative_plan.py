"""What evaluations by conjugate gradients cost, and what preconditions them: points, or blocks of rows."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from nearexact.gp.budget import Timer
from nearexact.gp.iterative_cost import BLOCK_POINTS, EvaluationCost, blocks_fit, iterative_fits, possible_sizes
from nearexact.gp.iterative_plan import IterativePlan
from nearexact.gp.stored_kernel import Storage, stored_bytes
from nearexact.kernels import SquaredExponential
from tests.problems import standardised


def test_what_a_sparse_gp_leaves_over_tells_a_smooth_function_before_the_first_evaluation() -> None:
    cost = EvaluationCost(10_000, 1e-10)
    assert cost.after_sparse(400, left_over=1e-6, noise_variance=0.1).iterations == 1.0
    assert cost.after_sparse(400, left_over=1.0, noise_variance=0.1).predicted_iterations(400) == pytest.approx(
        95.0, abs=1.0
    )
    for rough_cost in (cost, cost.measured(400, 1.0, 2, 0.0)):  # usual iterations are enough, or they are known
        assert rough_cost.after_sparse(400, left_over=100.0, noise_variance=0.1) is rough_cost


def test_blocks_are_worth_as_many_iterations_as_points_would_cost() -> None:
    points = EvaluationCost(40_000, 1e-10).measured(1500, 30.0, 60, 0.0)
    blocks = points.with_blocks(1500)
    assert blocks.given > 0
    assert not blocks.is_measured
    spent = blocks.sweeping(BLOCK_POINTS) + blocks.solving(BLOCK_POINTS)
    assert spent == pytest.approx(points.sweeping(1500) + points.solving(1500))
    assert blocks.predicted_iterations(100) == blocks.predicted_iterations(2000) == blocks.iterations
    assert blocks.iterations == pytest.approx(points.iterations_worth(1500, 60.0))


def test_blocks_are_considered_where_a_function_is_rough() -> None:
    def plan(cost: EvaluationCost, **options: bool) -> IterativePlan:
        made = IterativePlan([400, 1500], cost.n, Timer(1e6), may_factorise=False, **{"may_block": True} | options)
        made.cost = cost
        made.consider_blocks()
        return made

    rough_cost = EvaluationCost(40_000, 1e-10, iterations=40.0, iterations_m=400)
    taken = plan(rough_cost)
    assert taken.cost.given > 0
    most = taken.most_iterations(taken.points())
    assert most is not None
    assert most > 40  # as if more points did not help
    assert taken.has_another(taken.points())
    assert taken.cost is rough_cost
    taken.consider_blocks()
    assert taken.cost is rough_cost  # once they have failed
    smooth = EvaluationCost(40_000, 1e-10, iterations=2.0, iterations_m=400)
    assert plan(smooth).cost is smooth
    assert plan(rough_cost, may_block=False).cost is rough_cost


def test_the_cheapest_number_of_points_balances_sweeps_and_iterations() -> None:
    sizes = [100, 1000, 4000]
    hard, easy = EvaluationCost(100_000, 1e-10, 60, 1000), EvaluationCost(2000, 1e-10, 2, 1000)
    assert hard.cheapest(sizes) == 4000
    assert easy.cheapest(sizes) == 100
    noisy = EvaluationCost(2000, 1e-10).measured(1000, 1.0, 60, error_per_row=0.008)
    assert noisy.cheapest(sizes) == 4000  # twice as many points for a quarter of the error
    assert replace(easy, kernel_pass=1e4).cheapest(sizes) == 100  # what computing K takes by the clock decides nothing
    assert EvaluationCost(2000, 1e-10).measured(1000, 1.0, 1, error_per_row=0.0).cheapest(sizes) == 1000  # not a tenth


def test_the_seconds_of_an_evaluation_are_predicted_from_the_last_one() -> None:
    cost = EvaluationCost(5000, 1e-10).measured(400, 7.0, 30, 1e-4)
    assert cost.predicted(400) == pytest.approx(7.0)
    assert cost.predicted_iterations(400) == 30
    assert cost.predicted_iterations(800) < 30
    assert cost.sweeping(800) == pytest.approx(4.0 * cost.sweeping(400))


def test_points_are_so_many_that_memory_holds_them_and_the_kernel_matrix_if_it_can() -> None:
    kernel, n = SquaredExponential([1.0, 1.0]), 4000
    generous, modest = possible_sizes(kernel, n, 5, 10**10), possible_sizes(kernel, n, 5, 100_000_000)
    assert max(generous) == int(0.8 * n)
    assert max(modest) < max(generous)
    assert stored_bytes(n, Storage.FLOAT32) + 8 * n * max(modest) <= 100_000_000
    assert possible_sizes(kernel, n, 5, 2_000_000) == []


def test_blocks_are_taken_where_memory_holds_them_besides_points() -> None:
    kernel, rows = SquaredExponential([1.0, 1.0], 1.0), 20_000
    assert blocks_fit(kernel, rows, 4, 10**10)
    assert blocks_fit(kernel, rows, 4, 600_000_000)  # without K, as with points alone
    assert not blocks_fit(kernel, rows, 4, 200_000_000)
    with_K = stored_bytes(rows, Storage.FLOAT32)
    assert not blocks_fit(kernel, rows, 4, with_K + 300_000_000)  # they would leave no room for it
    assert not blocks_fit(kernel, 1000, 4, 10**10)


def test_it_fits_or_does_not_by_the_time_limit() -> None:
    X = torch.from_numpy(standardised(500)[0])
    kernel = SquaredExponential().for_inputs(X.shape[1])
    assert iterative_fits(kernel, X, 1e6, None, evaluations=10.0)
    assert iterative_fits(kernel, X, math.inf, None, evaluations=10.0)
    assert not iterative_fits(kernel, X, 1e-6, None, evaluations=10.0)
