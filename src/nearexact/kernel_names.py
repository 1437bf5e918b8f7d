"""The names of kernels, and of sums and products of them, such as "se+linear" or "(se+linear)*periodic".

Without torch, so that a mistake in a name is answered at once; `nearexact.kernels` makes kernels of names.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import NamedTuple, TypeAlias

SIMPLE_NAMES = (
    "se", "matern12", "matern32", "matern52", "arccosine", "arccosine1", "arccosine2", "linear", "periodic",
)  # fmt: skip
TOKENS = re.compile(r"\s*([\w-]+|[+*()])")


class Combination(NamedTuple):
    """A sum or a product of two."""

    operation: str  # "+" or "*"
    left: Expression
    right: Expression


Expression: TypeAlias = str | Combination  # what a name says: a simple name, or a combination of them


def read_name(name: str, simple: Collection[str] = SIMPLE_NAMES, others: Collection[str] = ()) -> Expression:
    """What the name of a kernel says; a ValueError if it is none. `simple` are the names that may be combined.

    `others` are names that whoever calls knows besides: an error lists them.
    """
    tokens, end = [], 0
    while match := TOKENS.match(name, end):
        tokens.append(match[1])
        end = match.end()
    reader = _Reader(name, tokens, simple, others)
    if name[end:].strip():
        raise reader.error()
    return reader.whole()


class _Reader:
    """Reads a name from left to right; products bind more than sums."""

    def __init__(self, name: str, tokens: list[str], simple: Collection[str], others: Collection[str]) -> None:
        self.name, self.tokens, self.simple, self.others = name, tokens, simple, others

    def error(self) -> ValueError:
        known = ", ".join([*self.others, *self.simple])
        return ValueError(f"there is no kernel {self.name!r}; there are {known}, and sums (+) and products (*) of them")

    def whole(self) -> Expression:
        expression = self._sum()
        if self.tokens:
            raise self.error()
        return expression

    def _sum(self) -> Expression:
        expression = self._product()
        while self._next_is("+"):
            expression = Combination("+", expression, self._product())
        return expression

    def _product(self) -> Expression:
        expression = self._factor()
        while self._next_is("*"):
            expression = Combination("*", expression, self._factor())
        return expression

    def _factor(self) -> Expression:
        if self._next_is("("):
            expression = self._sum()
            if not self._next_is(")"):
                raise self.error()
            return expression
        if not self.tokens or self.tokens[0] not in self.simple:
            raise self.error()
        return self.tokens.pop(0)

    def _next_is(self, token: str) -> bool:
        if self.tokens[:1] != [token]:
            return False
        del self.tokens[0]
        return True
