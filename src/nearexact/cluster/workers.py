"""What runs on the workers: functions of one block of rows and of small arrays, and what a worker keeps between them.

A block is a tuple of standardised inputs [rows, D] and targets, [rows] or [rows, T]. Every function is pure: whatever a
worker keeps only saves time, and is made again, to the same digits, where it is gone.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from distributed import get_worker
from torch import Tensor

from nearexact.gp.linalg import as_columns
from nearexact.gp.memory import MemoryPlan, chunk_rows, row_chunks
from nearexact.gp.safety import Numerics
from nearexact.gp.sweeps import LocalSweeps
from nearexact.kernels.base import Cross, Kernel, Tensors
from nearexact.limits import free_memory
from nearexact.typing import FloatArray, IndexArray

Block = tuple[FloatArray, FloatArray]
KEPT_SHARE = 0.4  # of a worker's memory limit; Dask begins to write data to disk at 0.6 of it


class Points(NamedTuple):
    """Inducing points, and what is the same for all θ."""

    fit: str  # which fit they belong to
    name: str  # unique
    kernel: Kernel
    Z: FloatArray  # [M, D]
    numerics: Numerics


class Theta(NamedTuple):
    """One θ for the sweeps."""

    name: str  # unique
    kernel: Kernel
    noise_variance: float
    L: FloatArray  # chol(K_ZZ + jitter·I)  [M, M]
    direct: bool


class Adjoints(NamedTuple):
    """What the second sweep needs besides."""

    G_bar2: FloatArray  # [M, M]
    bars: FloatArray  # [T, M]
    merges: bool  # whether both have been solved with L already
    uniform: float  # minus twice the derivative by every k(x, x)


class BlockSums(NamedTuple):
    """What leaves the first sweep: FirstSums as arrays."""

    G: FloatArray  # [M, M]
    b: FloatArray  # [M], or [M, T]
    numbers: FloatArray  # rows, yᵀy, Σ k(x, x), Σ k(x, x) − q(x, x), Σ log(1 + d/s), residuals clamped and rejected
    largest_ratio: float

    def plus(self, other: BlockSums) -> BlockSums:
        """Those of both."""
        ratio = float(np.maximum(self.largest_ratio, other.largest_ratio))  # NaN if one is
        return BlockSums(self.G + other.G, self.b + other.b, self.numbers + other.numbers, ratio)


@dataclass(eq=False)
class PointOfBlock:
    """One θ as the sweeps over a block know it."""

    kernel: Kernel
    cross: Cross
    L: Tensor
    direct: bool
    merges: bool = False  # the second sweep says so
    scales: None = None


@dataclass(eq=False)
class Kept:
    """Sweeps over one block, with their features and V, and the θ that V is of."""

    sweeps: LocalSweeps
    size: int  # bytes
    theta: str = ""
    point: PointOfBlock | None = None


@dataclass
class Store:
    """What a worker keeps, up to so many bytes. Each entry is taken out while it is in use."""

    limit: int
    entries: dict[tuple[str, str, int], Kept] = field(default_factory=dict)
    sizes: dict[tuple[str, str, int], int] = field(default_factory=dict)  # also of those in use
    lock: threading.Lock = field(default_factory=threading.Lock)

    def take(self, key: tuple[str, str, int]) -> Kept | None:
        """The entry, if it is here. Those of the same fit with other points are out of date, and dropped."""
        with self.lock:
            for other in [k for k in self.entries if k[0] == key[0] and k[1] != key[1]]:
                self._drop(other)
            return self.entries.pop(key, None)

    def reserve(self, key: tuple[str, str, int], size: int) -> bool:
        """Whether there is room for so many bytes; idle entries of other fits make way, the oldest first."""
        with self.lock:
            for other in [k for k in self.entries if k[0] != key[0]]:
                if sum(self.sizes.values()) + size <= self.limit:
                    break
                self._drop(other)
            fits = sum(self.sizes.values()) + size <= self.limit
            if fits:
                self.sizes[key] = size
            return fits

    def put(self, key: tuple[str, str, int], kept: Kept) -> None:
        """Keep an entry that has room."""
        with self.lock:
            if key in self.sizes:
                self.entries[key] = kept

    def forget(self, fit: str) -> None:
        """Drop all that belongs to a fit."""
        with self.lock:
            for key in [k for k in self.sizes if k[0] == fit]:
                self._drop(key)

    def _drop(self, key: tuple[str, str, int]) -> None:
        self.entries.pop(key, None)
        self.sizes.pop(key, None)


def store_of(worker: Any) -> Store:
    """The store of a worker."""
    limit = worker.memory_manager.memory_limit or free_memory(torch.device("cpu")) // 2
    store: Store = worker.__dict__.setdefault("nearexact_store", Store(int(KEPT_SHARE * limit)))
    return store


def forget(fit: str, dask_worker: Any = None) -> None:
    """Drop what a worker keeps of a fit."""
    store_of(dask_worker).forget(fit)


def tensor(values: FloatArray) -> Tensor:
    """A copy, in memory as aligned as any other tensor's: rounding must not depend on how an array came here."""
    return torch.tensor(values)


def inputs(block: Block) -> Tensor:
    """The inputs of a block, not to be changed."""
    X = block[0]
    return torch.from_numpy(X if X.flags.writeable else X.copy())


