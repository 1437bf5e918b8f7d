"""What neighbours say about a row, against leave-one-out formulas, and which θ follows from it."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from nearexact.gp.known_optimum import SubsetOptimum
from nearexact.gp.nearest_density import NEAREST, best_noise, best_with_all_rows, log_densities, noise_between_pairs
from nearexact.gp.row_noise import RowNoise
from nearexact.gp.search import Search
from nearexact.kernels import Kernel, SquaredExponential
from tests.problems import KERNELS, standardised


def leave_one_out(K: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Log density of each target given all others, from the inverse of the covariance of all."""
    inverse = np.linalg.inv(K)
    variance = 1.0 / np.diag(inverse)
    return -0.5 * ((inverse @ y * variance) ** 2 / variance + np.log(2.0 * math.pi * variance))


@pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS.keys())
def test_with_all_other_rows_as_neighbours_it_is_the_leave_one_out_density(kernel: Kernel) -> None:
    X, y = standardised(NEAREST // 2)
    noises = [0.05, 0.5]
    found = log_densities(kernel, noises, torch.tensor(X), torch.tensor(y), torch.arange(len(y)))
    for noise, densities in zip(noises, found, strict=True):
        expected = leave_one_out(kernel(X) + noise * np.eye(len(y)), y)
        np.testing.assert_allclose(densities, expected, rtol=1e-6, atol=1e-6)


def test_noise_of_rows_and_several_targets_count() -> None:
    X, y = standardised(40)
    kernel, both = SquaredExponential([1.0, 1.0, 1.0]), np.column_stack([y, y**2])
    factors = np.linspace(0.5, 2.0, 40)
    row_noise = RowNoise(torch.tensor(factors), torch.full((40,), 0.01, dtype=torch.float64))
    rows = torch.arange(0, 40, 7)
    found = log_densities(kernel, [0.1], torch.tensor(X), torch.tensor(both), rows, row_noise)[0]
    variances = row_noise.variances(0.1).numpy()
    K = kernel(X) + np.diag(variances)
    expected = leave_one_out(K, both[:, 0]) + leave_one_out(K, both[:, 1])
    np.testing.assert_allclose(found, expected[rows], rtol=1e-6)


@pytest.mark.parametrize("noise", [1e-5, 0.02])
def test_noise_that_is_right_for_few_rows_only_is_set_right(noise: float) -> None:
    rng = np.random.default_rng(0)
    X = rng.uniform(-2.0, 2.0, size=(1500, 2))
    y = np.sin(3.0 * X[:, 0]) + math.sqrt(0.1) * rng.normal(size=1500)
    search = Search(SquaredExponential([0.6, 1.0]), X, y, seed=0, most_rows=100)
    search.run()
    theta = search.layout.pack(SquaredExponential([0.6, 1.0]), noise)
    search.candidates = [SubsetOptimum(theta, 0.0)]
    found = search.layout.unpack(best_with_all_rows(search, torch.tensor(X), torch.tensor(y)))[1]
    assert 0.03 < found < 0.33


def test_the_best_of_the_search_is_kept_where_nothing_is_clearly_better() -> None:
    X, y = (torch.tensor(values) for values in standardised(400))
    search = Search(SquaredExponential(), X, y, seed=0, most_rows=200)
    search.run()
    assert best_with_all_rows(search, X, y) is search.candidates[0].theta
    search.rounds[-1] = replace(search.rounds[-1], rows=400)  # those of a subset that is all rows are not doubted
    search.candidates = [SubsetOptimum(search.layout.pack(SquaredExponential([9.0] * 3), 1e-5), 0.0)]
    assert best_with_all_rows(search, X, y) is search.candidates[0].theta


def test_a_few_rows_that_contradict_each_other_are_not_missed() -> None:
    """Ten of 3000 rows come twice, with other targets: without noise these would cost more than all others gain."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-2.0, 2.0, size=(3000, 3))
    y = np.sin(2.0 * X[:, 0])
    kernel, data = SquaredExponential([1.0, 3.0, 3.0]), (torch.tensor(X), torch.tensor(y))
    assert noise_between_pairs(kernel, 1e-5, *data) == 1e-5
    X[:10], y[:10] = X[10:20], y[10:20] + 1.0
    assert noise_between_pairs(kernel, 1e-5, *data) == 1e-5  # which are copies
    assert noise_between_pairs(kernel, 1e-5, torch.tensor(X), torch.tensor(y)) > 1e-4
    assert noise_between_pairs(kernel, 0.5, torch.tensor(X), torch.tensor(y)) == 0.5
    for most in (1e-5, 1e-4):  # what a user allows
        assert noise_between_pairs(kernel, 1e-5, torch.tensor(X), torch.tensor(y), most=most) <= most
        assert best_noise(kernel, 1e-5, torch.tensor(X), torch.tensor(y), most=most)[0] <= most


def test_a_signal_variance_that_is_too_small_is_not_taken_for_noise() -> None:
    """Rows that are far from each other differ by the function, whatever the kernel expects of it."""
    rng = np.random.default_rng(0)
    X = torch.tensor(rng.uniform(-2.0, 2.0, size=(500, 6)))
    y = torch.sin(3.0 * X).sum(1) + 0.05 * torch.tensor(rng.normal(size=500))
    assert noise_between_pairs(SquaredExponential([0.5] * 6, variance=0.1), 0.01, X, y) == 0.01
