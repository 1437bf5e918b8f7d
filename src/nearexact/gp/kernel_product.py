"""Products with the exact kernel matrix of all data, of which never more than a block is in memory."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from nearexact.kernels import SquaredExponential
from nearexact.kernels.base import Cross, Kernel, with_diagonal

BLOCK_ROWS = 384  # of K, and as many columns: the passes over a block find it in the cache


class KernelProduct:
    """v ↦ (K + sI)v for the kernel matrix K of all rows of X. Blocks above the diagonal stand for those below, too."""

    def __init__(self, kernel: Kernel, noise_variance: float, X: Tensor, rows: int = BLOCK_ROWS) -> None:
        self.noise_variance, self.rows, self.scale = noise_variance, rows, 1.0
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
        """K of the i-th and the j-th block of rows, but for the scale; the next call overwrites it."""
        features_X, features_Z = self.features[i], self.features[j]
        K = self.against(j).values(features_X, out=self.buffers[len(features_Z)][: len(features_X)])
        return with_diagonal(K, self.diagonal[i]) if i == j else K

    def __call__(self, v: Tensor, check: Callable[[], None] = lambda: None) -> Tensor:
        """(K + sI)v for one vector [N] or several [N, C].

        `check` is called between rows of blocks; an exception that it raises ends the product.
        """
        product = torch.zeros_like(v)
        parts, products = torch.split(v, self.rows), torch.split(product, self.rows)
        add = Tensor.addmv_ if v.ndim == 1 else Tensor.addmm_
        for j in range(len(parts)):
            check()
            for i in range(j):
                K = self.block(i, j)
                add(products[i], K, parts[j])
                add(products[j], K.T, parts[i])
            add(products[j], self.block(j, j), parts[j])
        return product.mul_(self.scale).add_(v, alpha=self.noise_variance)
