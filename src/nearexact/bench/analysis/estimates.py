"""How far estimates of the log marginal likelihood are off, for methods that recorded the exact value as well.

A method such as IterGP optimises an estimate. At the same hyperparameters the exact value is known if the run recorded
it as `exact_lml`; the difference is the estimator's error, and has nothing to do with where training ended.
"""

from __future__ import annotations

import math

import numpy as np
import pandas as pd

from nearexact.bench.analysis.points import KEY
from nearexact.bench.analysis.results import Results

COLUMNS = [*KEY, "negative_lml_estimate", "negative_lml_exact", "excess_per_point", "largest_excess", "points"]


def estimates(results: Results) -> pd.DataFrame:
    """A row for each run that recorded exact values: at its last point that has one, and the largest error of all.

    Estimate and exact value are losses, −LML; the excess is (estimated − exact LML)/N, so that above zero the estimate
    is too optimistic. `largest_excess` is the excess furthest from zero over all points.
    """
    points = results.counted.rename(columns={"exact_lml": "exact"})
    points = points[np.isfinite(points["exact"]) & np.isfinite(points["elbo"])]
    rows = {}
    for key, run in points.groupby(KEY):
        excess = ((run["elbo"] - run["exact"]) / (results.sizes[key[0]].n or math.nan)).to_numpy()
        largest = excess[np.argmax(np.abs(excess))]
        last = run.iloc[-1]
        rows[key] = (*key, -last["elbo"], -last["exact"], excess[-1], largest, len(run))
    place = {method: position for position, method in enumerate(results.ordered(points["method"]))}
    keys = sorted(rows, key=lambda key: (key[0], place[key[1]], key[2]))
    return pd.DataFrame([rows[key] for key in keys], columns=COLUMNS)