# ---- sweeps ----------------------------------------------------------------------------------------------------------


def first_sweep(block: Block, number: int, points: Points, theta: Theta, residuals: bool) -> BlockSums:
    """Sums of the first sweep over a block."""
    with _kept(block, number, points) as kept:
        point = _point(kept, points, theta)
        sums = kept.sweeps.at(theta.kernel, theta.noise_variance).first_sweep(
            point.cross, point.L, direct=theta.direct, residuals=residuals
        )
        kept.sweeps.swept(point)
        logs = math.nan if sums.log_residuals is None else sums.log_residuals
        repairs = (sums.repairs.residuals_clamped, sums.repairs.residuals_rejected)
        numbers = np.array([sums.n, sums.yy, sums.diagonal_sum, sums.trace, logs, *repairs])
        return BlockSums(sums.G.numpy(), sums.b.numpy(), numbers, sums.largest_ratio)


def second_sweep(block: Block, number: int, points: Points, theta: Theta, adjoints: Adjoints) -> dict[str, FloatArray]:
    """Gradients by the kernel's parameters that come from a block."""
    with _kept(block, number, points) as kept:
        point = _point(kept, points, theta)
        point.merges = adjoints.merges
        targets = as_columns(kept.sweeps.y)
        kept.sweeps.second_sweep(point, tensor(adjoints.G_bar2), tensor(adjoints.bars), targets, None)
        gradients: Tensors = point.cross.gradients()
        kept.sweeps.add_gradients(gradients, point, adjoints.uniform, None)
        kept.theta, kept.point = "", None  # its adjoints are in the gradients now
        return {name: value.numpy() for name, value in gradients.items()}


def rows_of_V(block: Block, number: int, points: Points, theta: Theta) -> Iterator[tuple[slice, Tensor]]:
    """V of a block, chunk by chunk [rows, M]."""
    with _kept(block, number, points) as kept:
        yield from kept.sweeps.rows_of_V(_point(kept, points, theta))


def diagonal_sum(block: Block, _: int, kernel: Kernel, centre: FloatArray) -> float:
    """The sum of k(x, x) over a block."""
    return float(kernel.diagonal(kernel.features(inputs(block), tensor(centre))).sum())


def add_gradients(one: dict[str, FloatArray], other: dict[str, FloatArray]) -> dict[str, FloatArray]:
    """The sum by name."""
    return {name: value + other[name] for name, value in one.items()}


@contextmanager
def _kept(block: Block, number: int, points: Points) -> Iterator[Kept]:
    """The sweeps over a block: those that the worker has kept, or new ones."""
    key = (points.fit, points.name, number)
    store = store_of(get_worker())
    kept = store.take(key)
    if kept is None:
        kept = _new_sweeps(block, points, store, key)
    yield kept
    store.put(key, kept)  # not after an error, which may have left it half done


def _new_sweeps(block: Block, points: Points, store: Store, key: tuple[str, str, int]) -> Kept:
    """Sweeps that keep what there is room for. How rows are cut into chunks depends on the block alone."""
    X, y = inputs(block), tensor(block[1])
    Z = tensor(points.Z)
    centre = Z.mean(0)
    n, m, n_features = len(X), len(Z), points.kernel.features(X[:1], centre).shape[1]
    rows = min(n, chunk_rows(m))
    least = 8 * (2 * rows * m + n)
    sizes = {(True, True): 8 * n * (m + n_features), (True, False): 8 * n * m, (False, True): 8 * n * n_features}
    keeps_v, keeps_features = next((k for k, size in sizes.items() if store.reserve(key, least + size)), (False, False))
    plan = MemoryPlan(rows, keeps_v, keeps_features, 0)
    sweeps = LocalSweeps(X, y, None, m=m, kernel=points.kernel, centre=centre, plan=plan, numerics=points.numerics)
    return Kept(sweeps, store.sizes.get(key, 0))


def _point(kept: Kept, points: Points, theta: Theta) -> PointOfBlock:
    if kept.theta != theta.name or kept.point is None:
        Z = tensor(points.Z)
        cross = theta.kernel.against(points.kernel.features(Z, Z.mean(0)))
        point = PointOfBlock(theta.kernel, cross, tensor(theta.L), theta.direct)
        kept.theta, kept.point = theta.name, point
    return kept.point


# ---- rows ------------------------------------------------------------------------------------------------------------


def take(block: Block, rows: IndexArray) -> Block:
    """Some rows of a block."""
    return block[0][rows], block[1][rows]


def nearest(block: Block, first: int, X: FloatArray, rows: IndexArray, at_once: int) -> tuple[FloatArray, IndexArray]:
    """Of given rows, the distance to the nearest other row of a block, and its number; `first` is that of the block."""
    others = inputs(block)
    distances, numbers = [], []
    for part in row_chunks(len(X), max(at_once // len(others), 1)):
        D = torch.cdist(tensor(X[part]), others)
        own = torch.from_numpy(rows[part] - first)
        inside = (own >= 0) & (own < len(others))
        D[inside.nonzero()[:, 0], own[inside]] = math.inf
        least = D.min(1)
        distances.append(least.values.numpy())
        numbers.append(least.indices.numpy() + first)
    return np.concatenate(distances), np.concatenate(numbers)
