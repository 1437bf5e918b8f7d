"""Kernels that `nearexact fit` knows by name, and which of them it compares."""

from __future__ import annotations

from functools import partial

from nearexact.kernels import ArcCosine, Kernel, named_kernel
from nearexact.kernels.names import MAKERS

Origin = tuple[float, ...]  # where each input splits the target best, on the standardised scale

SPLIT = "arccosine-split"
SIMPLE = ("se", "matern12", "matern32", "matern52", "arccosine", SPLIT, "arccosine1")
KERNELS = (*SIMPLE, *(f"{name}+linear" for name in SIMPLE))  # that are compared
AUTO, SIMPLEST = "auto", "se"


def kernel_with_origin(name: str, origin: Origin) -> Kernel:
    """The kernel of this name, with the values to start from; `arccosine-split` has this origin."""
    return named_kernel(name, {**MAKERS, SPLIT: partial(ArcCosine, origin=origin)}, others=[AUTO])


def check_kernel(kernel: Kernel | str) -> None:
    """Raise a ValueError if this is neither a kernel nor the name of one."""
    if isinstance(kernel, str):
        if kernel != AUTO:
            kernel_with_origin(kernel, (0.0,))
    elif not isinstance(kernel, Kernel):
        raise ValueError(f'kernel must be a name such as "{AUTO}" or "se+linear", or a kernel, got {kernel!r}')
