"""Bounds on log|K̂| by the chain rule: theorems on random problems, limits, and what they bring."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nearexact.gp import chain_rule, sgpr_objective
from nearexact.gp.budget import TimeIsUpError, Timer
from nearexact.gp.chain_rule import Ordered, log_det_bound, log_det_bounds, needed_memory
from nearexact.gp.row_noise import RowNoise
from nearexact.gp.safety import NumericalError
from nearexact.kernels import Kernel, Matern12, SquaredExponential
from nearexact.kernels.base import Tensors
from tests.gp.helpers import Problem, problems, slack
from tests.problems import KERNELS

every_kernel = pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS.keys())
ENOUGH = 10**9  # bytes
ALLOWANCE = 1e-5  # for rounding errors, in nats
ROUGH, NOISE = Matern12(0.5), 0.01


@dataclass(frozen=True)
class Distance(Kernel):
    """1 + |x − z| is no kernel: rows far from each other would have a correlation above 1."""

    scale: float = 1.0

    def formula(self, p: Tensors, X: torch.Tensor, Z: torch.Tensor) -> torch.Tensor:
        return 1.0 + p["scale"].mean() * torch.cdist(X, Z)


def rows(n: int, d: int = 3, seed: int = 0) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(size=(n, d)))


def dense_log_det(kernel: Kernel, noise: float | torch.Tensor, X: torch.Tensor) -> float:
    K = kernel(X)
    return float(torch.linalg.slogdet(K + torch.diag(torch.as_tensor(noise).expand(len(X))))[1])


@settings(max_examples=300, deadline=None)
@given(problems(), st.integers(1, 60), st.integers(0, 2**32 - 1), st.booleans())
def test_it_is_never_below_the_log_determinant(problem: Problem, given: int, seed: int, differs: bool) -> None:
    kernel, s, inputs, _, _ = problem
    X, rng = torch.from_numpy(inputs), np.random.default_rng(seed)
    noise = RowNoise(*torch.from_numpy(rng.uniform(0.1, 3.0, size=(2, len(X))))) if differs else None
    exact = dense_log_det(kernel, s if noise is None else noise.variances(s), X)
    bound = log_det_bound(kernel, s, X, given, row_noise=noise, seed=seed, memory=ENOUGH)
    room = slack(problem, exact)
    assert bound >= exact - room
    if given >= len(X):
        assert bound <= exact + 10.0 * room


@every_kernel
def test_it_is_the_log_determinant_where_all_rows_before_are_given(kernel: Kernel) -> None:
    X = rows(90)
    exact = dense_log_det(kernel, NOISE, X)
    ordered = Ordered.of(kernel, NOISE, X, None, 20, 0)
    assert len(ordered.blocks) == 5
    assert sum(ordered.log_det(number, 90) for number in range(5)) == pytest.approx(exact, rel=1e-9, abs=ALLOWANCE)


@every_kernel
def test_one_row_given_none_is_hadamards_inequality(kernel: Kernel) -> None:
    X = rows(40)
    ordered = Ordered.of(kernel, NOISE, X, None, 1, 0)
    hadamard = float((kernel.diag(X) + NOISE).log().sum())
    assert sum(ordered.log_det(number, 0) for number in range(40)) == pytest.approx(hadamard, rel=1e-9, abs=ALLOWANCE)


@every_kernel
def test_every_row_is_in_one_block_and_none_is_too_large(kernel: Kernel) -> None:
    blocks = Ordered.of(kernel, NOISE, torch.cat([rows(50), rows(50)]), None, 7, 3).blocks  # all rows twice
    assert sorted(torch.cat(list(blocks)).tolist()) == list(range(100))
    assert max(map(len, blocks)) <= 7
    assert min(map(len, blocks)) >= 3


def test_rows_of_a_block_are_near_to_each_other() -> None:
    X = rows(400, d=2)
    ordered = Ordered.of(SquaredExponential(0.3), NOISE, X, None, 25, 0)
    spread = math.fsum(float(X[block].var(0).sum()) for block in ordered.blocks) / len(ordered.blocks)
    assert spread < 0.15 * float(X.var(0).sum())


def test_more_rows_given_bring_it_near_to_the_log_determinant_of_a_rough_function() -> None:
    """A sparse GP with as many points as rows are given leaves most of it open."""
    X = rows(1500)
    exact = dense_log_det(ROUGH, NOISE, X)
    errors = [log_det_bound(ROUGH, NOISE, X, given, memory=ENOUGH) - exact for given in (16, 64, 256)]
    assert all(more < 0.5 * fewer for fewer, more in pairwise(errors))
    f = sgpr_objective(ROUGH, NOISE, X, X[:, 0], X[:256]).factorise(ROUGH, NOISE, residuals=True)
    assert errors[-1] < 0.02 * (f.bounds.log_det.upper - exact)


def test_it_is_the_same_on_one_thread_and_on_several() -> None:
    before, bounds = torch.get_num_threads(), []
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            bounds.append(log_det_bound(ROUGH, NOISE, rows(300), 32, memory=ENOUGH))
    finally:
        torch.set_num_threads(before)
    assert bounds[0] == pytest.approx(bounds[1], rel=1e-12)


def test_bounds_fall_until_they_hardly_change(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chain_rule, "GIVEN", (8, 32, 128, 512, 1024))
    X = rows(600)
    bounds = [bound for bound, _ in log_det_bounds(ROUGH, NOISE, X, timer=Timer(), memory=ENOUGH)]
    assert len(bounds) == 4  # with 512 given and blocks of 256 there is nothing left to give
    assert all(a >= b for a, b in pairwise(bounds))
    assert bounds[-1] == pytest.approx(dense_log_det(ROUGH, NOISE, X), abs=1.0)
    noisy = [bound for bound, _ in log_det_bounds(ROUGH, 1e3, X, timer=Timer(), memory=ENOUGH)]
    assert len(noisy) == 2


def test_time_and_memory_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chain_rule, "GIVEN", (8, 32, 128))
    X = rows(300)

    def count(seconds: float, memory: int) -> int:
        ticks = iter(range(10**6))
        timer = Timer(seconds, clock=lambda: float(next(ticks)))  # one second for each time that it is asked
        return len(list(log_det_bounds(ROUGH, NOISE, X, timer=timer, memory=memory)))

    assert count(math.inf, ENOUGH) == 3
    assert count(10.0, ENOUGH) == 0  # there are 75 blocks
    assert count(100.0, ENOUGH) == 1
    assert count(math.inf, needed_memory(ROUGH, 32)) == 2
    assert count(math.inf, needed_memory(ROUGH, 8) - 1) == 0


def test_an_exception_between_blocks_ends_it() -> None:
    def check() -> None:
        raise TimeIsUpError

    with pytest.raises(TimeIsUpError):
        log_det_bound(ROUGH, NOISE, rows(300), 8, memory=ENOUGH, check=check)


def test_a_kernel_that_is_none_gives_no_bound() -> None:
    X = rows(100)
    with pytest.raises(NumericalError, match="no Cholesky factor"):
        log_det_bound(Distance(), 1e-6, X, 50, memory=ENOUGH)
    assert not list(log_det_bounds(Distance(), 1e-6, X, timer=Timer(), memory=ENOUGH))
