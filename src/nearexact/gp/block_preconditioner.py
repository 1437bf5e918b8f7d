"""r ↦ P⁻¹r from a sparse inverse factor (row_blocks.py): near to K̂ where a function is rough, and inducing points few.

Unlike that of a sparse GP this P is not below K̂: rᵀP⁻¹r proves nothing. But log|P| is not below log|K̂|.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from nearexact.gp.block_columns import Check, by_columns
from nearexact.gp.factorisation import Factorisation
from nearexact.gp.kernel_product import MOST_ABREAST
from nearexact.gp.linalg import cholesky_log_det
from nearexact.gp.row_blocks import RowBlocks
from nearexact.gp.row_noise import scaled_rows


class BlockPreconditioner:
    """At the θ of a sparse GP's factorisation, and of rows that are scaled as its rows are."""

    least_eigenvalue = torch.finfo(torch.float64).tiny  # of P⁻¹K̂, as far as it is known

    def __init__(self, blocks: RowBlocks, f: Factorisation, check: Check = lambda: None) -> None:
        self.factors, self.scales = blocks.factors(f.kernel, f.noise_variance, check), f.scales
        self.log_det = sum(float(cholesky_log_det(factor.L)) for factor in self.factors)  # log|P| of unscaled rows
        self.most_log_det = self.log_det + sum(factor.error for factor in self.factors)  # in spite of rounding

    def solve(self, R: Tensor, check: Callable[[], None] = lambda: None) -> tuple[Tensor, Tensor]:
        """P⁻¹R for several columns [N, C], and rᵀP⁻¹r of each [C]."""
        inverse = None if self.scales is None else 1.0 / self.scales
        R = scaled_rows(R, inverse)

        def work(numbers: Sequence[int], check: Check) -> tuple[Tensor, Tensor]:
            solved, quadratics = torch.zeros_like(R), R.new_zeros(R.shape[1])
            for number in numbers:
                check()
                rows, W = self.factors[number].rows, self.factors[number].W
                whitened = W.T @ R[rows]
                quadratics += whitened.square().sum(0)
                solved.index_add_(0, rows, W @ whitened)
            return solved, quadratics

        at_most = 1 if R.shape[1] > MOST_ABREAST else None
        (solved, quadratics), *others = by_columns(len(self.factors), work, check, device=R.device, at_most=at_most)
        for more, sums in others:
            solved += more
            quadratics += sums
        return scaled_rows(solved, inverse), quadratics

    def draws(self, epsilon: Tensor) -> Tensor:
        """Columns z ~ N(0, P) from standard normal ones [N, p]."""
        z = torch.zeros_like(epsilon)
        for rows, W, L, _ in self.factors:
            given = len(rows) - len(L)
            z[rows[given:]] = L @ (epsilon[rows[given:]] - W[:given].T @ z[rows[:given]])
        return scaled_rows(z, self.scales)
