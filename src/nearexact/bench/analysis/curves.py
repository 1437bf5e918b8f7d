"""Curves over cost: smoothed where a method starts again and keeps the better model, and medians over seeds."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from nearexact.bench.analysis.families import bases_of, is_lower_bound, restarting_methods
from nearexact.bench.analysis.points import COVERAGE, IntArray, run_positions
from nearexact.typing import FloatArray

# Of the ELBO's range. Appendix E of the paper smooths "up to a tolerance" and says no number: this one is ours.
SMOOTHING_TOLERANCE = 0.001
SMOOTHED = ["elbo", "upper_bound", "rmse", "nlpd", "crps", "predict_seconds", *COVERAGE]


def held_positions(m: FloatArray, elbo: FloatArray, milestone: NDArray[np.bool_], *, is_bound: bool = True) -> IntArray:
    """For each point of a run, the position of the point whose values the smoothed curve shows there.

    After a restart that is the last point before it, until the ELBO has caught up to within 0.1 % of its range; or
    until the next milestone, if the ELBO is no bound and need not rise with M. A restart follows each milestone,
    whether or not the model then has more points: selection may not be able to use as many as the schedule asks for.
    A bound that falls within an M is a restart too: the robust procedure then climbs from another start, a rescue, and
    keeps the better model. So do exact GPs, which have no M, with the likelihood itself.
    """
    finite = elbo[np.isfinite(elbo)]
    tolerance = SMOOTHING_TOLERANCE * (finite.max() - finite.min()) if len(finite) else 0.0
    positions = np.arange(len(m))
    held: int | None = None
    for i in range(1, len(m)):
        falls = is_bound and elbo[i] < elbo[i - 1] - tolerance
        if held is None and (milestone[i - 1] or abs(m[i] - m[i - 1]) > 0.0 or falls):
            held = i - 1
        if held is not None:
            caught_up = elbo[i] >= elbo[held] - tolerance or not math.isfinite(elbo[held])
            if caught_up or (milestone[i] and not is_bound):
                held = None
            else:
                positions[i] = held
    return positions


def smooth(points: pd.DataFrame) -> pd.DataFrame:
    """A copy of the points with the values of the smoothed curves, for methods that start again."""
    restarting, bases = restarting_methods(points), bases_of(points)
    shown = np.arange(len(points))
    m, elbo, milestone = points["m"].to_numpy(), points["elbo"].to_numpy(), points["milestone"].to_numpy()
    for (_, method, _), run in run_positions(points):
        if method in restarting:
            is_bound = is_lower_bound(bases[method], has_upper=False)
            shown[run] = run[held_positions(m[run], elbo[run], milestone[run], is_bound=is_bound)]
    smoothed = points.copy()
    smoothed[SMOOTHED] = points[SMOOTHED].to_numpy()[shown]
    return smoothed


def median_curve(curves: Sequence[tuple[FloatArray, FloatArray]]) -> tuple[FloatArray, FloatArray]:
    """The median over runs of the last value of each, wherever one of them changes.

    A curve is costs that do not fall, and values. The median starts where at least half of the runs have a value; a run
    that has ended keeps its last one.
    """
    curves = [(x[keep], y[keep]) for x, y in curves if (keep := np.isfinite(x) & ~np.isnan(y)).any()]
    if not curves:
        return np.empty(0), np.empty(0)
    grid = np.unique(np.concatenate([x for x, _ in curves]))
    values = np.full((len(curves), len(grid)), np.nan)
    for row, (x, y) in enumerate(curves):
        last = np.searchsorted(x, grid, side="right") - 1
        values[row, last >= 0] = y[last[last >= 0]]
    enough = 2 * (~np.isnan(values)).sum(0) >= len(curves)
    return grid[enough], np.nanmedian(values[:, enough], axis=0)
