"""The option `kernel` that methods share: the name of a kernel, and what the trace says about it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nearexact.kernels.base import Kernel
from nearexact.kernels.names import named_kernel

DEFAULT = "se"  # the paper's: squared exponential, one lengthscale per input


def kernel_name(name: Any) -> str:
    """A name such as "matern32" or "se+linear"; ValueError if it is none."""
    if not isinstance(name, str):
        raise ValueError(f'kernel must be a name such as "matern32" or "se+linear", got {name!r}')
    named_kernel(name)
    return name


def hyperparameters(name: str, model: Callable[[], tuple[Kernel, float]]) -> dict[str, Any]:
    """For the trace, where comparisons with the exact GP look for it: kernel, its parameters by name, noise variance.

    `model` gives kernel and noise variance; it is called only if the point is recorded.
    """

    def value_of(parameter: str) -> Callable[[], Any]:
        return lambda: model()[0].parameters[parameter].tolist()

    return {
        "kernel": name,
        **{parameter: value_of(parameter) for parameter in named_kernel(name).parameters},
        "noise_variance": lambda: model()[1],
    }
