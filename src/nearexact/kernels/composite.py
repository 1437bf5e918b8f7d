"""Sums and products of kernels. A parameter keeps its name behind the position of its part: "0.lengthscales"."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from typing import Literal, Self

import numpy.typing as npt
import torch
from torch import Tensor

from nearexact.kernels.base import FloatArray, Kernel, Tensors


class Composite(Kernel):
    """The sum or the product of kernels; made by `a + b` and `a * b`."""

    def __init__(self, operation: Literal["+", "*"], *parts: Kernel) -> None:
        self.operation = operation
        same = [p.parts if isinstance(p, Composite) and p.operation == operation else (p,) for p in parts]
        self.parts: tuple[Kernel, ...] = tuple(part for group in same for part in group)

    @property
    def parameters(self) -> dict[str, FloatArray]:
        return {f"{i}.{name}": v for i, part in enumerate(self.parts) for name, v in part.parameters.items()}

    def with_parameters(self, values: Mapping[str, npt.ArrayLike]) -> Self:
        self._check_names(values)
        by_part: list[dict[str, npt.ArrayLike]] = [{} for _ in self.parts]
        for full_name, value in values.items():
            position, name = full_name.split(".", 1)
            by_part[int(position)][name] = value
        changed = (part.with_parameters(mine) for part, mine in zip(self.parts, by_part, strict=True))
        return type(self)(self.operation, *changed)

    def for_inputs(self, n_inputs: int) -> Self:
        return type(self)(self.operation, *(part.for_inputs(n_inputs) for part in self.parts))

    def __repr__(self) -> str:
        nested = (f"({part!r})" if isinstance(part, Composite) else repr(part) for part in self.parts)
        return f" {self.operation} ".join(nested)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Composite):
            return NotImplemented
        return self.operation == other.operation and self.parts == other.parts

    def __hash__(self) -> int:
        return hash((self.operation, self.parts))

    def features(self, X: Tensor, centre: Tensor) -> Tensor:
        return torch.cat([part.features(X, centre) for part in self.parts], dim=1)

    def cross(self, A: Tensor, B: Tensor, out: Tensor | None = None) -> Tensor:
        (first, A_first, B_first), *rest = self._with_features(A, B)
        K = first.cross(A_first, B_first, out)
        for part, A_part, B_part in rest:
            if self.operation == "+":
                K.add_(part.cross(A_part, B_part))
            else:
                K.mul_(part.cross(A_part, B_part))
        return K

    def cross_vjp(self, A: Tensor, B: Tensor, K_bar: Tensor, scratch: Tensor | None = None) -> Tensors:
        parts = self._with_features(A, B)
        bars = [K_bar.clone() for _ in parts]  # parts may overwrite theirs
        if self.operation == "*":
            others = self._products_of_others([part.cross(a, b) for part, a, b in parts])
            for bar, factor in zip(bars, others, strict=True):
                bar.mul_(factor)
        return _named([part.cross_vjp(a, b, bar, scratch) for (part, a, b), bar in zip(parts, bars, strict=True)])

    def diagonal(self, A: Tensor) -> Tensor:
        operation = torch.add if self.operation == "+" else torch.mul
        return reduce(operation, [part.diagonal(a) for part, a, _ in self._with_features(A, A)])

    def diagonal_vjp(self, A: Tensor, weights: Tensor) -> Tensors:
        parts = self._with_features(A, A)
        bars = [weights] * len(parts)
        if self.operation == "*":
            others = self._products_of_others([part.diagonal(a) for part, a, _ in parts])
            bars = [weights * factor for factor in others]
        return _named([part.diagonal_vjp(a, bar) for (part, a, _), bar in zip(parts, bars, strict=True)])

    def _with_features(self, A: Tensor, B: Tensor) -> list[tuple[Kernel, Tensor, Tensor]]:
        """Each part with its own columns of the features; all simple kernels have equally many."""
        widths = [_leaves(part) * A.shape[1] // _leaves(self) for part in self.parts]
        return list(zip(self.parts, torch.split(A, widths, dim=1), torch.split(B, widths, dim=1), strict=True))

    @staticmethod
    def _products_of_others(factors: list[Tensor]) -> list[Tensor]:
        """For each factor the product of the others: no division, so zeros are allowed."""
        return [reduce(torch.mul, factors[:i] + factors[i + 1 :]) for i in range(len(factors))]


def _leaves(kernel: Kernel) -> int:
    return sum(map(_leaves, kernel.parts)) if isinstance(kernel, Composite) else 1


def _named(gradients: list[Tensors]) -> Tensors:
    return {f"{i}.{name}": value for i, part in enumerate(gradients) for name, value in part.items()}
