"""Kernels by the names that `nearexact fit` knows them by."""

from __future__ import annotations

from collections.abc import Callable

from nearexact.kernels import ArcCosine, Kernel, Linear, Matern12, Matern32, Matern52, SquaredExponential
from nearexact.tables.kernel_names import LINEAR, NAMES

Origin = tuple[float, ...]  # where each input splits the target best, on the standardised scale
Maker = Callable[[Origin], Kernel]

SIMPLE: dict[str, Maker] = {
    "se": lambda _: SquaredExponential(),
    "matern12": lambda _: Matern12(),
    "matern32": lambda _: Matern32(),
    "matern52": lambda _: Matern52(),
    "arccosine": lambda _: ArcCosine(),
    "arccosine-split": lambda origin: ArcCosine(origin=origin),
    "arccosine1": lambda _: ArcCosine(order=1),
}


def _maker(name: str) -> Maker:
    simple = SIMPLE[name.removesuffix(LINEAR)]
    return (lambda origin: simple(origin) + Linear()) if name.endswith(LINEAR) else simple


KERNELS = {name: _maker(name) for name in NAMES}
