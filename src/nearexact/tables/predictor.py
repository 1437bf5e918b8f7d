"""What `predict` computes for each piece of a file. It needs torch, which mistakes in options and files do not."""

from __future__ import annotations

import time
from statistics import NormalDist
from typing import Any

import numpy as np
import pandas as pd

from nearexact.certifying_predictions import needs_training_data, noisy_std_bounds
from nearexact.estimators import GPRegressor, SGPRegressor
from nearexact.tables.dialect import Spelling
from nearexact.tables.predicting import BOUNDS, PREDICTIONS, prediction_columns
from nearexact.tables.reading import Source, open_table
from nearexact.tables.recipe import Recipe, training_rows

LEAST_SECONDS = 1e-3  # where the time is up: then bounds are those of the prior

Model = SGPRegressor | GPRegressor


class Predictor:
    """The columns of predictions for pieces of a file."""

    names: tuple[str, ...] = PREDICTIONS  # of the columns of a target

    def __init__(self, model: Model, recipe: Recipe, level: float) -> None:
        self.model, self.recipe, self.margin = model, recipe, NormalDist().inv_cdf(0.5 + level / 2.0)

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of all columns."""
        return prediction_columns(self.recipe, self.names)

    def predictions(self, values: np.ndarray) -> np.ndarray:
        """A row of columns for each row; NaN, which is written as nothing, where a value is missing."""
        predictions = np.full((len(values), len(self.columns)), np.nan)
        whole = ~np.isnan(values).any(1)
        if whole.any():
            frame = self.recipe.frame(values[whole])
            mean, std = self.model.predict(frame, return_std=True)
            columns = [mean, std, mean - self.margin * std, mean + self.margin * std, *self.bounds(frame)]
            predictions[whole] = np.stack(columns, axis=-1).reshape(len(mean), -1)
        return predictions

    def bounds(self, frame: pd.DataFrame) -> list[np.ndarray]:
        """Columns besides."""
        return []


class Certifier(Predictor):
    """The same with bounds, each piece with an equal share of the time."""

    names = PREDICTIONS + BOUNDS

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


def training_data(model: Model, recipe: Recipe, source: Source | None, spelling: Spelling) -> dict[str, Any]:
    """What the model must be given of the rows that it was trained on."""
    if not needs_training_data(model):
        return {}
    if source is None:
        raise ValueError(
            "a sparse model does not hold its training data: pass the file that it was fitted to as training_data"
            " (--training-data)"
        )
    file = open_table(source, spelling, wanted=[*recipe.names, *recipe.learnt_from], usual=recipe.spelling)
    values, learnt = training_rows(file, recipe, model.certificate_.n)
    return {"X_train": recipe.frame(values), "y_train": learnt.y, **learnt.noise}
