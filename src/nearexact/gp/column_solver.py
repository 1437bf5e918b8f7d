"""K̂⁻¹ times columns at one θ: conjugate gradients, a preconditioner, and K as it is kept, put together."""

from __future__ import annotations

import logging
from collections.abc import Callable

from torch import Tensor

from nearexact.gp.block_cg import BlockSolution, NotConvergedError, block_cg
from nearexact.gp.block_preconditioner import BlockPreconditioner
from nearexact.gp.quadratic import Preconditioner
from nearexact.gp.stored_kernel import Storage, StoredKernel

logger = logging.getLogger(__name__)

MOST_ITERATIONS = 1000
# How large rounding errors may be, relative to bᵀP⁻¹b: a share of the tolerance, or of what P leaves unexplained.
ROUNDING_SHARE, ROUNDING_OF_UNEXPLAINED = 0.1, 1e-3


class ColumnSolver:
    """Solves with what `precondition` holds at the moment, and with K at its θ.

    `blocks` precondition in its place, if there are any; what `precondition` says is still what is proved. K is kept in
    64 bits where 32 are too few, or if `in_full` says that they are; then it is true afterwards, too.
    """

    def __init__(
        self,
        product: StoredKernel,
        precondition: Preconditioner,
        check: Callable[[], None] = lambda: None,
        *,
        blocks: BlockPreconditioner | None = None,
        in_full: bool = False,
    ) -> None:
        self.product, self.precondition, self.blocks = product, precondition, blocks
        self.check, self.in_full = check, in_full
        self._keep_kernel()

    def __call__(
        self,
        B: Tensor,
        tolerance: float | Tensor,
        most_iterations: int = MOST_ITERATIONS,
        on_iteration: Callable[[BlockSolution], None] | None = None,
        *,
        proves: bool = True,
    ) -> BlockSolution:
        """K̂⁻¹B, with residuals in 64 bits.

        Residual bounds, and the tolerance, are those that `precondition` proves, or else of what preconditions.
        """
        proved_by_itself = self.blocks is None or not proves
        is_rounded = self.product.storage is Storage.FLOAT32
        return block_cg(
            lambda D: self.product(D, self.check),
            lambda R: self._solve(R)[0],
            B,
            tolerance=tolerance,
            most_iterations=most_iterations,
            squares=None if proved_by_itself else lambda R: self.precondition.squares(R, self.check),
            rounding=self.precondition.rounding if proves else 0.0,
            exact_multiply=(lambda D: self.product.in_full(D, self.check)) if is_rounded else None,
            check=self.check,
            on_iteration=on_iteration,
        )

    def in_enough_digits(self, B: Tensor, tolerance: float, most_iterations: int = MOST_ITERATIONS) -> BlockSolution:
        """The same, with K in 64 bits where 32 turn out to be too few for these columns; blocks prove nothing."""
        proves = self.blocks is None
        if self.is_precise(B, tolerance):
            try:
                return self(B, tolerance, most_iterations, proves=proves)
            except NotConvergedError as error:
                is_cut_short = most_iterations <= error.solution.iterations < MOST_ITERATIONS
                if is_cut_short or self.product.storage is not Storage.FLOAT32:
                    raise
                logger.info("with a matrix in 32 bits: %s", error)
        self.use_full()
        return self(B, tolerance, most_iterations, proves=proves)

    def use_full(self) -> None:
        """Keep K in 64 bits from now on."""
        self.in_full = True
        self._keep_kernel()

    def is_precise(self, B: Tensor, tolerance: float) -> bool:
        """Whether rounding errors of products are far below the tolerance, or below what P leaves unexplained.

        Else conjugate gradients go on with nothing but rounding errors, and their Lanczos matrices describe these.
        Errors e are random, and hardly any of them lies where P differs from sI: eᵀP⁻¹e is no more than eᵀe/s, and
        hardly less.
        """
        if self.product.storage is not Storage.FLOAT32:
            return True
        first, before = self._solve(B)
        product = self.product(first, self.check)
        errors = self.product.rounding_errors(first, product) / self.precondition.f.noise_variance
        if self.blocks is None:
            unexplained = (first * product).sum(0) / before - 1.0  # bᵀP⁻¹(K̂ − P)P⁻¹b/bᵀP⁻¹b
        else:  # of which the mean is 0, as tr P⁻¹K̂ = N; the square is not: |P⁻½(K̂ − P)P⁻¹b|²/bᵀP⁻¹b
            unexplained = self._solve(product - B)[1] / before
        allowed = (ROUNDING_OF_UNEXPLAINED * unexplained).clamp_(min=ROUNDING_SHARE * tolerance)
        return bool((errors <= allowed * before).all())

    def _solve(self, R: Tensor) -> tuple[Tensor, Tensor]:
        """P⁻¹R and rᵀP⁻¹r with the P that preconditions."""
        return (self.blocks or self.precondition).solve(R, self.check)

    def _keep_kernel(self) -> None:
        f = self.precondition.f
        self.product.update(f.kernel, f.noise_variance, scales=f.scales, check=self.check, in_full=self.in_full)
