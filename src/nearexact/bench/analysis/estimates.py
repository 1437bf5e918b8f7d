"""How far the estimates of the log marginal likelihood are off, where a method has recorded the exact value as well.

A method such as IterGP optimises an estimate. At the same hyperparameters the exact value is known if the run recorded
it as `exact_lml`; the difference is the estimator's error, and has nothing to do with where training ended.
"""

from __future__ import annotations

import math

import numpy as np
import pandas as pd

from nearexact.bench.analysis.results import KEY, Results
from nearexact.bench.report.method_styles import ordered

EXACT = "exact_lml"
COLUMNS = [*KEY, "estimate", "exact", "excess_per_point", "largest_excess", "points"]


def estimates(results: Results) -> pd.DataFrame:
    """A row for each run that recorded exact values: at its last point that has one, and the largest error of all.

    `estimate` and `exact` are losses, −LML; the excess is (estimated − exact LML)/N, so that above zero the estimate
    promises too much. `largest_excess` is that of all points which is furthest from zero.
    """
    if EXACT not in results.points:
        return pd.DataFrame(columns=COLUMNS)
    points = results.points.assign(exact=pd.to_numeric(results.points[EXACT], errors="coerce"))
    points = points[np.isfinite(points["exact"]) & np.isfinite(points["elbo"])]
    found = {}
    for key, mine in points.groupby(KEY):
        excess = ((mine["elbo"] - mine["exact"]) / (results.sizes[key[0]].n or math.nan)).to_numpy()
        largest = excess[np.argmax(np.abs(excess))]
        last = mine.iloc[-1]
        found[key] = (*key, -last["elbo"], -last["exact"], excess[-1], largest, len(mine))
    place = {method: position for position, method in enumerate(ordered(points["method"]))}
    rows = [found[key] for key in sorted(found, key=lambda key: (key[0], place[key[1]], key[2]))]
    return pd.DataFrame(rows, columns=COLUMNS)
