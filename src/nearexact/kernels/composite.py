"""Sums and products of kernels. A parameter keeps its name behind the position of its part: "0.lengthscales"."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Literal, Self, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from nearexact.kernels.base import Kernel
from nearexact.kernels.form import Cross, Tensors
from nearexact.kernels.parameter_bounds import Bounds, CheckedBounds
from nearexact.kernels.random_features import Features, product_of, sum_of
from nearexact.typing import FloatArray

Value = TypeVar("Value")


@dataclass(frozen=True)
class Composite(Kernel):
    """The sum or the product of kernels: `a + b` or `a * b`."""

    operation: Literal["+", "*"]
    parts: tuple[Kernel, ...]

    def __post_init__(self) -> None:
        if self.operation not in ("+", "*") or not self.parts or not all(isinstance(p, Kernel) for p in self.parts):
            raise ValueError(f'kernels are combined by "+" or "*", got {self.operation!r} and {self.parts!r}')
        same = [p.parts if isinstance(p, Composite) and p.operation == self.operation else (p,) for p in self.parts]
        object.__setattr__(self, "parts", tuple(part for group in same for part in group))
        object.__setattr__(self, "stationary", all(part.stationary for part in self.parts))

    @property
    def parameters(self) -> dict[str, FloatArray]:
        return {f"{i}.{name}": v for i, part in enumerate(self.parts) for name, v in part.parameters.items()}

    def with_parameters(self, values: Mapping[str, npt.ArrayLike]) -> Self:
        return type(self)(self.operation, tuple(part.with_parameters(own) for part, own in self._by_part(values)))

    @property
    def bounds(self) -> dict[str, CheckedBounds]:
        return {f"{i}.{name}": bounds for i, part in enumerate(self.parts) for name, bounds in part.bounds.items()}

    def with_bounds(self, **bounds: Bounds | None) -> Self:
        return type(self)(self.operation, tuple(part.with_bounds(**own) for part, own in self._by_part(bounds)))

    def is_like(self, other: Kernel) -> bool:
        return (
            isinstance(other, Composite)
            and (self.operation, len(self.parts)) == (other.operation, len(other.parts))
            and all(part.is_like(other_part) for part, other_part in zip(self.parts, other.parts, strict=True))
        )

    def for_inputs(self, n_inputs: int) -> Self:
        return type(self)(self.operation, tuple(part.for_inputs(n_inputs) for part in self.parts))

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

    @property
    def temporaries(self) -> int:
        per_part = 1 if self.operation == "+" else 3  # an adjoint, and for products also values of this and other parts
        return per_part * len(self.parts) + max(part.temporaries for part in self.parts)

    def against(self, B: Tensor) -> Cross:
        return CompositeCross(self, B)

    def diagonal(self, A: Tensor) -> Tensor:
        return self._combine([part.diagonal(a) for part, a in zip(self.parts, self.split(A), strict=True)])

    def differentiable(self, X: Tensor, Z: Tensor) -> Tensor:
        return self._combine([part.differentiable(X, Z) for part in self.parts])

    def differentiable_diagonal(self, X: Tensor) -> Tensor:
        return self._combine([part.differentiable_diagonal(X) for part in self.parts])

    def diagonal_vjp(self, A: Tensor, weights: Tensor) -> Tensors:
        parts = list(zip(self.parts, self.split(A), strict=True))
        bars = [weights] * len(parts)
        if self.operation == "*":
            bars = [weights * others for others in _products_of_others([part.diagonal(a) for part, a in parts])]
        return _named([part.diagonal_vjp(a, bar) for (part, a), bar in zip(parts, bars, strict=True)])

    def random_features(self, count: int, random: np.random.Generator, like: Tensor) -> Features | None:
        parts = [part.random_features(count, random, like) for part in self.parts]
        known = [part for part in parts if part is not None]
        if len(known) < len(parts):
            return None
        return sum_of(known) if self.operation == "+" else product_of(known)

    def split(self, A: Tensor) -> tuple[Tensor, ...]:
        """The columns of features that belong to each part. All kernels but composites have equally many."""
        return torch.split(A, [_leaves(part) * A.shape[1] // _leaves(self) for part in self.parts], dim=1)

    def _combine(self, values: list[Tensor]) -> Tensor:
        return reduce(torch.add if self.operation == "+" else torch.mul, values)

    def _by_part(self, values: Mapping[str, Value]) -> list[tuple[Kernel, dict[str, Value]]]:
        """What belongs to each part, under the names that it has there."""
        self._check_names(values)
        by_part: list[dict[str, Value]] = [{} for _ in self.parts]
        for full_name, value in values.items():
            position, name = full_name.split(".", 1)
            by_part[int(position)][name] = value
        return list(zip(self.parts, by_part, strict=True))


class CompositeCross:
    """k(·, z) of a sum or product."""

    def __init__(self, kernel: Composite, B: Tensor) -> None:
        self.kernel = kernel
        self.crosses = [part.against(b) for part, b in zip(kernel.parts, kernel.split(B), strict=True)]

    def values(self, A: Tensor, out: Tensor | None = None) -> Tensor:
        (first, a_first), *rest = self._with_features(A)
        K = first.values(a_first, out)
        for cross, a in rest:
            if self.kernel.operation == "+":
                K.add_(cross.values(a))
            else:
                K.mul_(cross.values(a))
        return K

    def add_adjoint(
        self, A: Tensor, K_bar: Tensor, scratch: Tensor | None = None, *, holds_values: bool = False
    ) -> None:
        parts = self._with_features(A)
        bars = [K_bar.clone() for _ in parts]  # parts may overwrite theirs
        if self.kernel.operation == "*":
            factors = _products_of_others([cross.values(a) for cross, a in parts])
            bars = [bar.mul_(others) for bar, others in zip(bars, factors, strict=True)]
        for (cross, a), bar in zip(parts, bars, strict=True):
            cross.add_adjoint(a, bar, scratch)

    def gradients(self) -> Tensors:
        return _named([cross.gradients() for cross in self.crosses])

    def _with_features(self, A: Tensor) -> list[tuple[Cross, Tensor]]:
        return list(zip(self.crosses, self.kernel.split(A), strict=True))


def _products_of_others(factors: list[Tensor]) -> list[Tensor]:
    """For each factor the product of the others, without division, since factors may be zero."""
    return [reduce(torch.mul, factors[:i] + factors[i + 1 :]) for i in range(len(factors))]


def _leaves(kernel: Kernel) -> int:
    """How many kernels that are not composites are in it."""
    return sum(map(_leaves, kernel.parts)) if isinstance(kernel, Composite) else 1


def _named(gradients: list[Tensors]) -> Tensors:
    """Gradients of all parts under the names that their parameters have in the composite."""
    return {f"{i}.{name}": value for i, part in enumerate(gradients) for name, value in part.items()}
