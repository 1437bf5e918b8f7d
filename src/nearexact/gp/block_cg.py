"""Conjugate gradients on several right-hand sides at once: K̂⁻¹B from products with K̂ that all columns share.

Each column has its own coefficients; what is shared is the work, since a product of K̂ with nine columns costs hardly
more than one with a single column. A column that has converged is left out of later products. Whatever solution comes
out is proved: with P ⪯ K̂, which mostly is the preconditioner, rᵀP⁻¹r is an upper bound on the squared error in the norm
of K̂.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from nearexact.gp.safety import NumericalError

LEAST_PROGRESS = 0.5  # by which another pass must reduce what is open; else rounding errors are in the way
ADVICE = "look for a signal variance that is huge next to the noise"

Columns = Callable[[Tensor], Tensor]  # [N, C] to [N, C]


@dataclass(frozen=True, eq=False)
class BlockSolution:
    """Where conjugate gradients stand, or have ended."""

    columns: Tensor  # nearly K̂⁻¹B  [N, C]
    residuals: Tensor  # B − K̂·columns  [N, C]
    residual_bounds: Tensor  # rᵀP⁻¹r of each column, not less than its squared error in the norm of K̂  [C]
    alphas: Tensor  # lengths of the steps, 0 once a column was left out  [iterations, C]
    betas: Tensor  # by which the last direction goes into the next one, 0 once a column was left out  [iterations, C]
    iterations: int  # products with K̂, of which later ones may have had fewer columns


class NotConvergedError(NumericalError):
    """Conjugate gradients that did not get where they should; `solution` is where they are."""

    def __init__(self, message: str, solution: BlockSolution) -> None:
        super().__init__(message)
        self.solution = solution


def block_cg(
    multiply: Columns,
    precondition: Columns,
    B: Tensor,
    *,
    tolerance: float | Tensor,
    most_iterations: int,
    exact_multiply: Columns | None = None,
    squares: Columns | None = None,
    rounding: float = 0.0,
    check: Callable[[], None] = lambda: None,
    on_iteration: Callable[[BlockSolution], None] | None = None,
) -> BlockSolution:
    """K̂⁻¹B with residuals whose rᵀP⁻¹r is at most `tolerance` times that of B, which may differ between columns.

    `multiply` makes products with K̂, `precondition` those with P⁻¹; where that P is not below K̂, `squares` computes
    rᵀP⁻¹r [C] with another one that is. Where products are made in low precision,
    `exact_multiply` makes them in full: the residuals are then computed again with it, and the iterations begin again
    from there until these are as small as they should be. Iterations that do not get there raise NotConvergedError.
    `rounding` is by how much rᵀP⁻¹r may be off for each rᵀr: it counts as if it were there.
    The coefficients are those of the first pass, as only they belong to B. `check` is called before each product; an
    exception that it raises ends the iterations. What `on_iteration` gets, the next iteration changes.
    """
    run = _Run(multiply, precondition, B, tolerance, most_iterations, squares, rounding, check, on_iteration)
    run.iterate()
    before = math.inf
    while exact_multiply is not None:
        check()
        run.restart(B - exact_multiply(run.columns))
        if run.excess <= 1.0:
            break
        if run.excess > LEAST_PROGRESS * before:
            raise NotConvergedError(f"rounding errors end conjugate gradients too early: {ADVICE}", run.solution())
        before = run.excess
        run.iterate(records=False)
    return run.solution()


class _Run:
    """The columns, their residuals, and how far each has come."""

    def __init__(
        self,
        multiply: Columns,
        precondition: Columns,
        B: Tensor,
        tolerance: float | Tensor,
        most_iterations: int,
        squares: Columns | None,
        rounding: float,
        check: Callable[[], None],
        on_iteration: Callable[[BlockSolution], None] | None,
    ) -> None:
        self.multiply, self.precondition, self.most_iterations = multiply, precondition, most_iterations
        self.proving_squares, self.rounding = squares, rounding
        self.check, self.on_iteration = check, on_iteration
        self.columns, self.iterations = torch.zeros_like(B), 0
        self.alphas: list[Tensor] = []  # [C] each
        self.betas: list[Tensor] = []
        self.restart(B.clone())
        self.targets = tolerance * self.bounds  # [C]

    def restart(self, residuals: Tensor) -> None:
        """Begin again from these residuals, with no direction remembered."""
        self.residuals, self.directions = residuals, self.precondition(residuals)
        self.squares = _dots(residuals, self.directions).clamp_(min=0.0)  # rᵀP⁻¹r as computed  [C]
        self.bounds = self._bounds(residuals, self.squares)

    def _bounds(self, residuals: Tensor, squares: Tensor) -> Tensor:
        """Not less than rᵀP⁻¹r, whatever rounding errors have made of it."""
        if self.proving_squares is not None:
            squares = self.proving_squares(residuals)
        return squares + self.rounding * _dots(residuals, residuals)

    @property
    def excess(self) -> float:
        """The factor by which the largest residual bound is above its target."""
        factors = torch.where(self.bounds > self.targets, self.bounds / self.targets, 0.0)
        return float(factors.max()) if factors.isfinite().all() else math.inf

    def iterate(self, *, records: bool = True) -> None:
        """Until the residual bound of every column is at its target."""
        while len(open_columns := (self.bounds > self.targets).nonzero()[:, 0]):
            if self.iterations >= self.most_iterations:
                raise NotConvergedError(
                    f"conjugate gradients have not converged after {self.iterations} iterations: {ADVICE}, or for a"
                    " sparse GP with too few inducing points to precondition with",
                    self.solution(),
                )
            self.check()
            self._step(open_columns, records)
            if self.on_iteration is not None:
                self.on_iteration(self.solution())

    def _step(self, which: Tensor, records: bool) -> None:
        everything = len(which) == self.columns.shape[1]
        directions = self.directions if everything else self.directions[:, which]
        products = self.multiply(directions)
        self.iterations += 1
        curvatures, squares = _dots(directions, products), self.squares[which]
        if not (bool((curvatures > 0.0).all()) and bool(curvatures.isfinite().all())):
            raise NotConvergedError(f"K + sI is not positive definite in these digits: {ADVICE}", self.solution())
        if not bool((squares > 0.0).all()):
            raise NotConvergedError(f"nothing but rounding errors is left of P⁻¹: {ADVICE}", self.solution())
        alpha = squares / curvatures
        residuals = (self.residuals if everything else self.residuals[:, which]) - alpha * products
        solved = self.precondition(residuals)
        # Rounding can make this negative where only rounding errors are left.
        new_squares = _dots(residuals, solved).clamp_(min=0.0)
        beta = new_squares / squares
        self.columns.index_add_(1, which, directions * alpha)
        self.residuals.index_copy_(1, which, residuals)
        self.directions.index_copy_(1, which, solved.addcmul_(directions, beta))
        self.squares = self.squares.index_copy(0, which, new_squares)
        self.bounds = self.bounds.index_copy(0, which, self._bounds(residuals, new_squares))
        if records:
            zeros = torch.zeros_like(self.bounds)
            self.alphas.append(zeros.index_copy(0, which, alpha))
            self.betas.append(zeros.index_copy(0, which, beta))

    def solution(self) -> BlockSolution:
        none = self.bounds.new_empty(0, len(self.bounds))
        return BlockSolution(
            columns=self.columns,
            residuals=self.residuals,
            residual_bounds=self.bounds,
            alphas=torch.stack(self.alphas) if self.alphas else none,
            betas=torch.stack(self.betas) if self.betas else none,
            iterations=self.iterations,
        )


def _dots(A: Tensor, B: Tensor) -> Tensor:
    """The product of each column of A with that of B: [C]."""
    return (A * B).sum(0)
