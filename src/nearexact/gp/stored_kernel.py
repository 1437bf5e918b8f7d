"""Products with the exact kernel matrix of all data where many of them are needed: kept if memory allows it.

K is symmetric: only its blocks up to the diagonal are kept, in 32 bits where their rounding errors cannot be told from
the noise, else in 64. Where there is no room, every product computes them again, which takes several times as long.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import StrEnum

import torch
from torch import Tensor

from nearexact.gp.block_columns import Check, by_columns
from nearexact.gp.kernel_product import KernelProduct, symmetric_product
from nearexact.kernels import SquaredExponential
from nearexact.kernels.base import Kernel

TILE_ROWS = 384  # of a block that is kept, and as many columns: its second product finds it in the cache
# Rounding K to 32 bits adds a symmetric matrix of random entries of about 2.5e-8·k(x, x), whose eigenvalues are up to
# 2√N times as large. Against a noise variance s this changes log|K̂| by about −N/2 (2.5e-8·k √N/s)² nats, which may be
# this much for each row: a fiftieth of the gap that certifies.
ROUNDING = 2.5e-8
SAMPLED_ROWS = 512  # that show how large rounding errors are
MOST_NATS_PER_ROW = 2e-4


class Storage(StrEnum):
    """How K is kept."""

    FLOAT32 = "float32"
    FLOAT64 = "float64"
    NONE = "computed again"


DTYPES = {Storage.FLOAT32: torch.float32, Storage.FLOAT64: torch.float64}


def stored_bytes(n: int, storage: Storage) -> int:
    """Bytes that the blocks up to the diagonal take."""
    if storage is Storage.NONE:
        return 0
    tiles = -(-n // TILE_ROWS)
    return tiles * (tiles + 1) // 2 * min(n, TILE_ROWS) ** 2 * (4 if storage is Storage.FLOAT32 else 8)


def allows_float32(kernel: Kernel, noise_variance: float, X: Tensor, scales: Tensor | None = None) -> bool:
    """Whether rounding K to 32 bits changes the log determinant by a negligible amount."""
    diagonal = kernel.diagonal(kernel.features(X, X.mean(0)))
    largest = float((diagonal if scales is None else diagonal * scales.square()).max())
    ratio = ROUNDING * largest * math.sqrt(len(X)) / noise_variance
    return 0.5 * ratio**2 <= MOST_NATS_PER_ROW


class StoredKernel:
    """(K + sI)D for the rows of X and several columns D, with at most so many bytes for K.

    `update` sets the hyperparameters; the memory is kept from one to the next. With scales K is that of scaled rows.
    """

    def __init__(self, X: Tensor, memory: int) -> None:
        self.X, self.memory = X, memory
        self.storage = Storage.NONE
        self._tiles: dict[tuple[int, int], Tensor] = {}  # block i, j for i <= j
        self._product: KernelProduct | None = None

    def update(
        self,
        kernel: Kernel,
        noise_variance: float,
        *,
        scales: Tensor | None = None,
        check: Check = lambda: None,
        in_full: bool = False,
    ) -> None:
        """Take these hyperparameters. `in_full` says that 32 bits have proved too few for them."""
        self._product = KernelProduct(kernel, noise_variance, self.X, scales=scales)
        n = len(self.X)
        short = not in_full and allows_float32(kernel, noise_variance, self.X, scales)
        choices = [Storage.FLOAT32] if short else [Storage.FLOAT64]
        wanted = next((storage for storage in choices if stored_bytes(n, storage) <= self.memory), Storage.NONE)
        if wanted is not self.storage:
            self._tiles, self.storage = {}, wanted
        if wanted is Storage.NONE:
            return
        source = KernelProduct(kernel, noise_variance, self.X, TILE_ROWS)

        def keep(columns: Sequence[int], check: Check) -> None:
            blocks = source.blocks()
            for j in columns:
                check()
                for i in range(j + 1):
                    block = blocks(i, j)
                    if (i, j) not in self._tiles:
                        self._tiles[i, j] = torch.empty_like(block, dtype=DTYPES[wanted])
                    self._tiles[i, j].copy_(block)

        by_columns(len(source.features), keep, check, device=self.X.device)

    @property
    def rows(self) -> int:
        """Of a block of K, and as many columns."""
        return TILE_ROWS

    def copy_kept(self, i: int, j: int, out: Tensor) -> bool:
        """Write K of the i-th and the j-th block of unscaled rows, i ≤ j, if it is kept; whether it is.

        Only for kernels whose derivatives are multiples of their values: others compute distances again anyway.
        """
        assert self._product is not None
        if self.storage is Storage.NONE or not isinstance(self._product.kernel, SquaredExponential):
            return False
        out.copy_(self._tiles[i, j]).mul_(self._product.scale)
        return True

    def release(self) -> None:
        """Give back the memory."""
        self._tiles, self.storage = {}, Storage.NONE

    def __call__(self, D: Tensor, check: Check = lambda: None) -> Tensor:
        """(K + sI)D [N, C], as precisely as K is kept."""
        assert self._product is not None
        if self.storage is Storage.NONE:
            return self._product(D, check)
        scales = self._product.scales
        rows = (D.T if scales is None else D.T * scales).to(DTYPES[self.storage]).contiguous()  # [C, N]
        product = symmetric_product(rows, TILE_ROWS, lambda: lambda i, j: self._tiles[i, j], check)
        full = product.to(D.dtype)
        if scales is not None:
            full = full * scales
        return full.T.mul(self._product.scale).add_(D, alpha=self._product.noise_variance).contiguous()

    def rounding_errors(self, D: Tensor, product: Tensor) -> Tensor:
        """The sum over all rows of squared errors of a product with D: [C], from a random sample of rows."""
        assert self._product is not None
        n = len(D)
        rows = torch.randperm(n, generator=torch.Generator().manual_seed(0))[:SAMPLED_ROWS].to(D.device)
        return (self._product.some_rows(rows, D) - product[rows]).square().mean(0) * n

    def in_full(self, D: Tensor, check: Check = lambda: None) -> Tensor:
        """(K + sI)D [N, C] in 64 bits."""
        assert self._product is not None
        return self(D, check) if self.storage is Storage.FLOAT64 else self._product(D, check)
