"""Starts for parameters that are no lengthscales or variances: a period above all.

The likelihood has many narrow peaks in a period, and no optimiser gets from one to the next. So it is looked at on a
grid, for each such parameter alone, and the highest peaks are where starts begin.
"""

from __future__ import annotations

import math
import re

import numpy as np

from nearexact.gp.exact import ExactObjective
from nearexact.gp.parameters import LEAST_EXCESS, LogCoordinates
from nearexact.gp.safety import NumericalError
from nearexact.gp.starts import INPUT_POWERS, SCALES
from nearexact.typing import FloatArray

PERIOD = "period"
FEWEST_VALUES, MOST_VALUES = 16, 256  # of a period; fewer for each input where there are many
VALUES_PER_CYCLE = 4.0  # that one more of fits into the range of an input: a peak is about half a cycle wide
FACTORS = np.logspace(-1.5, 1.5, 16)  # times the value of any other parameter
PEAKS = 3  # of each parameter
KNOWN = (*INPUT_POWERS, *SCALES)  # what other starts vary


def scanned_starts(objective: ExactObjective, theta: FloatArray) -> list[FloatArray]:
    """θ with one of these parameters at each of its highest peaks, the highest of all first; none if there are none."""
    layout, found = objective.layout, list[tuple[float, FloatArray]]()
    others = [entry for entry, name in enumerate(layout.names[:-1]) if _last_word(name) not in KNOWN]
    for entry in others:
        grid = _grid(objective, theta, entry, len(others))
        likelihoods = np.array([_likelihood(objective, at) for at in grid])
        around = np.concatenate([[-np.inf], likelihoods, [-np.inf]])
        is_peak = (likelihoods >= around[:-2]) & (likelihoods >= around[2:]) & np.isfinite(likelihoods)
        peaks = sorted(np.flatnonzero(is_peak), key=lambda peak: -likelihoods[peak])
        found += [(likelihoods[peak], grid[peak]) for peak in peaks[:PEAKS]]
    return [at for _, at in sorted(found, key=lambda pair: -pair[0])]


def _grid(objective: ExactObjective, theta: FloatArray, entry: int, others: int) -> FloatArray:
    """θ with many values for one of its entries: [values, entries]."""
    layout = objective.layout
    if _last_word(layout.names[entry]) == PERIOD:
        values = _periods(objective, layout.names[entry], others)
    else:
        values = (layout.numerics.floor + np.logaddexp(0.0, theta[entry])) * FACTORS
    grid: FloatArray = np.tile(theta, (len(values), 1))
    grid[:, entry] = LogCoordinates.to_theta(np.log(np.maximum(values - layout.numerics.floor, LEAST_EXCESS)))
    if layout.bounds is None:
        return grid
    low, high = (ends[entry] for ends in layout.bounds)
    within: FloatArray = grid[(grid[:, entry] > low) & (grid[:, entry] < high)]
    return within


def _periods(objective: ExactObjective, name: str, others: int) -> FloatArray:
    """From long ones to as many cycles in the range of the input as rows can show, with equal steps in frequency."""
    extents = (objective.X.amax(0) - objective.X.amin(0)).cpu().numpy()
    number = re.search(r"\[(\d+)\]$", name)
    extent = float(extents.max() if number is None else extents[int(number[1])])
    most = min(max(MOST_VALUES // others, FEWEST_VALUES), len(objective.y))
    periods: FloatArray = VALUES_PER_CYCLE * extent / np.arange(1.0, most + 1.0)
    return periods


def _last_word(name: str) -> str:
    """Of "0.period[2]": period."""
    return name.partition("[")[0].rpartition(".")[2]


def _likelihood(objective: ExactObjective, theta: FloatArray) -> float:
    try:
        return objective.factorise(*objective.layout.unpack(theta)).sure_lml
    except NumericalError:
        return -math.inf
