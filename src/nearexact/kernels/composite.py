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

    def cross(self, X: Tensor, Z: Tensor, out: Tensor | None = None) -> Tensor:
        K = self.parts[0].cross(X, Z, out)
        for part in self.parts[1:]:
            self._combine_(K, part.cross(X, Z))
        return K

    def cross_vjp(self, X: Tensor, Z: Tensor, K_bar: Tensor, scratch: Tensor | None = None) -> Tensors:
        bars = [K_bar.clone() for _ in self.parts]  # parts may overwrite theirs
        if self.operation == "*":
            for bar, factor in zip(bars, self._products_of_others([p.cross(X, Z) for p in self.parts]), strict=True):
                bar.mul_(factor)
        parts = zip(self.parts, bars, strict=True)
        return _named([part.cross_vjp(X, Z, bar, scratch) for part, bar in parts])

    def diagonal(self, X: Tensor) -> Tensor:
        return reduce(torch.add if self.operation == "+" else torch.mul, [part.diagonal(X) for part in self.parts])

    def diagonal_vjp(self, X: Tensor, weights: Tensor) -> Tensors:
        bars = [weights] * len(self.parts)
        if self.operation == "*":
            others = self._products_of_others([part.diagonal(X) for part in self.parts])
            bars = [weights * factor for factor in others]
        return _named([part.diagonal_vjp(X, bar) for part, bar in zip(self.parts, bars, strict=True)])

    def _combine_(self, K: Tensor, other: Tensor) -> None:
        if self.operation == "+":
            K.add_(other)
        else:
            K.mul_(other)

    @staticmethod
    def _products_of_others(factors: list[Tensor]) -> list[Tensor]:
        """For each factor the product of the others: no division, so zeros are allowed."""
        return [reduce(torch.mul, factors[:i] + factors[i + 1 :]) for i in range(len(factors))]


def _named(gradients: list[Tensors]) -> Tensors:
    return {f"{i}.{name}": value for i, part in enumerate(gradients) for name, value in part.items()}
