"""A kernel from its formula alone: torch differentiates it, over a block of rows at a time.

Slower than gradients written by hand, by a factor that depends on the formula, but nothing else has to be known about
the kernel. A block has as many rows as keep the formula's temporary arrays within `TEMPORARIES` arrays of the size of
the result, so that memory limits hold also for formulas that form differences [N, M, D].
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from nearexact.kernels.form import Cross, Tensors, inputs

TEMPORARIES = 8
GRADIENT_FACTOR = 3  # by which differentiating takes more memory than evaluating, at most, with all results kept
DIAGONAL_ROWS = 4096  # whose diagonal values are computed at once
PAIRED_ROWS = 32  # the same for a formula that torch cannot vectorise

# Parameters by name, X [N, D] and Z [M, D] to K [N, M].
Formula = Callable[[Tensors, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class FormulaForm:
    """Values, diagonal and gradients of a formula. `stationary`: it depends on differences of inputs alone."""

    formula: Formula
    stationary: bool
    temporaries: ClassVar[int] = TEMPORARIES

    def against(self, p: Tensors, B: Tensor) -> Cross:
        return FormulaCross(self.formula, p, B)

    def diagonal(self, p: Tensors, A: Tensor) -> Tensor:
        diagonal = A.new_empty(len(A))
        with torch.no_grad():
            for rows, values in self._diagonal_values(p, A):
                diagonal[rows] = values
        return diagonal

    def diagonal_vjp(self, p: Tensors, A: Tensor, weights: Tensor) -> Tensors:
        leaves, total = _leaves(p), _zeros(p)
        with torch.enable_grad():
            for rows, values in self._diagonal_values(leaves, A):
                _add_gradients(total, leaves, values, weights[rows])
        return total

    def _diagonal_values(self, p: Tensors, A: Tensor) -> Iterator[tuple[slice, Tensor]]:
        """Slices of rows, and k(x, x) for each of their rows."""
        X = inputs(A)
        if self.stationary and len(X):  # then k(x, x) is the same for all x
            yield slice(None), matrix(self.formula, p, X[:1], X[:1])[0].expand(len(X))
            return
        for rows in _slices(len(X), DIAGONAL_ROWS):
            yield rows, row_by_row(self.formula, p, X[rows])


class FormulaCross:
    """k(·, z) for fixed rows z by a formula."""

    def __init__(self, formula: Formula, p: Tensors, B: Tensor) -> None:
        self.formula, self.leaves, self.Z = formula, _leaves(p), inputs(B)
        self.totals = _zeros(p)
        self.share = TEMPORARIES / (GRADIENT_FACTOR * elements_per_pair(formula, p, self.Z))  # of rows, for a block

    def values(self, A: Tensor, out: Tensor | None = None) -> Tensor:
        K = A.new_empty(len(A), len(self.Z)) if out is None else out
        X = inputs(A)
        with torch.no_grad():
            for rows in self._blocks(X):
                K[rows] = matrix(self.formula, self.leaves, X[rows], self.Z)
        return K

    def add_adjoint(
        self, A: Tensor, K_bar: Tensor, scratch: Tensor | None = None, *, holds_values: bool = False
    ) -> None:
        X = inputs(A)
        with torch.enable_grad():
            for rows in self._blocks(X):
                K = matrix(self.formula, self.leaves, X[rows], self.Z)
                _add_gradients(self.totals, self.leaves, K, K_bar[rows])

    def gradients(self) -> Tensors:
        return self.totals

    def _blocks(self, X: Tensor) -> Iterator[slice]:
        return _slices(len(X), max(int(self.share * len(X)), 1))


def matrix(formula: Formula, p: Tensors, X: Tensor, Z: Tensor) -> Tensor:
    """K [N, M], or a ValueError if the formula returns something else."""
    K = formula(p, X, Z)
    if K.shape != (len(X), len(Z)):
        expected = f"{len(X)} rows of X and {len(Z)} rows of Z"
        raise ValueError(f"a kernel's formula must return one value for each pair of {expected}, got {tuple(K.shape)}")
    return K


class CountedElements(TorchFunctionMode):
    """Counts the elements of all tensors that torch's functions return."""

    def __init__(self) -> None:
        super().__init__()
        self.total = 0

    def __torch_function__(
        self, func: Callable[..., Any], types: Sequence[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, Tensor):
            self.total += result.numel()
        return result


def elements_per_pair(formula: Formula, p: Tensors, Z: Tensor) -> int:
    """How many elements the formula's temporary arrays have for each pair of rows, at least one.

    Evaluated for n and m rows it makes a·nm + b·n + c·m + d elements. Second differences leave a, which is what counts
    where n and m are large.
    """
    row = Z.new_zeros(1, Z.shape[1]) if len(Z) == 0 else Z[:1]

    def elements(n: int, m: int) -> int:
        counted, X, Z = CountedElements(), row.repeat(n, 1), row.repeat(m, 1)
        with torch.no_grad(), counted:
            formula(p, X, Z)
        return counted.total

    return max(elements(2, 2) - elements(1, 2) - elements(2, 1) + elements(1, 1), 1)


def row_by_row(formula: Formula, p: Tensors, X: Tensor) -> Tensor:
    """k(x, x) for each row of X."""

    def at(x: Tensor) -> Tensor:
        return matrix(formula, p, x[None], x[None])[0, 0]

    try:
        return torch.func.vmap(at)(X)
    except RuntimeError:  # vmap does without branches on values and writes into new arrays, which a formula may have
        return torch.cat([matrix(formula, p, rows, rows).diagonal() for rows in torch.split(X, PAIRED_ROWS)])


def _add_gradients(total: Tensors, leaves: Tensors, values: Tensor, weights: Tensor) -> None:
    """Add the derivatives of Σ weights · values by the leaves."""
    if not values.requires_grad:  # the formula uses no parameter
        return
    gradients = torch.autograd.grad(values, list(leaves.values()), weights, allow_unused=True)
    for name, gradient in zip(leaves, gradients, strict=True):
        if gradient is not None:
            total[name] += gradient


def _leaves(p: Tensors) -> Tensors:
    return {name: value.detach().requires_grad_() for name, value in p.items()}


def _zeros(p: Tensors) -> Tensors:
    return {name: torch.zeros_like(value) for name, value in p.items()}


def _slices(n: int, rows: int) -> Iterator[slice]:
    return (slice(first, first + rows) for first in range(0, n, rows))
