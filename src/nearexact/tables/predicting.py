"""Predictions for a file, and certificates from one, by a model that was fitted to a file.

Only a piece of the rows to predict is in memory at a time. What can be found wrong without the model itself is found
before torch is imported, which takes seconds.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pyarrow as pa

from nearexact.files import check_apart, check_output
from nearexact.limits import parse_seconds
from nearexact.model_header import explained, read_header
from nearexact.tables.dialect import Spelling
from nearexact.tables.reading import Source, TableFile, open_table
from nearexact.tables.recipe import MISSING_POLICIES, RECIPE, Missing, Recipe, training_rows
from nearexact.tables.writing import SUFFIXES, table_writer

if TYPE_CHECKING:
    from nearexact.certificate import Certificate
    from nearexact.tables.predictor import Model

LEVEL = 0.95
PREDICTIONS = ("mean", "std", "lower", "upper")
BOUNDS = ("mean_error", "std_lower", "std_upper")  # columns that certified predictions have besides
ALL = "all"  # columns are kept


@dataclass(frozen=True)
class Predicted:
    """How many rows were predicted; those with a missing value are empty."""

    rows: int
    empty: int


def load_with_recipe(path: str | os.PathLike[str]) -> tuple[Model, Recipe]:
    """A model that was fitted to a file, and how columns become its inputs."""
    recipe, model = opened(path)
    return model(), recipe


def opened(model: str | os.PathLike[str] | tuple[Model, Recipe]) -> tuple[Recipe, Callable[[], Model]]:
    """How columns become inputs of a model, at once, and the model when it is asked for: a file takes seconds."""
    if isinstance(model, tuple):
        return model[1], lambda: model[0]
    with explained(model):
        header = read_header(model)
        metadata = header.metadata

    def loaded() -> Model:
        from nearexact.persistence import load  # only here, since it needs torch

        return load(model)

    return checked_recipe(metadata, header.inputs, repr(os.fspath(model))), loaded


def recipe_of(model: Model) -> Recipe:
    """How columns become inputs of a model that was fitted to a file."""
    return checked_recipe(getattr(model, "metadata_", {}), model.n_features_in_)


def checked_recipe(metadata: dict[str, Any], inputs: int, what: str = "the model") -> Recipe:
    """The recipe that is kept with a model of so many inputs; `what` has it."""
    if RECIPE not in metadata:
        raise ValueError(f"{what} was not fitted to a file, so it does not say how columns become inputs")
    recipe = Recipe.from_json(metadata[RECIPE])
    if len(recipe.inputs) != inputs:
        raise ValueError(
            f"the model's recipe for columns is damaged: it makes {len(recipe.inputs)} inputs for a model of {inputs}"
        )
    return recipe


def predict(
    model: str | os.PathLike[str] | tuple[Model, Recipe],
    path: Source,
    output: str | os.PathLike[str],
    *,
    level: float = LEVEL,
    missing: Missing | None = None,
    keep: str | Sequence[str] = (),
    certify: bool = False,
    training_data: Source | None = None,
    time_limit: float | str | None = None,
    spelling: Spelling = Spelling(),  # noqa: B008  # frozen
    on_rows: Callable[[int], None] = lambda rows: None,
) -> Predicted:
    """Write mean, std, lower and upper for each row of a CSV or Parquet file, or of a data frame, to another file.

    Of several targets a and b the columns are a_mean, a_std, …, b_mean, ….
    Between lower and upper lies a new observation with probability `level`. With `missing="drop"`, rows with a missing
    value have empty predictions; by default missing values are treated as when the model was fitted. `keep` are names
    of columns that are copied before the predictions, or "all".

    `certify` adds mean_error, std_lower and std_upper: the exact GP with the same hyperparameters has a mean within
    mean_error of `mean`, and a std of a new observation, as `std` is, from std_lower to std_upper. A sparse model from
    a file needs the `training_data` for that, the file that it was fitted to. `time_limit` is for these bounds alone.
    """
    inputs = {"the data": path, "the training data": training_data, "the model": model}
    check_output(output, SUFFIXES)
    check_apart({"the output": output}, {k: v for k, v in inputs.items() if isinstance(v, str | os.PathLike)})
    recipe, load = opened(model)
    _check_options(level, missing)
    if not certify and not (training_data is None and time_limit is None):
        raise ValueError("training data and a time limit are for certified predictions: ask for those, too (--certify)")
    seconds = parse_seconds(time_limit)
    file = open_table(path, spelling, wanted=recipe.names, usual=recipe.spelling)
    recipe.check_columns(file)
    columns = prediction_columns(recipe, PREDICTIONS + BOUNDS if certify else PREDICTIONS)
    kept = _kept(file, keep, columns)
    from nearexact.tables import predictor as computing  # only here, since it needs torch

    estimator = load()
    predictor = computing.Predictor(estimator, recipe, level)
    if certify:
        data = computing.training_data(estimator, recipe, training_data, spelling)
        pieces = 1 if time_limit is None else sum(1 for _ in file.pieces(recipe.names, kept))
        predictor = computing.Certifier(estimator, recipe, level, data, seconds, pieces)
    rows = empty = 0
    ours = pa.schema([(name, pa.float64()) for name in columns])
    with table_writer(Path(output), pa.schema([*file.schema(kept), *ours])) as write:
        for values, copy in _pieces(file, recipe, missing or recipe.missing, kept):
            write(_beside(copy, predictor.predictions(values), ours))
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
    recipe, load = opened(model)
    _check_options(level, missing)
    table = open_table(frame)
    recipe.check_columns(table)
    from nearexact.tables.predictor import Predictor  # only here, since it needs torch

    estimator = load()
    predictor = Predictor(estimator, recipe, level)
    parts = [predictor.predictions(values) for values, _ in _pieces(table, recipe, missing or recipe.missing)]
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
    recipe, load = opened(model)
    file = open_table(path, spelling, wanted=[*recipe.names, *recipe.learnt_from], usual=recipe.spelling)
    recipe.check_columns(file, with_target=True)
    estimator = load()
    values, learnt = training_rows(file, recipe, estimator.certificate_.n)
    estimator.set_params(progress=progress)
    options: dict[str, Any] = {**learnt.noise, "cg_iterations": cg_iterations, "time_limit": time_limit}
    return estimator.certify(recipe.frame(values), learnt.y, **options)


def prediction_columns(recipe: Recipe, names: Sequence[str]) -> tuple[str, ...]:
    """Names of the columns of predictions; those of several targets begin with the name of the target."""
    return tuple(f"{target}_{name}" for target in recipe.several for name in names) or tuple(names)


def _check_options(level: float, missing: Missing | None) -> None:
    if not 0.0 < level < 1.0:
        raise ValueError(f"the level must be between 0 and 1, got {level}")
    if missing is not None and missing not in MISSING_POLICIES:
        raise ValueError(f"missing must be one of {', '.join(MISSING_POLICIES)}, got {missing!r}")


def _kept(file: TableFile, keep: str | Sequence[str], ours: Sequence[str]) -> list[str]:
    """Columns to copy besides ours, in the order in which they are named; one text may hold several, with commas."""
    names: list[str] = []
    for text in [keep] if isinstance(keep, str) else keep:
        if text == ALL:
            names += file.columns
        else:
            names += [text] if text in file.columns else [name.strip() for name in text.split(",")]
    unknown = [name for name in names if name not in file.columns]
    if unknown:
        raise ValueError(f"{file.name} has no column {unknown[0]!r} to keep")
    twice = [name for name in names if name in ours]
    if twice:
        raise ValueError(f"column {twice[0]!r} of the data cannot be kept: predictions have a column of that name")
    return list(dict.fromkeys(names))


def _pieces(
    file: TableFile, recipe: Recipe, missing: Missing, kept: Sequence[str] = ()
) -> Iterator[tuple[np.ndarray, pa.Table]]:
    first = 1
    for piece in file.pieces(recipe.names, kept):
        last = first + len(piece.frame) - 1
        values = recipe.values(piece.frame, file.decimal, first)
        yield recipe.completed(values, missing, where=f" in rows {first} to {last}"), piece.copy
        first = last + 1


def _beside(copy: pa.Table, predictions: np.ndarray, schema: pa.Schema) -> pa.Table:
    """The columns that are kept, and predictions after them."""
    arrays = [pa.array(column, from_pandas=True) for column in predictions.T.copy()]  # NaN becomes null
    return pa.Table.from_arrays([*copy.columns, *arrays], schema=pa.schema([*copy.schema, *schema]))
