"""How predictions depend on one column while the others stay as they are: partial dependence, with its uncertainty.

The curve is the average of the function over some rows in which the column is set to each of several values. Averages
of a Gaussian process are Gaussian, so the band is exact under the model: it takes covariances into account.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from nearexact.estimators import GPRegressor, SGPRegressor
from nearexact.tables.columns import CYCLES, Column
from nearexact.tables.recipe import Recipe
from nearexact.typing import FloatArray

PLACES, MOST_PLACES = 30, 90  # at which a curve is computed; the latter only where the time of year counts
PLACES_PER_YEAR = 12
BACKGROUND_ROWS = 50  # that it is averaged over
RANGE = (2.0, 98.0)  # per cent of the data between which it is drawn


@dataclass(frozen=True, eq=False)
class Dependence:
    """The average prediction at some values of a column, and its standard deviation, in the units of the target."""

    column: str
    kind: str
    places: list[Any]  # as a reader would write them
    mean: FloatArray
    std: FloatArray
    rows: int  # that it is averaged over


def partial_dependence(model: SGPRegressor | GPRegressor, recipe: Recipe, values: FloatArray, name: str) -> Dependence:
    """For the column of this name, averaged over some of the rows whose values these are."""
    position = recipe.names.index(name)
    column = recipe.columns[position]
    if column.kind in ("category", "boolean"):
        places = np.unique(values[:, position])
    else:
        places = _places(column, values[:, position])
    chosen = np.random.default_rng(0).permutation(len(values))[:BACKGROUND_ROWS]
    # Days apart, the time of day is one of the things that stay as they are: else each place would have another one.
    keeps_time = "day" in column.cycles and len(places) > 1 and places[1] - places[0] >= CYCLES["day"]
    times = values[chosen, position] % CYCLES["day"] if keeps_time else 0.0
    places = np.floor(places) if keeps_time else places
    means, stds = [], []
    for place in places:
        rows = values[chosen].copy()
        rows[:, position] = place + times
        mean, covariance = model.predict(recipe.frame(rows), return_cov=True, noise=False)
        means.append(float(mean.mean()))
        stds.append(float(np.sqrt(max(covariance.mean(), 0.0))))
    return Dependence(name, column.kind, column.labels(places), np.array(means), np.array(stds), len(chosen))


def _places(column: Column, values: FloatArray) -> FloatArray:
    """Values of a number or a date at which to compute the curve: of dates enough to see each year's course."""
    low, high = np.percentile(values, RANGE)
    if high <= low:
        return np.unique(values)[:PLACES]
    years = (high - low) / CYCLES["year"] if "year" in column.cycles else 0.0
    return np.linspace(low, high, min(max(PLACES, int(PLACES_PER_YEAR * years)), MOST_PLACES))
