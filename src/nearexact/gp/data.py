"""Checked training data as float64 tensors."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from nearexact.kernels.base import as_matrix


def as_training_data(X: Any, y: Any) -> tuple[Tensor, Tensor]:
    """X [N, D] and y [N] as finite float64 tensors on X's device, or a ValueError that says what came."""
    inputs = as_matrix(X, "X")
    try:
        targets = torch.as_tensor(y, dtype=torch.float64, device=inputs.device).detach()
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"y must be a numeric vector, got {type(y).__name__}: {error}") from error
    if targets.ndim != 1:
        raise ValueError(f"y must be a vector, got shape {tuple(targets.shape)}")
    if len(inputs) == 0 or len(inputs) != len(targets):
        raise ValueError(f"X and y must have equally many rows, at least one, got {len(inputs)} and {len(targets)}")
    for name, values in (("X", inputs), ("y", targets)):
        if not torch.isfinite(values).all():
            raise ValueError(
                f"{name} must be finite, got {int((~torch.isfinite(values)).sum())} NaN or infinite values"
            )
    return inputs.contiguous(), targets.contiguous()
