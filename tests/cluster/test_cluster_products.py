"""Conjugate gradients over rows on a cluster: the bounds of rows that are here."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from nearexact import SGPRegressor
from nearexact.gp import gpr_objective
from nearexact.gp.quadratic import conjugate_gradients, system_of
from nearexact.gp.rows import LocalRows
from nearexact.gp.sparse import SparseObjective
from nearexact.kernels import Kernel, Linear, Matern32, SquaredExponential
from tests.problems import regression

da = pytest.importorskip("dask.array", reason="Dask is not installed")
blocks = pytest.importorskip("nearexact.cluster.blocks", reason="Dask is not installed")
pytestmark = [
    pytest.mark.usefixtures("small_blocks"),
    pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning"),
]

N = 900  # so that a block has several parts of BLOCK_ROWS
S = 0.1


@pytest.mark.parametrize("targets", [1, 2])
@pytest.mark.parametrize("kernel", [Matern32([0.5, 0.5, 0.5]), Linear() + SquaredExponential([0.5, 0.5, 0.5])])
def test_products_and_bounds_are_those_of_rows_that_are_here(client: Any, kernel: Kernel, targets: int) -> None:
    X, y = regression(N)
    if targets > 1:
        y = np.column_stack([y, np.cos(X[:, 0])])
    there, scaling_X, scaling_y = blocks.standardised_rows(
        SGPRegressor(), da.from_array(X, chunks=(500, 3)), da.from_array(y, chunks=500), client
    )
    here = LocalRows(scaling_X.apply(X), scaling_y.apply(y))
    found = []
    for rows in (there, here):
        objective = SparseObjective(kernel, S, rows, None, here.X[:20])
        f = objective.factorise(*objective.layout.unpack(objective.theta0), residuals=True)
        product, solve, *_ = system_of(objective, f)
        V = torch.from_numpy(np.random.default_rng(0).normal(size=(N, 2)))
        steps = [step.bounds for step, _ in zip(conjugate_gradients(objective, f), range(5), strict=False)]
        found.append((product(V, lambda: None), *solve(V, lambda: None), steps))
    for one, other in zip(found[0][:3], found[1][:3], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)
    assert len(found[0][3]) == len(found[1][3]) > 0
    for one, other in zip(found[0][3], found[1][3], strict=True):
        assert (one.lower, one.upper) == pytest.approx((other.lower, other.upper), rel=1e-8)
    there.close()


def test_certify_with_conjugate_gradients_tightens_the_bounds(client: Any) -> None:
    X, y = regression(150)
    kernel = SquaredExponential().with_bounds(lengthscales="fixed")  # then few evaluations are needed
    rows = da.from_array(X, chunks=(50, 3)), da.from_array(y, chunks=50)
    model = SGPRegressor(kernel, max_inducing=10, procedure="paper", time_limit=None, random_state=0).fit(X, y)
    before = model.certify(*rows, client=client)
    after = model.certify(*rows, client=client, cg_iterations=5)
    expected = model.certify(cg_iterations=5)
    exact = gpr_objective(model.kernel_, model.noise_variance_, model._scaling_X.apply(X), model._scaling_y.apply(y))
    assert after.lower - 1e-6 <= -exact(exact.theta0)[0] <= after.upper + 1e-6
    assert after.upper < before.upper
    assert after.upper >= expected.upper - 1e-6  # which has moments besides
