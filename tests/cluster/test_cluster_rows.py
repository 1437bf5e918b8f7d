"""Rows on a cluster answer as rows that are here do."""

from __future__ import annotations

import os
import signal
from typing import Any

import numpy as np
import pytest

from nearexact import SGPRegressor
from nearexact.gp import ties
from nearexact.gp.rows import LocalRows
from nearexact.gp.sparse import SparseObjective
from nearexact.kernels import Kernel, Linear, Matern32, SquaredExponential
from tests.problems import regression

da = pytest.importorskip("dask.array", reason="Dask is not installed")
blocks = pytest.importorskip("nearexact.cluster.blocks", reason="Dask is not installed")

N = 400
KERNELS: dict[str, Kernel] = {  # by V, directly, and with k(x, x) that differs from row to row
    "by V": SquaredExponential([2.0, 2.0, 2.0]),
    "directly": Matern32([0.1, 0.2, 0.1]),
    "not stationary": Linear() + SquaredExponential([0.3, 0.5, 0.5]),
}


def both(client: Any, partitions: int, targets: int = 1, copies: bool = False) -> tuple[Any, LocalRows]:
    """The same standardised rows on the cluster and here."""
    X, y = regression(N)
    if copies:
        X[N // 2 :] = X[: N // 2]
    if targets > 1:
        y = np.column_stack([y, np.cos(X)])[:, :targets]
    chunks = -(-N // partitions)
    rows, scaling_X, scaling_y = blocks.standardised_rows(
        SGPRegressor(), da.from_array(X, chunks=(chunks, 2)), da.from_array(y, chunks=150), client
    )
    assert len(rows.blocks) == partitions
    return rows, LocalRows(scaling_X.apply(X), scaling_y.apply(y))


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("partitions", [1, 2, 5])
def test_evaluations_are_those_of_rows_that_are_here(client: Any, partitions: int) -> None:
    """Value, gradient and every bound to 1e-10, with data standardised on the cluster."""
    rows, here = both(client, partitions, targets=2 if partitions == 2 else 1)
    for kernel in KERNELS.values():
        there, local = (SparseObjective(kernel, 0.1, data, None, here.X[:30]) for data in (rows, here))
        for theta in (local.theta0, local.theta0 + 0.1):
            (value, gradient), (expected, expected_gradient) = there(theta), local(theta)
            assert value == pytest.approx(expected, rel=1e-10)
            np.testing.assert_allclose(gradient, expected_gradient, rtol=1e-10, atol=1e-10 * abs(expected))
    models = [objective.factorise(*local.layout.unpack(theta), residuals=True) for objective in (there, local)]
    for name in ("elbo", "tight_bound", "upper_bound", "log_det"):
        assert getattr(models[0], name) == pytest.approx(getattr(models[1], name), rel=1e-10)
    assert rows.noise_only(1e-5) == pytest.approx(here.noise_only(1e-5), rel=1e-12)


@pytest.mark.usefixtures("small_blocks")
def test_rows_are_found_and_taken_as_here(client: Any) -> None:
    rows, here = both(client, 3)
    chosen = np.array([399, 0, 140, 133, 7])
    taken = rows.take(chosen)
    np.testing.assert_allclose(taken.X, here.X[chosen], rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(taken.y, here.y[chosen], rtol=1e-12, atol=1e-12)
    assert (rows.nearest(chosen) == here.nearest(chosen)).all()


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("permuted_rows", [0, N], ids=["hashed", "permuted"])
@pytest.mark.parametrize("copies", [False, True])
def test_rows_are_selected_as_here(
    client: Any, permuted_rows: int, copies: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With either order that breaks ties: all rows are equal at the start. Of two copies, rounding chooses."""
    monkeypatch.setattr(ties, "PERMUTED_ROWS", permuted_rows)
    rows, here = both(client, 3, copies=copies)
    kernel = KERNELS["by V"]
    for start in (None, np.array([5, 300, 17])):
        selections = [data.select(kernel, 70, seed=3, start=start) for data in (rows, here)]
        chosen = [here.X[selection.indices] for selection in selections]
        assert (chosen[0] == chosen[1]).all()
        assert copies or (selections[0].indices == selections[1].indices).all()
        assert selections[0].residual == pytest.approx(selections[1].residual, rel=1e-9)


@pytest.mark.usefixtures("small_blocks")
def test_a_lost_worker_changes_no_digit(client: Any) -> None:
    """What it held is made again: blocks, what it kept of them, θ, and residual variances under way."""
    rows, here = both(client, 3)
    objective = SparseObjective(KERNELS["by V"], 0.1, rows, None, here.X[:30])
    value, gradient = objective(objective.theta0)
    chosen = rows.select(KERNELS["by V"], 70, seed=3).indices
    blocks_done = []

    def kill_once() -> None:
        if len(blocks_done) == 1:
            os.kill(next(iter(client.run(os.getpid).values())), signal.SIGKILL)
        blocks_done.append(1)

    assert (rows.select(KERNELS["by V"], 70, seed=3, between_blocks=kill_once).indices == chosen).all()
    assert len(blocks_done) > 1
    again, gradient_again = objective(objective.theta0)
    assert again == value
    assert (gradient_again == gradient).all()


@pytest.mark.parametrize(
    ("chunks", "columns", "expected"),
    [
        ((3, 0, 4, 5), 2**17, [3, 4, 5]),
        ((1, 1, 1, 1, 1), 2**16, [2, 3]),
        ((2**20,), 2**4, [2**19, 2**19]),
        ((100,), 3, [100]),
        ((5, 2 * 10**6), 8, [1000003, 1000002]),
    ],
)
def test_small_partitions_are_merged_and_large_ones_split(
    chunks: tuple[int, ...], columns: int, expected: list[int]
) -> None:
    assert blocks.block_sizes(chunks, columns) == expected
