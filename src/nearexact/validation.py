"""Checks of inputs: they become float64 tensors, or a ValueError says what was expected and what was given.

Not in `gp/`, which is built on the kernels: they check their inputs too.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor


def as_matrix(X: Any, name: str, device: torch.device | None = None, columns: int | None = None) -> Tensor:
    """A finite float64 matrix [N, D] from a tensor, array or nested list."""
    matrix = as_float64(X, name, "matrix", device)
    if matrix.ndim != 2 or matrix.shape[1] == 0:
        raise ValueError(f"{name} must be a matrix with at least one column, got shape {tuple(matrix.shape)}")
    if columns is not None and matrix.shape[1] != columns:
        raise ValueError(f"{name} must have {columns} columns, got {matrix.shape[1]}")
    return matrix


def as_float64(values: Any, name: str, what: str, device: torch.device | None = None) -> Tensor:
    """A finite float64 tensor, which shares memory with the values where possible; errors call it `what`."""
    try:
        if not isinstance(values, Tensor):
            array = np.asarray(values)
            if array.dtype.kind not in "fiub" and not (array.dtype.kind == "O" and array.size):
                raise ValueError(f"its type is {array.dtype}")
            values = torch.from_numpy(
                np.require(array, np.float64, ["C", "W"])
            )  # torch needs writeable memory in native byte order
        elif values.is_complex():
            raise ValueError(f"its type is {values.dtype}")
        tensor: Tensor = values.detach().to(dtype=torch.float64, device=device)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"{name} must be a numeric {what}, got {type(values).__name__}: {error}") from error
    # A sum is finite only if all of its terms are, and it takes far less time than to look at each.
    if not torch.isfinite(tensor.sum()) and not torch.isfinite(tensor).all():
        raise ValueError(f"{name} must be finite, got {int((~torch.isfinite(tensor)).sum())} NaN or infinite values")
    return tensor


def table_hint(X: Any, error: Exception) -> str | None:
    """Where to go with inputs that are no numbers, or that have missing cells; None if that is not what is wrong."""
    kinds = {
        str(name): str(kind)
        for name, kind in zip(getattr(X, "columns", ()), getattr(X, "dtypes", ()), strict=False)
        if getattr(kind, "kind", "f") not in "biufc"
    }
    text = isinstance(X, np.ndarray | list | tuple) and _holds_text(np.asarray(X, dtype=object))
    if not kinds and not text and "contains NaN" not in str(error):
        return None
    found = f" ({', '.join(f'{name!r} is {kind}' for name, kind in kinds.items())})" if kinds else ""
    return (
        f"Columns of text, categories or dates{found}, and missing cells, become inputs by"
        ' nearexact.tables.fit(frame, target="…"), which needs the extra "data".'
    )


def _holds_text(values: np.ndarray[Any, np.dtype[Any]]) -> bool:
    return any(isinstance(value, str | bytes) for value in values.ravel())


def as_training_data(X: Any, y: Any) -> tuple[Tensor, Tensor]:
    """X [N, D] and y, [N] or of several targets [N, T], as finite float64 tensors on X's device.

    X is copied only if it has to be converted, so it must not be changed while the result is in use; y is copied.
    """
    inputs = as_matrix(X, "X")
    targets = as_float64(y, "y", "vector or matrix", inputs.device).clone()
    shape = tuple(targets.shape)
    if targets.ndim not in (1, 2) or 0 in shape[1:]:
        raise ValueError(f"y must be a vector, or a matrix with a column for each target, got shape {shape}")
    if len(inputs) == 0 or len(inputs) != len(targets):
        raise ValueError(f"X and y must have equally many rows, at least one, got {len(inputs)} and {len(targets)}")
    return inputs.contiguous(), targets
