"""Products with the exact kernel matrix of all data, of which never more than a block is in memory."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from nearexact.kernels import SquaredExponential
from nearexact.kernels.base import Cross, Kernel, with_diagonal

BLOCK_ROWS = 384  # of K, and as many columns: the passes over a block find it in the cache


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
        widths = {len(block) for block in (self.features[0], self.features[-1])}  # that of the last block may differ
        self.buffers = {width: X.new_empty(len(self.features[0]), width) for width in widths}
        self._against: tuple[int, Cross] = (-1, kernel.against(self.features[0][:1]))

    def against(self, j: int) -> Cross:
        """k(·, x) for the j-th block of rows x; only the last one asked for is kept."""
        if self._against[0] != j:
            self._against = j, self.kernel.against(self.features[j])
        return self._against[1]

    def block(self, i: int, j: int) -> Tensor:
        """K of the i-th and the j-th block of unscaled rows, but for the scale; the next call overwrites it."""
        features_X, features_Z = self.features[i], self.features[j]
        K = self.against(j).values(features_X, out=self.buffers[len(features_Z)][: len(features_X)])
        return with_diagonal(K, self.diagonal[i]) if i == j else K

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

    def __call__(self, v: Tensor, check: Callable[[], None] = lambda: None) -> Tensor:
        """(K + sI)v for one vector [N] or several [N, C].

        `check` is called between rows of blocks; an exception that it raises ends the product.
        """
        if v.ndim > 1:
            return self._columns(v, check)
        product, scaled = torch.zeros_like(v), v if self.scales is None else v * self.scales
        parts, products = torch.split(scaled, self.rows), torch.split(product, self.rows)
        for j in range(len(parts)):
            check()
            for i in range(j):
                K = self.block(i, j)
                products[i].addmv_(K, parts[j])
                products[j].addmv_(K.T, parts[i])
            products[j].addmv_(self.block(j, j), parts[j])
        if self.scales is not None:
            product.mul_(self.scales)
        return product.mul_(self.scale).add_(v, alpha=self.noise_variance)

    def _columns(self, v: Tensor, check: Callable[[], None]) -> Tensor:
        """The same for several. A few rows times a block take a third of the time of the block times a few columns."""
        rows = v.T.contiguous()  # [C, N]
        product = torch.zeros_like(rows)
        scaled = rows if self.scales is None else rows * self.scales
        parts, products = torch.split(scaled, self.rows, dim=1), torch.split(product, self.rows, dim=1)
        for j in range(len(parts)):
            check()
            for i in range(j):
                K = self.block(i, j)
                products[i].addmm_(parts[j], K.T)
                products[j].addmm_(parts[i], K)
            products[j].addmm_(parts[j], self.block(j, j))
        if self.scales is not None:
            product.mul_(self.scales)
        return product.mul_(self.scale).add_(rows, alpha=self.noise_variance).T.contiguous()
