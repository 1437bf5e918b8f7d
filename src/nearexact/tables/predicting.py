"""Predictions for a file, and certificates from one, by a model that was fitted to a file.

Only a piece of the rows to predict is in memory at a time.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from scipy.stats import norm

from nearexact.certificate import Certificate
from nearexact.certifying_predictions import needs_training_data, noisy_std_bounds
from nearexact.estimators import GPRegressor, SGPRegressor
from nearexact.files import check_apart, check_output
from nearexact.limits import parse_seconds
from nearexact.persistence import load
from nearexact.tables.dialect import Spelling
from nearexact.tables.reading import Source, TableFile, open_table
from nearexact.tables.recipe import MISSING_POLICIES, RECIPE, Missing, Recipe, training_rows
from nearexact.tables.writing import SUFFIXES, table_writer

LEVEL = 0.95
PREDICTIONS = ("mean", "std", "lower", "upper")
BOUNDS = ("mean_error", "std_lower", "std_upper")  # columns that certified predictions have besides

LEAST_SECONDS = 1e-3  # where the time is up: then bounds are those of the prior

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
    path: Source,
    output: str | os.PathLike[str],
    *,
    level: float = LEVEL,
    missing: Missing | None = None,
    certify: bool = False,
    training_data: Source | None = None,
    time_limit: float | str | None = None,
    spelling: Spelling = Spelling(),  # noqa: B008  # frozen
    on_rows: Callable[[int], None] = lambda rows: None,
) -> Predicted:
    """Write mean, std, lower and upper for each row of a CSV or Parquet file, or of a data frame, to another file.

    Between lower and upper lies a new observation with probability `level`. With `missing="drop"`, rows with a missing
    value have empty predictions; by default missing values are treated as when the model was fitted.

    `certify` adds mean_error, std_lower and std_upper: the exact GP with the same hyperparameters has a mean within
    mean_error of `mean`, and a std of a new observation, as `std` is, from std_lower to std_upper. A sparse model from
    a file needs the `training_data` for that, the file that it was fitted to. `time_limit` is for these bounds alone.
    """
    inputs = {"the data": path, "the training data": training_data, "the model": model}
    check_output(output, SUFFIXES)
    check_apart({"the output": output}, {k: v for k, v in inputs.items() if isinstance(v, str | os.PathLike)})
    estimator, recipe = model if isinstance(model, tuple) else load_with_recipe(model)
    _check_options(level, missing)
    if not certify and not (training_data is None and time_limit is None):
        raise ValueError("training data and a time limit are for certified predictions: ask for those, too (--certify)")
    file = open_table(path, spelling, wanted=recipe.names)
    recipe.check_columns(file)
    predictor = _Predictor(estimator, recipe, level)
    if certify:
        data = _training_data(estimator, recipe, training_data, spelling)
        pieces = 1 if time_limit is None else sum(1 for _ in file.pieces(recipe.names))
        predictor = _Certifier(estimator, recipe, level, data, parse_seconds(time_limit), pieces)
    rows = empty = 0
    schema = pa.schema([(name, pa.float64()) for name in predictor.columns])
    with table_writer(Path(output), schema) as write:
        for values in _pieces(file, recipe, missing or recipe.missing):
            write(_table(predictor.predictions(values), schema))
            rows, empty = rows + len(values), empty + int(np.isnan(values).any(1).sum())
            on_rows(rows)
    return Predicted(rows, empty)


def predict_frame(
    model: str | os.PathLike[str] | tuple[Model, Recipe],
    frame: pd.DataFrame,
    *,
    level: float = LEVEL,
    missing: Missing | None = None,
) -> pd.DataFrame:
    """Mean, std, lower and upper for each row of a data frame, with its index; the options are those of `predict`."""
    estimator, recipe = model if isinstance(model, tuple) else load_with_recipe(model)
    _check_options(level, missing)
    table = open_table(frame)
    recipe.check_columns(table)
    predictor = _Predictor(estimator, recipe, level)
    parts = [predictor.predictions(values) for values in _pieces(table, recipe, missing or recipe.missing)]
    return pd.DataFrame(np.concatenate(parts), index=frame.index, columns=list(predictor.columns))


def certify(
    model: str | os.PathLike[str] | tuple[Model, Recipe],
    path: Source,
    *,
    cg_iterations: int | None = None,
    time_limit: float | str | None = None,
    spelling: Spelling = Spelling(),  # noqa: B008  # frozen
    progress: bool = False,
) -> Certificate:
    """Bounds on the exact log marginal likelihood, from the file or data frame that the model was fitted to."""
    estimator, recipe = model if isinstance(model, tuple) else load_with_recipe(model)
    file = open_table(path, spelling, wanted=[*recipe.names, recipe.target])
    values, y = training_rows(file, recipe, estimator.certificate_.n)
    estimator.set_params(progress=progress)
    return estimator.certify(recipe.frame(values), y, cg_iterations=cg_iterations, time_limit=time_limit)


def _check_options(level: float, missing: Missing | None) -> None:
    if not 0.0 < level < 1.0:
        raise ValueError(f"the level must be between 0 and 1, got {level}")
    if missing is not None and missing not in MISSING_POLICIES:
        raise ValueError(f"missing must be one of {', '.join(MISSING_POLICIES)}, got {missing!r}")


def _pieces(file: TableFile, recipe: Recipe, missing: Missing) -> Iterator[np.ndarray]:
    first = 1
    for frame in file.pieces(recipe.names):
        last = first + len(frame) - 1
        values = recipe.values(frame, file.decimal, first)
        yield recipe.completed(values, missing, where=f" in rows {first} to {last}")
        first = last + 1


class _Predictor:
    """The columns of predictions for pieces of a file."""

    columns: tuple[str, ...] = PREDICTIONS

    def __init__(self, model: Model, recipe: Recipe, level: float) -> None:
        self.model, self.recipe, self.margin = model, recipe, norm.ppf(0.5 + level / 2.0)

    def predictions(self, values: np.ndarray) -> np.ndarray:
        """A row of columns for each row; NaN, which is written as nothing, where a value is missing."""
        predictions = np.full((len(values), len(self.columns)), np.nan)
        whole = ~np.isnan(values).any(1)
        if whole.any():
            frame = self.recipe.frame(values[whole])
            mean, std = self.model.predict(frame, return_std=True)
            columns = [mean, std, mean - self.margin * std, mean + self.margin * std, *self.bounds(frame)]
            predictions[whole] = np.column_stack(columns)
        return predictions

    def bounds(self, frame: pd.DataFrame) -> list[np.ndarray]:
        """Columns besides."""
        return []


class _Certifier(_Predictor):
    """The same with bounds, each piece with an equal share of the time."""

    columns = PREDICTIONS + BOUNDS

    def __init__(
        self, model: Model, recipe: Recipe, level: float, data: dict[str, Any], seconds: float, pieces: int
    ) -> None:
        super().__init__(model, recipe, level)
        self.data, self.end, self.pieces = data, time.perf_counter() + seconds, pieces

    def bounds(self, frame: pd.DataFrame) -> list[np.ndarray]:
        """Those of the exact GP's mean, and of its std of a new observation."""
        seconds = max((self.end - time.perf_counter()) / max(self.pieces, 1), LEAST_SECONDS)
        self.pieces -= 1
        certified = self.model.certify_predictions(frame, time_limit=seconds, **self.data)
        return [certified.mean_error, *noisy_std_bounds(self.model, certified)]


def _training_data(model: Model, recipe: Recipe, source: Source | None, spelling: Spelling) -> dict[str, Any]:
    """What the model must be given of the rows that it was trained on."""
    if not needs_training_data(model):
        return {}
    if source is None:
        raise ValueError(
            "a sparse model does not hold its training data: pass the file that it was fitted to as training_data"
            " (--training-data)"
        )
    file = open_table(source, spelling, wanted=[*recipe.names, recipe.target])
    values, y = training_rows(file, recipe, model.certificate_.n)
    return {"X_train": recipe.frame(values), "y_train": y}


def _table(predictions: np.ndarray, schema: pa.Schema) -> pa.Table:
    columns = [pa.array(column, from_pandas=True) for column in predictions.T.copy()]  # NaN becomes null
    return pa.Table.from_arrays(columns, schema=schema)
