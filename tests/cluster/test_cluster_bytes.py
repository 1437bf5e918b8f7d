"""What an evaluation moves: a few matrices of size M for each worker, and no rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from nearexact import SGPRegressor
from nearexact.gp.sparse import SparseObjective
from nearexact.kernels import SquaredExponential

da = pytest.importorskip("dask.array", reason="Dask is not installed")
blocks = pytest.importorskip("nearexact.cluster.blocks", reason="Dask is not installed")

M, BLOCKS, ROWS = 100, 13, 1500
MATRIX = 8 * M**2
OTHERS = 0.5 * MATRIX  # per worker: inducing points, kernels, sums over y, gradients
CLIENT = 2 * MATRIX  # L and the adjoint of G, which no worker has sent


def sent_by(dask_worker: Any) -> int:
    """Bytes that a worker has sent to others and to the client, as Dask counts them."""
    return int(dask_worker.transfer_outgoing_bytes_total)


@pytest.mark.usefixtures("small_blocks")
def test_an_evaluation_moves_at_most_five_matrices_per_worker(client: Any) -> None:
    random = da.random.default_rng(0)
    X = random.normal(size=(BLOCKS * ROWS, 3), chunks=(ROWS, 3))
    rows, _, _ = blocks.standardised_rows(SGPRegressor(), X, da.sin(X[:, 0]), client)
    assert len(rows.blocks) == BLOCKS
    objective = SparseObjective(SquaredExponential([1.0, 1.0, 1.0]), 0.1, rows, None, rows.take(np.arange(M)).X)
    for number in range(2):
        before = client.run(sent_by)
        objective(objective.theta0 + 0.01 * number)
        after = client.run(sent_by)
        moved = CLIENT + sum(after[worker] - before[worker] for worker in after)
        assert moved <= (5 * MATRIX + OTHERS) * len(after)
    rows.close()
