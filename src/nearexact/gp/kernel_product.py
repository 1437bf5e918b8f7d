"""Products with the exact kernel matrix of all data, of which never more than a block is in memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from nearexact.gp.block_columns import Check, by_columns
from nearexact.gp.linalg import with_fours
from nearexact.kernels import SquaredExponential
from nearexact.kernels.base import Cross, Kernel, with_diagonal

BLOCK_ROWS = 384  # of K, and as many columns: the passes over a block find it in the cache
MOST_ABREAST = 64  # vectors, up to which each core has blocks of its own: each has a sum for every vector


class KernelBlocks:
    """Blocks of K, but for a scale; the next one overwrites the last. Each thread has its own."""

    def __init__(self, kernel: Kernel, features: Sequence[Tensor], diagonal: Sequence[Tensor]) -> None:
        self.kernel, self.features, self.diagonal = kernel, features, diagonal
        widths = {len(block) for block in (features[0], features[-1])}  # that of the last block may differ
        self.buffers = {width: features[0].new_empty(len(features[0]), width) for width in widths}
        self._against: tuple[int, Cross] = (-1, kernel.against(features[0][:1]))

    def against(self, j: int) -> Cross:
        """k(·, x) for the j-th block of rows x; only the last one asked for is kept."""
        if self._against[0] != j:
            self._against = j, self.kernel.against(self.features[j])
        return self._against[1]

    def __call__(self, i: int, j: int) -> Tensor:
        """K of the i-th and the j-th block of unscaled rows."""
        features_X, features_Z = self.features[i], self.features[j]
        K = self.against(j).values(features_X, out=self.buffers[len(features_Z)][: len(features_X)])
        return with_diagonal(K, self.diagonal[i]) if i == j else K


class KernelProduct:
    """v ↦ (K + sI)v for the kernel matrix K of all rows of X. Blocks above the diagonal stand for those below, too.

    With `scales` ω, one for each row, K is that of scaled rows: ω_i k(x_i, x_j) ω_j (row_noise.py).
    """

    def __init__(
        self,
        kernel: Kernel,
        noise_variance: float,
        X: Tensor,
        rows: int = BLOCK_ROWS,
        *,
        scales: Tensor | None = None,
    ) -> None:
        self.noise_variance, self.rows, self.scale, self.scales = noise_variance, rows, 1.0, scales
        if type(kernel) is SquaredExponential:  # then one pass less over each block: v gets the factor instead
            self.scale, kernel = float(kernel.parameters["variance"]), kernel.with_parameters({"variance": 1.0})
        self.kernel = kernel
        self.features = torch.split(kernel.features(X, X.mean(0)), rows)  # [rows, F] each
        self.diagonal = [kernel.diagonal(features_X) for features_X in self.features]

    def blocks(self) -> KernelBlocks:
        """Blocks of K of unscaled rows, but for the scale."""
        return KernelBlocks(self.kernel, self.features, self.diagonal)

    def some_rows(self, which: Tensor, v: Tensor) -> Tensor:
        """Rows of (K + sI)v for several vectors [N, C]: [rows, C]."""
        features, diagonal = torch.cat(list(self.features)), torch.cat(self.diagonal)
        scaled = v if self.scales is None else v * self.scales[:, None]
        product = torch.empty(len(which), v.shape[1], dtype=v.dtype, device=v.device)
        cross = self.kernel.against(features)
        for first in range(0, len(which), self.rows):
            part = which[first : first + self.rows]
            K = cross.values(features[part])
            K[torch.arange(len(part), device=K.device), part] = diagonal[part]
            product[first : first + self.rows] = K @ scaled
        if self.scales is not None:
            product.mul_(self.scales[which, None])
        return product.mul_(self.scale).add_(v[which], alpha=self.noise_variance)

    def __call__(self, v: Tensor, check: Check = lambda: None) -> Tensor:
        """(K + sI)v for one vector [N] or several [N, C].

        `check` is called between columns of blocks, maybe by several threads; an exception that it raises ends the
        product.
        """
        rows = v if v.ndim == 1 else v.T.contiguous()  # [N], or [C, N]
        scaled = rows if self.scales is None else rows * self.scales
        product = symmetric_product(scaled, self.rows, self.blocks, check)
        if self.scales is not None:
            product.mul_(self.scales)
        product.mul_(self.scale).add_(rows, alpha=self.noise_variance)
        return product if v.ndim == 1 else product.T.contiguous()


def symmetric_product(
    rows: Tensor, block_rows: int, blocks: Callable[[], Callable[[int, int], Tensor]], check: Check = lambda: None
) -> Tensor:
    """Kv for one vector [N], or for several as rows [C, N], where `blocks()` gives K of the i-th and j-th block, i ≤ j.

    A few rows times a block take a third of the time of the block times a few columns.
    """
    count = len(rows)
    if rows.ndim > 1:
        rows = with_fours(rows)
    parts = torch.split(rows, block_rows, dim=-1)

    def work(columns: Sequence[int], check: Check) -> Tensor:
        block, product = blocks(), torch.zeros_like(rows)
        products = torch.split(product, block_rows, dim=-1)
        for j in columns:
            check()
            for i in range(j + 1):
                K = block(i, j)
                if rows.ndim == 1:
                    products[j].addmv_(K.T, parts[i])
                    if i < j:
                        products[i].addmv_(K, parts[j])
                else:
                    products[j].addmm_(parts[i], K)
                    if i < j:
                        products[i].addmm_(parts[j], K.T)
        return product

    at_most = 1 if rows.ndim > 1 and len(rows) > MOST_ABREAST else None
    first, *others = by_columns(len(parts), work, check, device=rows.device, at_most=at_most)
    for other in others:
        first.add_(other)
    return first[:count]
