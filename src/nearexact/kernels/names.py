"""Kernels by name: "matern52", and sums and products of names such as "se+linear" or "(se+linear)*periodic"."""

from __future__ import annotations

from collections.abc import Callable, Collection

from nearexact.kernel_names import Expression, read_name
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


def named_kernel(name: str, makers: Makers = MAKERS, others: Collection[str] = ()) -> Kernel:
    """The kernel of this name, with the values that training usually starts from; `makers` has the simple ones.

    `others` are names that whoever calls knows besides: an error lists them.
    """
    return _made(read_name(name, makers, others), makers)


def unless_named(kernel: Kernel | str) -> Kernel:
    """The kernel itself, or the one of this name."""
    return named_kernel(kernel) if isinstance(kernel, str) else kernel


def as_named(kernel: Kernel | str | None) -> Kernel:
    """The kernel that an estimator is given: itself, by name, or none for the squared exponential."""
    kernel = SquaredExponential() if kernel is None else unless_named(kernel)
    if not isinstance(kernel, Kernel):
        raise ValueError(f'kernel must be a kernel such as Matern52() or a name such as "se+linear", got {kernel!r}')
    return kernel


def _made(expression: Expression, makers: Makers) -> Kernel:
    if isinstance(expression, str):
        return makers[expression]()
    left, right = _made(expression.left, makers), _made(expression.right, makers)
    return left + right if expression.operation == "+" else left * right
