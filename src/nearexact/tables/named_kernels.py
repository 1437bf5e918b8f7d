"""Kernels by the names that `nearexact fit` knows them by."""

from __future__ import annotations

from functools import partial

from nearexact.kernels import ArcCosine, Kernel, named_kernel
from nearexact.kernels.names import MAKERS
from nearexact.tables.kernel_names import AUTO, SPLIT

Origin = tuple[float, ...]  # where each input splits the target best, on the standardised scale


def kernel_with_origin(name: str, origin: Origin) -> Kernel:
    """The kernel of this name, with the values to start from; `arccosine-split` has this origin."""
    return named_kernel(name, {**MAKERS, SPLIT: partial(ArcCosine, origin=origin)}, others=[AUTO])
