"""Checked training data as float64 tensors."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from nearexact.kernels.base import Kernel, as_float64, as_matrix


def as_training_data(X: Any, y: Any) -> tuple[Tensor, Tensor]:
    """X [N, D] and y [N] as finite float64 tensors on X's device, or a ValueError that says what came.

    X is not copied if it need not be: it must not be changed while what is made from it is in use.
    """
    inputs = as_matrix(X, "X")
    targets = as_float64(y, "y", "vector", inputs.device).clone()
    if targets.ndim != 1:
        raise ValueError(f"y must be a vector, got shape {tuple(targets.shape)}")
    if len(inputs) == 0 or len(inputs) != len(targets):
        raise ValueError(f"X and y must have equally many rows, at least one, got {len(inputs)} and {len(targets)}")
    return inputs.contiguous(), targets


def as_kernel(kernel: Kernel, n_inputs: int) -> Kernel:
    """The kernel with its parameters one per input."""
    if not isinstance(kernel, Kernel):
        raise ValueError(f"kernel must be a kernel such as SquaredExponential(), got {kernel!r}")
    return kernel.for_inputs(n_inputs)
