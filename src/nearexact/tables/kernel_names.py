"""Kernels that `nearexact fit` knows by name."""

from __future__ import annotations

from collections.abc import Callable

from nearexact.kernels import ArcCosine, Kernel, Linear, Matern12, Matern32, Matern52, SquaredExponential

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


def _with_linear(make: Maker) -> Maker:
    return lambda origin: make(origin) + Linear()


KERNELS = SIMPLE | {f"{name}+linear": _with_linear(make) for name, make in SIMPLE.items()}
AUTO, SIMPLEST = "auto", "se"


def check_kernel(name: str) -> None:
    """Raise a ValueError if there is no kernel of this name."""
    if name not in KERNELS and name != AUTO:
        raise ValueError(f"there is no kernel {name!r}; there are {AUTO}, {', '.join(KERNELS)}")
