"""How far predictions of a fit can be from the exact GP's with the same hyperparameters, in a few figures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from nearexact.tables.fitting import Fitted

MOST_ROWS = 200
TIME_SHARE, LEAST_SECONDS = 0.1, 2.0  # of the time of training, for the bounds; but not less than so much


@dataclass(frozen=True)
class PredictionDistance:
    """Proved for some of the rows; shares may be above 1 where time was short."""

    rows: int
    median_mean_error: float  # in standard deviations of a new observation
    largest_mean_error: float
    median_std_width: float  # of the bounds on the exact std of the function, as a share of the upper one
    largest_std_width: float


def prediction_distance(fitted: Fitted) -> PredictionDistance:
    """Of test rows; of rows that were trained on if there are none."""
    values = fitted.prepared.test if len(fitted.prepared.test) else fitted.prepared.train
    rows = np.sort(np.random.default_rng(0).permutation(len(values))[:MOST_ROWS])
    frame = fitted.prepared.recipe.frame(values[rows])
    seconds = max(TIME_SHARE * fitted.model.history_[-1].elapsed, LEAST_SECONDS)
    certified = fitted.model.certify_predictions(frame, time_limit=seconds)
    _, noisy_std = fitted.model.predict(frame, return_std=True)
    errors = certified.mean_error / noisy_std
    widths = 1.0 - certified.std_lower / certified.std_upper
    figures = (float(figure) for figure in (np.median(errors), errors.max(), np.median(widths), widths.max()))
    return PredictionDistance(len(rows), *figures)
