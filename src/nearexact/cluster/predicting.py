"""Lazy predictions: chunk by chunk where the inputs are, when somebody computes them."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from dask.array import Array
from dask.delayed import delayed

from nearexact.typing import FloatArray

if TYPE_CHECKING:
    from nearexact.base_estimator import Regressor


def predict_lazily(model: Regressor, X: Any, *, return_std: bool, noise: bool) -> Any:
    """What `predict` returns, as a Dask collection with the chunks of X.

    Arrays give arrays, a mean or (mean, std); a DataFrame gives a DataFrame with the same index and the columns "mean"
    and, if it is asked for, "std"; of several targets "mean_0", "mean_1", and so on.
    """
    alone = copy.copy(model)
    alone._problem = None  # the workers need the model, not its training data
    targets = np.shape(model._scaling_y.scale)
    if not isinstance(X, Array):
        return X.map_partitions(
            frame_predictions, delayed(alone), return_std, noise, meta=_frame(X._meta.index, targets, return_std)
        )
    model._validated(np.zeros((1, *X.shape[1:])), reset=False)  # the number of columns
    inputs = X.rechunk({1: -1})
    parts = 2 if return_std else 1
    chunks = (inputs.chunks[0], (parts,), *((size,) for size in targets))
    both = inputs.map_blocks(
        array_predictions,
        model=delayed(alone),
        return_std=return_std,
        noise=noise,
        chunks=chunks,
        new_axis=list(range(1, len(chunks))),
        dtype=np.float64,
        meta=np.empty((0,) * len(chunks)),
        drop_axis=1,
    )
    return (both[:, 0], both[:, 1]) if return_std else both[:, 0]


def array_predictions(X: Any, model: Regressor, return_std: bool, noise: bool) -> FloatArray:
    """Mean and, if asked for, std of each row: [rows, 1 or 2], or [rows, 1 or 2, T]."""
    found: Any = model.predict(X, return_std=return_std, noise=noise)
    return np.stack(found if return_std else [found], axis=1)


def frame_predictions(X: pd.DataFrame, model: Regressor, return_std: bool, noise: bool) -> pd.DataFrame:
    """The same as a data frame."""
    targets = np.shape(model._scaling_y.scale)
    if not len(X):
        return _frame(X.index, targets, return_std)
    found = array_predictions(X, model, return_std, noise)
    return pd.DataFrame(found.reshape(len(X), -1), index=X.index, columns=_columns(targets, return_std))


def _frame(index: Any, targets: tuple[int, ...], return_std: bool) -> pd.DataFrame:
    """No rows, with the right columns."""
    columns = _columns(targets, return_std)
    return pd.DataFrame(np.empty((0, len(columns))), index=index[:0], columns=columns)


def _columns(targets: tuple[int, ...], return_std: bool) -> list[str]:
    names = ["mean", "std"] if return_std else ["mean"]
    return [f"{name}_{number}" for name in names for number in range(targets[0])] if targets else names
