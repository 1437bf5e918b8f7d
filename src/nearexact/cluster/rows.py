"""Rows on a cluster: blocks that stay on the workers, and what training asks of all of them."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from contextlib import suppress
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from distributed import Future
from torch import Tensor

from nearexact.cluster import workers
from nearexact.cluster.reduction import Call, Cluster
from nearexact.cluster.selection import select
from nearexact.cluster.sweeps import ClusterSweeps
from nearexact.gp.inducing import Selection
from nearexact.gp.memory import MemoryPlan
from nearexact.gp.rows import DISTANCES_AT_ONCE, LocalRows, Taken
from nearexact.gp.safety import DEFAULT_NUMERICS, Numerics
from nearexact.kernels.base import Kernel
from nearexact.noise_only import gaussian_log_likelihood
from nearexact.typing import FloatArray, IndexArray


class ClusterRows:
    """Standardised rows, as futures of blocks [rows, D] with targets."""

    row_noise = None  # all rows have the same
    here = 0

    def __init__(
        self, cluster: Cluster, blocks: list[Future], sizes: list[int], inputs: int, squares: FloatArray
    ) -> None:
        self.cluster, self.blocks, self.inputs = cluster, blocks, inputs
        self.first = [0, *accumulate(sizes)]  # row of each block, and at the end the number of rows
        self.n, self.device = self.first[-1], torch.device("cpu")
        self.squares = squares  # Σy²: [], or [T] of several targets
        self.name = uuid.uuid4().hex  # by which workers know what belongs to these rows

    @property
    def has_signal(self) -> bool:
        """Whether any target differs from 0."""
        return bool(self.squares.any())

    def calls(self, function: Callable[..., Any], *arguments: Any) -> list[Call]:
        """For each block a call of the function with the block, its number, and these arguments."""
        return [Call(function, block, (number, *arguments)) for number, block in enumerate(self.blocks)]

    def sum(self, add: Callable[[Any, Any], Any], function: Callable[..., Any], *arguments: Any) -> Any:
        """The sum of what these calls return."""
        return self.cluster.sum(self.calls(function, *arguments), add)

    def take(self, rows: IndexArray) -> Taken:
        """These rows, in this order."""
        block_of = np.searchsorted(self.first, rows, side="right") - 1
        blocks = np.unique(block_of)
        wanted = [np.flatnonzero(block_of == block) for block in blocks]
        tasks = [
            self.cluster.task(workers.take, self.blocks[block], rows[where] - self.first[block])
            for block, where in zip(blocks, wanted, strict=True)
        ]
        parts = self.cluster.results(tasks)
        back = np.argsort(np.concatenate(wanted))
        X, y = (torch.from_numpy(np.concatenate(part)[back]) for part in zip(*parts, strict=True))
        return Taken(X, y, None)

    def gathered(self) -> LocalRows:
        """All rows, brought here."""
        X, y = zip(*self.cluster.gather(self.blocks), strict=True)
        return LocalRows(np.concatenate(X), np.concatenate(y))

    def noise_only(self, least_variance: float) -> float:
        """The log likelihood of the constant predictor."""
        values = self.n * self.squares.size
        mean_square = float(self.squares.sum()) / values
        return gaussian_log_likelihood(max(mean_square, least_variance), values, mean_square)

    def nearest(self, rows: IndexArray) -> IndexArray:
        """The nearest other row of each of these rows."""
        X = self.cluster.constant(self.take(rows).X.numpy())
        parts = self.cluster.results(
            [
                self.cluster.task(workers.nearest, block, first, X, rows, DISTANCES_AT_ONCE)
                for block, first in zip(self.blocks, self.first, strict=False)
            ]
        )
        distances, numbers = (np.stack(part) for part in zip(*parts, strict=True))  # [blocks, rows]
        found: IndexArray = numbers[distances.argmin(0), np.arange(len(rows))]
        return found

    def select(
        self,
        kernel: Kernel,
        m: int,
        *,
        seed: int | None,
        start: npt.ArrayLike | None = None,
        between_blocks: Callable[[], None] | None = None,
        numerics: Numerics = DEFAULT_NUMERICS,
    ) -> Selection:
        """Greedy variance selection; see selection.py."""
        pause = between_blocks or (lambda: None)
        return select(self, kernel, m, seed=seed, start=start, between_blocks=pause, numerics=numerics)

    def sweeps(self, kernel: Kernel, Z: Tensor, centre: Tensor, plan: MemoryPlan, numerics: Numerics) -> ClusterSweeps:
        """Sweeps for inducing points Z, with features measured from a centre."""
        return ClusterSweeps(self, kernel, Z, centre, plan, numerics)

    def close(self) -> None:
        """Let the workers forget what they keep of these rows; a cluster that is gone has done so already."""
        client = self.cluster.client
        if client.status == "running":
            with suppress(Exception):  # a courtesy: nothing depends on it
                client.run(workers.forget, self.name, on_error="ignore")
