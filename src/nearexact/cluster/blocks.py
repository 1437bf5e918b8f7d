"""From Dask collections to standardised blocks of rows on the workers, with the checks that local data get."""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import dask.array as da
import numpy as np
from dask.array import Array
from distributed import Client, default_client
from sklearn.utils.validation import check_consistent_length, validate_data

from nearexact import scaling
from nearexact.cluster.reduction import Add, Call, Cluster
from nearexact.cluster.rows import ClusterRows
from nearexact.cluster.workers import Block
from nearexact.problem import standardised, target_checks
from nearexact.scaling import Scaling
from nearexact.typing import FloatArray

if TYPE_CHECKING:
    from nearexact.base_estimator import Regressor

# Numbers in a block of rows. Below the least, sending a task takes longer than doing it; a block above the most, with
# its features, would not fit beside others into the memory of a small worker.
FEWEST_NUMBERS, MOST_NUMBERS = 2**17, 2**23


def cluster_of(client: Client | None) -> Cluster:
    """The client that was passed, or Dask's default one."""
    if client is not None and not isinstance(client, Client):
        raise ValueError(f"client must be a distributed.Client, got {type(client).__name__}")
    try:
        return Cluster(client or default_client())
    except ValueError as error:
        raise ValueError(
            "Dask collections need a client: pass client=distributed.Client(…), or make one before"
        ) from error


def as_blocks(estimator: Regressor, X: Any, y: Any, cluster: Cluster, *, reset: bool) -> tuple[list[Any], list[int]]:
    """Futures of checked blocks, and how many rows they have; with `reset` the estimator learns names of its inputs."""
    inputs, targets = as_rows(X, cluster), as_rows(y, cluster)
    if inputs.ndim != 2:
        estimator._validated(np.zeros((2,) * inputs.ndim))  # which says what is expected
    check_consistent_length(*(np.broadcast_to(0.0, len(part)) for part in (inputs, targets)))
    if len(inputs) < 2:
        estimator._validated(inputs.compute(), targets.compute(), ensure_min_samples=2)
    names = inputs if isinstance(X, Array) else X._meta  # that of an array has no columns
    validate_data(estimator, names, skip_check_array=True, reset=reset)
    sizes = block_sizes(inputs.chunks[0], inputs.shape[1])
    inputs = inputs.rechunk((tuple(sizes), -1))
    targets = targets.rechunk((tuple(sizes), *[-1] * (targets.ndim - 1)))
    check = type(estimator)()
    parts = inputs.to_delayed().ravel(), targets.to_delayed().ravel(), cluster.spread(len(sizes))
    tasks = [cluster.task(checked, one, other, check, worker=worker) for one, other, worker in zip(*parts, strict=True)]
    return cluster.start(tasks), sizes


def as_rows(values: Any, cluster: Cluster) -> Array:
    """An array with chunks of known size, from a Dask array, DataFrame or Series, or from an array that is here."""
    if hasattr(values, "to_dask_array"):
        values = values.to_dask_array()
    if not isinstance(values, Array):
        return da.asarray(np.asarray(values))
    if not any(np.isnan(size) for size in values.chunks[0]):
        return values
    parts = cluster.start(values.to_delayed().reshape(len(values.chunks[0]), -1)[:, 0])
    sizes = cluster.results([cluster.task(len, part) for part in parts])
    shapes = [(size, *values.shape[1:]) for size in sizes]
    return da.concatenate(
        [da.from_delayed(part, shape, values.dtype) for part, shape in zip(parts, shapes, strict=True)]
    )


def block_sizes(chunks: tuple[int, ...], columns: int) -> list[int]:
    """Rows of each block: neighbouring chunks that are too small are merged, and those that are too large split.

    They depend on the chunks alone, not on the workers, and so does the order of all sums.
    """
    fewest, most = -(-FEWEST_NUMBERS // columns), max(MOST_NUMBERS // columns, 1)
    merged = [0]
    for size in chunks:
        if merged[-1] >= fewest:
            merged.append(0)
        merged[-1] += size
    if len(merged) > 1 and merged[-1] < fewest:
        merged[-2:] = [sum(merged[-2:])]
    sizes: list[int] = []
    for size in merged:
        parts = -(-size // most)
        sizes += [size // parts + (part < size % parts) for part in range(parts)]
    return sizes


def standardised_rows(
    estimator: Regressor, X: Any, y: Any, client: Client | None, scalings: tuple[Scaling, Scaling] | None = None
) -> tuple[ClusterRows, Scaling, Scaling]:
    """Rows on the cluster, standardised by their own mean and deviation, or by given ones; and these scalings."""
    cluster = cluster_of(client)
    raw, sizes = as_blocks(estimator, X, y, cluster, reset=scalings is None)
    scaling_X, scaling_y = scalings or tuple(_scaling(cluster, raw, part, sum(sizes)) for part in (0, 1))
    blocks = cluster.start([cluster.task(standardise, block, scaling_X, scaling_y) for block in raw])
    squares = cluster.sum([Call(target_squares, block, ()) for block in blocks], operator.add)
    return ClusterRows(cluster, blocks, sizes, len(scaling_X.scale), squares), scaling_X, scaling_y


def _scaling(cluster: Cluster, blocks: list[Any], part: int, n: int) -> Scaling:
    first = cluster.results([cluster.task(first_row, blocks[0], part)])[0]

    def over_blocks(add: Add, function: Callable[..., FloatArray], *arguments: FloatArray) -> FloatArray:
        found: FloatArray = cluster.sum([Call(function, block, (part, *arguments)) for block in blocks], add)
        return found

    largest = over_blocks(np.maximum, column_largest)
    total, squares = (partial(over_blocks, operator.add, function) for function in (column_total, column_squares))
    return Scaling.from_sums(n, first, largest, total, squares)


# ---- on the workers --------------------------------------------------------------------------------------------------


def checked(X: Any, y: Any, estimator: Regressor) -> Block:
    """Finite numbers, or the error that the estimator has for others."""
    inputs, targets = estimator._validated(X, y, order="C", **target_checks(y))
    return inputs, targets.astype(np.float64)


def standardise(block: Block, scaling_X: Scaling, scaling_y: Scaling) -> Block:
    """A block as the models see it."""
    return standardised(block[0], scaling_X).numpy(), scaling_y.apply(block[1])


def target_squares(block: Block) -> FloatArray:
    """Σy² of each target."""
    return np.asarray(np.square(block[1]).sum(0))


def first_row(block: Block, part: int) -> FloatArray:
    return np.asarray(block[part][0])


def column_largest(block: Block, part: int) -> FloatArray:
    return scaling.largest(block[part])


def column_total(block: Block, part: int, unit: FloatArray) -> FloatArray:
    return scaling.total(block[part], unit)


def column_squares(block: Block, part: int, middle: FloatArray, unit: FloatArray) -> FloatArray:
    return scaling.squares(block[part], middle, unit)
