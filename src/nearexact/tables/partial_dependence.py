"""How predictions depend on one column while the others stay as they are: partial dependence, with its uncertainty.

The curve is the average of the function over some rows in which the column is set to each of several values. Averages
of a Gaussian process are Gaussian, so the band is exact under the model: it takes covariances into account.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from nearexact.estimators import GPRegressor, SGPRegressor
from nearexact.tables.recipe import Recipe
from nearexact.typing import FloatArray

PLACES = 30  # at which a curve is computed
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


def partial_dependence(model: SGPRegressor | GPRegressor, recipe: Recipe, values: FloatArray, name: str) -> Dependence:
    """For the column of this name, averaged over some of the rows whose values these are."""
    position = recipe.names.index(name)
    column = recipe.columns[position]
    if column.kind in ("category", "boolean"):
        places = np.unique(values[:, position])
    else:
        low, high = np.percentile(values[:, position], RANGE)
        places = np.linspace(low, high, PLACES) if high > low else np.unique(values[:, position])[:PLACES]
    chosen = np.random.default_rng(0).permutation(len(values))[:BACKGROUND_ROWS]
    means, stds = [], []
    for place in places:
        rows = values[chosen].copy()
        rows[:, position] = place
        mean, covariance = model.predict(recipe.frame(rows), return_cov=True, noise=False)
        means.append(float(mean.mean()))
        stds.append(float(np.sqrt(max(covariance.mean(), 0.0))))
    return Dependence(name, column.kind, column.labels(places), np.array(means), np.array(stds))
