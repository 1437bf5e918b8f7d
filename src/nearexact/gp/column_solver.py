"""K̂⁻¹ times columns at one θ: conjugate gradients, a preconditioner, and K as it is kept, put together."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from nearexact.gp.block_cg import BlockSolution, block_cg
from nearexact.gp.quadratic import Preconditioner
from nearexact.gp.stored_kernel import Storage, StoredKernel

MOST_ITERATIONS = 1000


class ColumnSolver:
    """Solves with what `product` and `precondition` hold at the moment."""

    def __init__(
        self, product: StoredKernel, precondition: Preconditioner, check: Callable[[], None] = lambda: None
    ) -> None:
        self.product, self.precondition, self.check = product, precondition, check

    def __call__(self, B: Tensor, tolerance: float | Tensor, most_iterations: int = MOST_ITERATIONS) -> BlockSolution:
        """K̂⁻¹B, with residuals in 64 bits."""
        is_rounded = self.product.storage is Storage.FLOAT32
        return block_cg(
            lambda D: self.product(D, self.check),
            lambda R: self.precondition.solve(R, self.check)[0],
            B,
            tolerance=tolerance,
            most_iterations=most_iterations,
            exact_multiply=(lambda D: self.product.in_full(D, self.check)) if is_rounded else None,
            check=self.check,
        )
