"""Which columns matter: how much the fitted kernel lets the function change when a column moves by one standard
deviation, relative to the most relevant column.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from nearexact.kernels import Kernel
from nearexact.tables.recipe import Recipe
from nearexact.typing import FloatArray

ROWS = 50  # over which the change of the function is averaged
MOST_CELLS = 2**26  # that are computed with: with thousands of inputs fewer rows must do
CELLS_AT_ONCE = 2**21  # in memory


@dataclass(frozen=True)
class Relevance:
    """How much a column matters, 1 for the one that matters most."""

    column: str
    relevance: float
    lengthscale: float | None  # the shortest of its inputs, in standard deviations of the input; if it has any


def relevances(kernel: Kernel, rows: FloatArray, recipe: Recipe) -> list[Relevance]:
    """Columns by relevance, the most relevant first; rows are some standardised inputs, [n, D]."""
    changes, lengthscales = _expected_changes(kernel, rows[:ROWS]), _lengthscales(kernel, len(recipe.inputs))
    columns = []
    for name, inputs in recipe.slices().items():
        shortest = float(lengthscales[inputs].min())
        columns.append((float(changes[inputs].max()), name, shortest if math.isfinite(shortest) else None))
    largest = max(change for change, _, _ in columns) or 1.0
    ranked = sorted(columns, key=lambda entry: -entry[0])
    return [Relevance(name, change / largest, lengthscale) for change, name, lengthscale in ranked]


def _expected_changes(kernel: Kernel, rows: FloatArray) -> FloatArray:
    """How much a draw from the kernel changes when an input moves by a standard deviation, root mean square: [D].

    E(f(x′) − f(x))² = k(x, x) + k(x′, x′) − 2k(x, x′). With a short lengthscale that is √2 times the signal's standard
    deviation and no more; with a long one it falls like its inverse.
    """
    d = rows.shape[1]
    rows = rows[: max(min(ROWS, MOST_CELLS // d**2), 1)]
    blocks = np.array_split(np.arange(d), math.ceil(d**2 / CELLS_AT_ONCE))
    squares = np.zeros(d)
    for row in rows[:, None]:  # [1, D]
        for inputs in blocks:
            moved = np.repeat(row, len(inputs), axis=0)  # one row for each input
            moved[np.arange(len(inputs)), inputs] += 1.0
            squares[inputs] += kernel.diag(row) + kernel.diag(moved) - 2.0 * kernel(moved, row)[:, 0]
    return np.sqrt(np.maximum(squares / len(rows), 0.0))


def _lengthscales(kernel: Kernel, d: int) -> FloatArray:
    """The shortest lengthscale of each input, infinite where there is none: [D]."""
    parts = [
        np.broadcast_to(value, d)
        for name, value in kernel.parameters.items()
        if name.rpartition(".")[2] == "lengthscales"
    ]
    return np.min(parts, axis=0) if parts else np.full(d, np.inf)
