"""Tables of the user's own as data sets, read as `nearexact fit` reads them: text, dates, missing cells and all."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from nearexact.tables.reading import open_table, read
from nearexact.tables.recipe import Recipe, Split, prepare, target_values
from nearexact.typing import FloatArray


@dataclass(frozen=True, eq=False)
class OwnTable:
    """The rows that have a target: one number per cell, NaN where it is missing, and how they become inputs."""

    recipe: Recipe
    values: FloatArray  # [N, columns]
    y: FloatArray  # [N]

    def encode(self, values: FloatArray, train: NDArray[np.intp]) -> FloatArray:
        """The inputs of all rows, [N, D]; missing cells become the median, or most frequent value, of `train`."""
        columns = [column.filled_by(values[train, i]) for i, column in enumerate(self.recipe.columns)]
        recipe = replace(self.recipe, columns=tuple(columns))
        return recipe.expand(recipe.completed(values, "median"))


def read_own_table(path: Path, target: str) -> OwnTable:
    """A CSV or Parquet file; ValueError with the reason if it is none, or none that can be learnt from."""
    file = open_table(path, wanted={target})
    # Kinds and categories are those of the whole table, as for `nearexact fit`.
    recipe = prepare(file, target, missing="median", split=Split(0.0)).recipe
    if recipe.several:
        raise ValueError(f"a data set has one target, got {', '.join(map(repr, recipe.several))}")
    frame = read(file, [*recipe.names, recipe.target])
    values, y = recipe.values(frame, file.decimal), target_values(frame[recipe.target], recipe.target, file.decimal)
    known = ~np.isnan(y)
    return OwnTable(recipe, values[known], y[known])
