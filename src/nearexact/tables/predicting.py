"""Predictions for a file, and certificates from one, by a model that was fitted to a file.

Only a piece of the rows to predict is in memory at a time.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from scipy.stats import norm

from nearexact.certificate import Certificate
from nearexact.estimators import GPRegressor, SGPRegressor
from nearexact.files import check_apart, check_output
from nearexact.persistence import load
from nearexact.tables.dialect import Spelling
from nearexact.tables.reading import TableFile, open_table
from nearexact.tables.recipe import MISSING_POLICIES, RECIPE, Missing, Recipe, training_rows
from nearexact.tables.writing import SUFFIXES, table_writer

LEVEL = 0.95
PREDICTIONS = ("mean", "std", "lower", "upper")
SCHEMA = pa.schema([(name, pa.float64()) for name in PREDICTIONS])

Model = SGPRegressor | GPRegressor


@dataclass(frozen=True)
class Predicted:
    """How many rows were predicted; those with a missing value are empty."""

    rows: int
    empty: int


def load_with_recipe(path: str | os.PathLike[str]) -> tuple[Model, Recipe]:
    """A model that was fitted to a file, and how columns become its inputs."""
    model = load(path)
    if not has_recipe(model):
        raise ValueError(f"{os.fspath(path)!r} was not fitted to a file, so it does not say how columns become inputs")
    return model, recipe_of(model)


def has_recipe(model: Model) -> bool:
    """Whether a model was fitted to a file."""
    return RECIPE in getattr(model, "metadata_", {})


def recipe_of(model: Model) -> Recipe:
    """How columns become inputs of a model that was fitted to a file."""
    recipe = Recipe.from_json(model.metadata_[RECIPE])
    if len(recipe.inputs) != model.n_features_in_:
        raise ValueError(
            f"the model's recipe for columns is damaged: it makes {len(recipe.inputs)} inputs for a model of"
            f" {model.n_features_in_}"
        )
    return recipe


def predict(
    model: str | os.PathLike[str] | tuple[Model, Recipe],
    path: str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    level: float = LEVEL,
    missing: Missing | None = None,
    spelling: Spelling = Spelling(),  # noqa: B008  # frozen
    on_rows: Callable[[int], None] = lambda rows: None,
) -> Predicted:
    """Write mean, std, lower and upper for each row of a CSV or Parquet file to another one.

    Between lower and upper lies a new observation with probability `level`. With `missing="drop"`, rows with a missing
    value have empty predictions; by default missing values are treated as when the model was fitted.
    """
    check_output(output, SUFFIXES)
    check_apart({"the output": output}, {"the data": path} | ({} if isinstance(model, tuple) else {"the model": model}))
    estimator, recipe = model if isinstance(model, tuple) else load_with_recipe(model)
    if not 0.0 < level < 1.0:
        raise ValueError(f"the level must be between 0 and 1, got {level}")
    if missing is not None and missing not in MISSING_POLICIES:
        raise ValueError(f"missing must be one of {', '.join(MISSING_POLICIES)}, got {missing!r}")
    file = open_table(Path(path), spelling, wanted=recipe.names)
    recipe.check_columns(file)
    rows = empty = 0
    with table_writer(Path(output), SCHEMA) as write:
        for values in _pieces(file, recipe, missing or recipe.missing):
            predictions = _predictions(estimator, recipe, values, level)
            write(_table(predictions))
            rows, empty = rows + len(values), empty + int(np.isnan(values).any(1).sum())
            on_rows(rows)
    return Predicted(rows, empty)


def certify(
    model: str | os.PathLike[str] | tuple[Model, Recipe],
    path: str | os.PathLike[str],
    *,
    cg_iterations: int | None = None,
    time_limit: float | str | None = None,
    spelling: Spelling = Spelling(),  # noqa: B008  # frozen
    progress: bool = False,
) -> Certificate:
    """Bounds on the exact log marginal likelihood, from the file that the model was fitted to."""
    estimator, recipe = model if isinstance(model, tuple) else load_with_recipe(model)
    file = open_table(Path(path), spelling, wanted=[*recipe.names, recipe.target])
    values, y = training_rows(file, recipe, estimator.certificate_.n)
    estimator.set_params(progress=progress)
    return estimator.certify(recipe.frame(values), y, cg_iterations=cg_iterations, time_limit=time_limit)


def _pieces(file: TableFile, recipe: Recipe, missing: Missing) -> Iterator[np.ndarray]:
    first = 1
    for frame in file.pieces(recipe.names):
        last = first + len(frame) - 1
        values = recipe.values(frame, file.decimal, first)
        yield recipe.completed(values, missing, where=f" in rows {first} to {last}")
        first = last + 1


def _predictions(model: Model, recipe: Recipe, values: np.ndarray, level: float) -> np.ndarray:
    """[n, 4]: mean, std, lower, upper; NaN, which is written as nothing, where a value is missing."""
    predictions = np.full((len(values), len(PREDICTIONS)), np.nan)
    whole = ~np.isnan(values).any(1)
    if whole.any():
        mean, std = model.predict(recipe.frame(values[whole]), return_std=True)
        margin = norm.ppf(0.5 + level / 2.0) * std
        predictions[whole] = np.column_stack([mean, std, mean - margin, mean + margin])
    return predictions


def _table(predictions: np.ndarray) -> pa.Table:
    columns = [pa.array(column, from_pandas=True) for column in predictions.T.copy()]  # NaN becomes null
    return pa.Table.from_arrays(columns, schema=SCHEMA)
