"""Rows of data, here or elsewhere: what training asks of all of them.

`LocalRows` are tensors in this process. Rows that are elsewhere, on the workers of a cluster for example, answer the
same questions without being brought here.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy.typing as npt
import torch
from torch import Tensor

from nearexact.gp.inducing import Selection, select
from nearexact.gp.memory import MemoryPlan
from nearexact.gp.row_noise import RowNoise, check_noise, noise_of, noise_only
from nearexact.gp.safety import DEFAULT_NUMERICS, Numerics
from nearexact.gp.sweeps import LocalSweeps, Sweeps
from nearexact.kernels.base import Kernel
from nearexact.typing import IndexArray
from nearexact.validation import as_training_data

DISTANCES_AT_ONCE = 2**24


class Taken(NamedTuple):
    """Some rows, brought here: inputs [N, D], targets [N] or [N, T], and their noise where it differs."""

    X: Tensor
    y: Tensor
    row_noise: RowNoise | None


@runtime_checkable
class Rows(Protocol):
    """All rows of a data set, with their targets."""

    n: int
    inputs: int  # columns of X
    here: int  # rows whose memory is that of this process: all, or none
    device: torch.device
    row_noise: RowNoise | None

    @property
    def has_signal(self) -> bool:
        """Whether any target differs from 0: standardised ones do, unless all are the same."""

    def take(self, rows: IndexArray) -> Taken:
        """These rows, in this order."""

    def gathered(self) -> LocalRows:
        """All rows, brought here."""

    def noise_only(self, least_variance: float) -> float:
        """The log likelihood of the constant predictor."""

    def nearest(self, rows: IndexArray) -> IndexArray:
        """The nearest other row of each of these rows."""

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
        """Greedy variance selection; see inducing.py."""

    def sweeps(self, kernel: Kernel, Z: Tensor, centre: Tensor, plan: MemoryPlan, numerics: Numerics) -> Sweeps:
        """Sweeps for inducing points Z, with features measured from a centre."""


class LocalRows:
    """Rows that are tensors here."""

    def __init__(self, X: Any, y: Any, row_noise: RowNoise | None = None) -> None:
        self.X, self.y = as_training_data(X, y)
        self.row_noise = check_noise(row_noise, self.X)
        self.n = self.here = len(self.X)
        self.inputs, self.device = self.X.shape[1], self.X.device

    @property
    def has_signal(self) -> bool:
        """Whether any target differs from 0."""
        return bool(self.y.any())

    def take(self, rows: IndexArray) -> Taken:
        """These rows, in this order."""
        chosen = torch.from_numpy(rows).to(self.device)
        return Taken(self.X[chosen], self.y[chosen], noise_of(self.row_noise, chosen))

    def gathered(self) -> LocalRows:
        """All rows, which are here."""
        return self

    def noise_only(self, least_variance: float) -> float:
        """The log likelihood of the constant predictor."""
        return noise_only(self.y, self.row_noise, least_variance)

    def nearest(self, rows: IndexArray) -> IndexArray:
        """The nearest other row of each of these rows."""
        return nearest_rows(self.X, rows)

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
        """Greedy variance selection; see inducing.py."""
        return select(kernel, self.X, m, seed=seed, start=start, between_blocks=between_blocks, numerics=numerics)

    def sweeps(self, kernel: Kernel, Z: Tensor, centre: Tensor, plan: MemoryPlan, numerics: Numerics) -> LocalSweeps:
        """Sweeps for inducing points Z, with features measured from a centre."""
        return LocalSweeps(
            self.X, self.y, self.row_noise, m=len(Z), kernel=kernel, centre=centre, plan=plan, numerics=numerics
        )


def as_rows(X: Any, y: Any = None, row_noise: RowNoise | None = None) -> Rows:
    """X itself if it is rows already, which have their targets; else rows of arrays or tensors."""
    return X if isinstance(X, Rows) else LocalRows(X, y, row_noise)


def local(rows: Rows) -> LocalRows:
    """Rows that are here; a ValueError where they are elsewhere."""
    if not isinstance(rows, LocalRows):
        raise ValueError("all rows are needed here, but they are elsewhere")
    return rows


def nearest_rows(X: Tensor, rows: IndexArray) -> IndexArray:
    """The nearest other row of each of these rows."""
    nearest = []
    for part in torch.split(torch.from_numpy(rows), max(DISTANCES_AT_ONCE // len(X), 1)):
        distances = torch.cdist(X[part], X)
        distances[torch.arange(len(part)), part] = math.inf
        nearest.append(distances.argmin(1))
    return torch.cat(nearest).cpu().numpy()
