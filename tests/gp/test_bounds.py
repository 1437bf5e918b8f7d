"""Theorems about the bounds, on random problems of every kernel."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings

from nearexact.gp import gpr_objective, greedy_variance, sgpr_objective
from nearexact.kernels import Kernel
from tests.gp.helpers import Problem, problems, slack
from tests.problems import KERNELS


@settings(max_examples=300, deadline=None)
@given(problems())
def test_elbo_and_upper_bound_bracket_the_log_marginal_likelihood(problem: Problem) -> None:
    kernel, s, X, y, m = problem
    Z = X[np.random.default_rng(m).permutation(len(X))[:m]]
    model = sgpr_objective(kernel, s, X, y, Z).factorise(kernel, s)
    lml = gpr_objective(kernel, s, X, y).factorise(kernel, s).lml
    assert model.elbo <= lml + slack(problem, lml)
    assert lml <= model.upper_bound + slack(problem, lml)


@settings(max_examples=100, deadline=None)
@given(problems())
def test_more_points_never_hurt(problem: Problem) -> None:
    """For fixed hyperparameters and nested Z the ELBO never falls and the upper bound never rises."""
    kernel, s, X, y, _ = problem
    order = greedy_variance(kernel, X, len(X), seed=0)
    elbos, uppers = [], []
    for m in sorted({1, (len(order) + 1) // 2, len(order)}):
        model = sgpr_objective(kernel, s, X, y, X[order[:m]]).factorise(kernel, s)
        elbos.append(model.elbo)
        uppers.append(model.upper_bound)
    assert all(b >= a - slack(problem, a) for a, b in pairwise(elbos))
    assert all(b <= a + slack(problem, a) for a, b in pairwise(uppers))


@pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS.keys())
def test_all_points_make_it_exact(kernel: Kernel) -> None:
    """At Z = X the ELBO, the upper bound and the predictions are those of the exact GP, up to the jitter."""
    rng = np.random.default_rng(0)
    X, y, X_new, s = rng.normal(size=(40, 3)), rng.normal(size=40), rng.normal(size=(10, 3)), 0.1
    sparse = sgpr_objective(kernel, s, X, y, X).factorise(kernel, s)
    exact = gpr_objective(kernel, s, X, y).factorise(kernel, s)
    assert sparse.elbo == pytest.approx(exact.lml, rel=1e-7)
    assert sparse.upper_bound == pytest.approx(exact.lml, rel=1e-7)
    for ours, theirs in zip(sparse.posterior().joint(X_new), exact.joint(X_new), strict=True):
        assert np.allclose(ours, theirs, rtol=1e-5, atol=1e-6)
