"""The two sweeps over rows on a cluster: a task for each block, and the sum of what they return."""

from __future__ import annotations

import math
import operator
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from nearexact.cluster import products, workers
from nearexact.gp.memory import MemoryPlan
from nearexact.gp.safety import Numerics, Repairs
from nearexact.gp.sweeps import FirstSums, Point
from nearexact.kernels.base import Cross, Kernel, Tensors, add_to

if TYPE_CHECKING:
    from nearexact.cluster.rows import ClusterRows
    from nearexact.gp.factorisation import Factorisation
    from nearexact.gp.quadratic import System
    from nearexact.gp.sparse import SparseObjective


class ClusterSweeps:
    """Sweeps over blocks for fixed inducing points. Not for use by two threads at once."""

    def __init__(
        self, rows: ClusterRows, kernel: Kernel, Z: Tensor, centre: Tensor, plan: MemoryPlan, numerics: Numerics
    ):
        self.rows, self.plan, self.centre = rows, plan, centre.numpy()
        points = workers.Points(rows.name, uuid.uuid4().hex, kernel, Z.numpy(), numerics)
        self.points = rows.cluster.keep(points)
        self.theta: Any = None  # that of the last first sweep
        self._adjoints: tuple[Tensor, Tensor] | None = None  # those of the last second sweep

    def system(self, objective: SparseObjective, f: Factorisation) -> System:
        """What conjugate gradients need of rows on a cluster, at the last θ."""
        return products.system(self, objective, f)

    def at(self, kernel: Kernel, noise_variance: float) -> ClusterRowsAt:
        """The rows at one θ."""
        return ClusterRowsAt(self, kernel, noise_variance)

    def first_sweep(self, theta: workers.Theta, residuals: bool) -> workers.BlockSums:
        """The sums over all blocks."""
        cluster = self.rows.cluster
        sent = cluster.constant(theta)
        calls = self.rows.calls(workers.first_sweep, self.points, sent, residuals)
        total, self.theta = cluster.start([cluster.total(calls, workers.BlockSums.plus), sent])
        sums: workers.BlockSums = cluster.gather([total])[0]
        return sums

    def swept(self, f: Point) -> None:
        """Workers know by its name what they have kept."""

    def second_sweep(
        self, f: Point, G_bar2: Tensor, bars: Tensor, targets: Tensor, weights: Tensor | None
    ) -> Tensor | None:
        """Only noted: workers do this and `add_gradients` at once. Their targets are theirs, and have no weights."""
        self._adjoints = G_bar2, bars
        return None

    def add_gradients(self, gradients: Tensors, f: Point, uniform: float, weights: Tensor | None) -> None:
        """The second sweep, and what rows contribute by k(x, x)."""
        assert self._adjoints is not None
        G_bar2, bars = (part.contiguous().numpy() for part in self._adjoints)
        adjoints = self.rows.cluster.constant(workers.Adjoints(G_bar2, bars, f.merges, uniform))
        found = self.rows.sum(workers.add_gradients, workers.second_sweep, self.points, self.theta, adjoints)
        add_to(gradients, {name: torch.as_tensor(value) for name, value in found.items()})


@dataclass(frozen=True, eq=False)
class ClusterRowsAt:
    """Rows on a cluster, at one θ."""

    sweeps: ClusterSweeps
    kernel: Kernel
    noise_variance: float

    @property
    def mean_diagonal(self) -> float:
        """The mean of k(x, x)."""
        rows = self.sweeps.rows
        if self.kernel.stationary:
            one = torch.zeros(1, rows.inputs, dtype=torch.float64)
            return float(self.kernel.diagonal(self.kernel.features(one, one[0]))[0])  # the same for all rows
        total: float = rows.sum(operator.add, workers.diagonal_sum, self.kernel, self.sweeps.centre)
        return total / rows.n

    def first_sweep(self, cross: Cross, L: Tensor, *, direct: bool, residuals: bool) -> FirstSums:
        """The sums over all rows."""
        theta = workers.Theta(uuid.uuid4().hex, self.kernel, self.noise_variance, L.contiguous().numpy(), direct)
        sums = self.sweeps.first_sweep(theta, residuals)
        n, yy, diagonal, trace, logs, clamped, rejected = sums.numbers.tolist()
        return FirstSums(
            n=int(n),
            G=torch.from_numpy(sums.G.copy()),
            b=torch.from_numpy(sums.b.copy()),
            yy=yy,
            diagonal_sum=diagonal,
            trace=trace,
            largest_ratio=sums.largest_ratio,
            log_residuals=logs if residuals else None,
            repairs=Repairs(residuals_clamped=int(clamped), residuals_rejected=int(not math.isclose(rejected, 0.0))),
            y=torch.empty(0, dtype=torch.float64),
        )
