"""Kernels by name: "matern52", and sums and products of names such as "se+linear" or "(se+linear)*periodic"."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection

from nearexact.kernels.base import Kernel
from nearexact.kernels.dot_product import ArcCosine, Linear
from nearexact.kernels.stationary import Matern12, Matern32, Matern52, Periodic, SquaredExponential

Makers = dict[str, Callable[[], Kernel]]

MAKERS: Makers = {
    "se": SquaredExponential,
    "matern12": Matern12,
    "matern32": Matern32,
    "matern52": Matern52,
    "arccosine": ArcCosine,
    "arccosine1": lambda: ArcCosine(order=1),
    "arccosine2": lambda: ArcCosine(order=2),
    "linear": Linear,
    "periodic": Periodic,
}
TOKENS = re.compile(r"\s*([\w-]+|[+*()])")


def named_kernel(name: str, makers: Makers = MAKERS, others: Collection[str] = ()) -> Kernel:
    """The kernel of this name, with the values that training usually starts from; `makers` has the simple ones.

    `others` are names that whoever calls knows besides: an error lists them.
    """
    tokens, end = [], 0
    while match := TOKENS.match(name, end):
        tokens.append(match[1])
        end = match.end()
    reader = _Reader(name, tokens, makers, others)
    if name[end:].strip():
        raise reader.error()
    return reader.whole()


def as_named(kernel: Kernel | str | None) -> Kernel:
    """The kernel that an estimator is given: itself, by name, or none for the squared exponential."""
    if kernel is None:
        return SquaredExponential()
    if isinstance(kernel, str):
        return named_kernel(kernel)
    if not isinstance(kernel, Kernel):
        raise ValueError(f'kernel must be a kernel such as Matern52() or a name such as "se+linear", got {kernel!r}')
    return kernel


class _Reader:
    """Reads a name from left to right; products bind more than sums."""

    def __init__(self, name: str, tokens: list[str], makers: Makers, others: Collection[str]) -> None:
        self.name, self.tokens, self.makers, self.others = name, tokens, makers, others

    def error(self) -> ValueError:
        known = ", ".join([*self.others, *self.makers])
        return ValueError(f"there is no kernel {self.name!r}; there are {known}, and sums (+) and products (*) of them")

    def whole(self) -> Kernel:
        kernel = self._sum()
        if self.tokens:
            raise self.error()
        return kernel

    def _sum(self) -> Kernel:
        kernel = self._product()
        while self._next_is("+"):
            kernel = kernel + self._product()
        return kernel

    def _product(self) -> Kernel:
        kernel = self._simple()
        while self._next_is("*"):
            kernel = kernel * self._simple()
        return kernel

    def _simple(self) -> Kernel:
        if self._next_is("("):
            kernel = self._sum()
            if not self._next_is(")"):
                raise self.error()
            return kernel
        if not self.tokens or self.tokens[0] not in self.makers:
            raise self.error()
        return self.makers[self.tokens.pop(0)]()

    def _next_is(self, token: str) -> bool:
        if self.tokens[:1] != [token]:
            return False
        del self.tokens[0]
        return True
