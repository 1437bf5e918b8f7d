"""Names of the kernels that `nearexact fit` compares, and can be asked for. `named_kernels` makes them, with torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nearexact.kernel_names import SIMPLE_NAMES, read_name

if TYPE_CHECKING:
    from nearexact.kernels import Kernel

LINEAR = "+linear"  # the end of a sum's name
SPLIT = "arccosine-split"  # an arc-cosine kernel whose origin comes from the data
SIMPLE = ("se", "matern12", "matern32", "matern52", "arccosine", SPLIT, "arccosine1")
COMPARED = (*SIMPLE, *(f"{name}{LINEAR}" for name in SIMPLE))
AUTO, SIMPLEST = "auto", "se"


def check_kernel(kernel: Kernel | str) -> None:
    """Raise a ValueError if this is neither a kernel nor the name of one."""
    if isinstance(kernel, str):
        if kernel != AUTO:
            read_name(kernel, (*SIMPLE_NAMES, SPLIT), others=[AUTO])
        return
    from nearexact.kernels import Kernel  # only here: who has a kernel has imported torch

    if not isinstance(kernel, Kernel):
        raise ValueError(f'kernel must be a name such as "{AUTO}" or "se+linear", or a kernel, got {kernel!r}')
