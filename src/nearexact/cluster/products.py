"""Conjugate gradients over rows on a cluster: products with the exact kernel matrix, and with its preconditioner.

Vectors with an entry for each row are here. In a product each block of rows meets every other one, where either of them
is: work of order N², and blocks travel, but the kernel matrix is never stored.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from nearexact.cluster import workers
from nearexact.cluster.reduction import Call
from nearexact.gp.factorisation import Factorisation
from nearexact.gp.kernel_product import BLOCK_ROWS
from nearexact.gp.linalg import as_columns
from nearexact.gp.memory import row_chunks
from nearexact.gp.quadratic import Preconditioner, System
from nearexact.gp.sparse import SparseObjective
from nearexact.kernels.base import Kernel, with_diagonal
from nearexact.typing import FloatArray

if TYPE_CHECKING:
    from nearexact.cluster.rows import ClusterRows
    from nearexact.cluster.sweeps import ClusterSweeps


def system(sweeps: ClusterSweeps, objective: SparseObjective, f: Factorisation) -> System:
    """K̂v = y for rows on a cluster."""
    cluster = sweeps.rows.cluster
    targets = cluster.results([cluster.task(operator.itemgetter(1), block) for block in sweeps.rows.blocks])
    y = torch.from_numpy(np.concatenate(targets))
    product = ClusterProduct(sweeps.rows, f.kernel, f.noise_variance)
    precondition = ClusterPreconditioner(sweeps, objective, f)
    return System(product, precondition.solve, y, precondition.rounding)


class ClusterProduct:
    """v ↦ (K + sI)v for one vector [N] or several [N, C]."""

    def __init__(self, rows: ClusterRows, kernel: Kernel, noise_variance: float) -> None:
        self.rows, self.kernel, self.noise_variance = rows, kernel, noise_variance

    def __call__(self, v: Tensor, check: Callable[[], None] = lambda: None) -> Tensor:
        """The product. `check` is called before it: what workers have begun is waited for."""
        check()
        blocks, cluster = self.rows.blocks, self.rows.cluster
        parts = [cluster.constant(part) for part in split(self.rows, as_columns(v))]
        tasks: list[Any] = []
        for i, block in enumerate(blocks):
            total: Any = None
            for j in (*range(i, len(blocks)), *range(i)):  # so that not all ask for the same block at once
                total = cluster.task(plus_product, total, block, blocks[j], parts[j], self.kernel, i == j)
            tasks.append(total)
        product = torch.from_numpy(np.concatenate(cluster.results(tasks)))
        return product.view_as(v).add(v, alpha=self.noise_variance)


class ClusterPreconditioner(Preconditioner):
    """r ↦ P⁻¹r, with V on the workers."""

    def __init__(self, sweeps: ClusterSweeps, objective: SparseObjective, f: Factorisation) -> None:
        super().__init__(objective, f)
        self.rows, self.sweeps = sweeps.rows, sweeps

    def _projected(self, R_rows: Tensor, check: Callable[[], None]) -> Tensor:
        check()
        found: FloatArray = self.rows.cluster.sum(self._calls(projected, R_rows), operator.add)
        return torch.from_numpy(found.copy())

    def _subtract(self, R_rows: Tensor, weights: Tensor, check: Callable[[], None]) -> None:
        check()
        cluster = self.rows.cluster
        sent = cluster.constant(weights.contiguous().numpy())
        tasks = [
            cluster.task(call.function, call.block, *call.arguments, sent)
            for call in self._calls(without_projection, R_rows)
        ]
        R_rows.copy_(torch.from_numpy(np.concatenate(cluster.results(tasks))).T)

    def _calls(self, function: Callable[..., Any], R_rows: Tensor) -> list[Call]:
        parts = zip(self.rows.blocks, split(self.rows, R_rows.T), strict=True)
        same = self.sweeps.points, self.sweeps.theta
        return [Call(function, block, (number, *same, part)) for number, (block, part) in enumerate(parts)]


def split(rows: ClusterRows, columns: Tensor) -> list[FloatArray]:
    """The entries of each block."""
    return np.split(columns.contiguous().numpy(), rows.first[1:-1])


# ---- on the workers --------------------------------------------------------------------------------------------------


def plus_product(
    total: FloatArray | None, block: workers.Block, other: workers.Block, v: FloatArray, kernel: Kernel, same: bool
) -> FloatArray:
    """What there is so far, and K v for the kernel matrix of a block with another, or with itself."""
    X, Z = workers.inputs(block), workers.inputs(other)
    centre = X.new_zeros(X.shape[1])  # the mean of standardised inputs
    features_X, features_Z, V = kernel.features(X, centre), kernel.features(Z, centre), workers.tensor(v)
    product = X.new_zeros(len(X), V.shape[1]) if total is None else workers.tensor(total)
    for columns in row_chunks(len(Z), BLOCK_ROWS):
        cross = kernel.against(features_Z[columns])
        for rows in row_chunks(len(X), BLOCK_ROWS):
            K = cross.values(features_X[rows])
            if same and rows == columns:
                K = with_diagonal(K, kernel.diagonal(features_X[rows]))
            product[rows].addmm_(K, V[columns])
    return product.numpy()


def projected(
    block: workers.Block, number: int, points: workers.Points, theta: workers.Theta, R: FloatArray
) -> FloatArray:
    """RᵀVᵀ of a block [C, M]."""
    R_rows = workers.tensor(R).T.contiguous()
    found = R_rows.new_zeros(len(R_rows), len(points.Z))
    for rows, V in workers.rows_of_V(block, number, points, theta):
        found.addmm_(R_rows[:, rows], V)
    return found.numpy()


def without_projection(
    block: workers.Block,
    number: int,
    points: workers.Points,
    theta: workers.Theta,
    R: FloatArray,
    weights: FloatArray,
) -> FloatArray:
    """R − Vᵀweightsᵀ of a block [rows, C]."""
    R_rows, W = workers.tensor(R).T.contiguous(), workers.tensor(weights)
    for rows, V in workers.rows_of_V(block, number, points, theta):
        R_rows[:, rows].addmm_(W, V.T, alpha=-1.0)
    return R_rows.T.contiguous().numpy()
