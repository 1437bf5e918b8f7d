"""The names of kernels that `nearexact fit` knows. `named_kernels` has the kernels, which need torch."""

from __future__ import annotations

LINEAR = "+linear"  # the end of a sum's name
SIMPLE_NAMES = ("se", "matern12", "matern32", "matern52", "arccosine", "arccosine-split", "arccosine1")
NAMES = (*SIMPLE_NAMES, *(f"{name}{LINEAR}" for name in SIMPLE_NAMES))
AUTO, SIMPLEST = "auto", "se"


def check_kernel(name: str) -> None:
    """Raise a ValueError if there is no kernel of this name."""
    if name not in NAMES and name != AUTO:
        raise ValueError(f"there is no kernel {name!r}; there are {AUTO}, {', '.join(NAMES)}")
