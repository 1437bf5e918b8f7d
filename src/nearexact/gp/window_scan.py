"""Details that only neighbouring values of one input show, of which a random subset of many rows has too few.

Rows that are next to each other in one input are a subset as well: in this input they are as dense as all rows. Where a
function has details there, or where equal values name groups of rows, a GP that is rough in this input explains them
better than the best of the search does.
"""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from nearexact.gp.budget import TimeIsUpError
from nearexact.gp.exact import ExactObjective
from nearexact.gp.hills import are_on_one_hill
from nearexact.gp.known_optimum import RIVAL, SubsetOptimum
from nearexact.gp.optimise import OptimiserEnd, Optimum
from nearexact.gp.parameters import LogCoordinates
from nearexact.gp.rough_scan import MOST_INPUTS, lengthscales, likelihood_at, roughest
from nearexact.gp.rounds import StartingPoint
from nearexact.gp.rows import LocalRows
from nearexact.gp.safety import NumericalError
from nearexact.gp.side_by_side import side_by_side
from nearexact.gp.starts import START_NOISE, rough_start, unit_start
from nearexact.typing import FloatArray

if TYPE_CHECKING:
    from nearexact.gp.search import Search

MOST_FOLLOWED = 2  # inputs
# Of all rows, from which on the smallest subset shows what windows of as many rows would: they are hardly denser.
NEARLY_ALL = 0.75


def starts_with_details(search: Search, theta: FloatArray, seconds: float = math.inf) -> list[FloatArray]:
    """θ that explain rows next to each other in one input as well as the best θ so far, in another way.

    Three for each such input: the two roughest starts, and where a rough one leads to on those rows. None where rows
    are elsewhere, or hardly more than those of the smallest subset. TimeIsUpError if so many seconds do not suffice.
    """
    data, deadline = search.data, search.timer.clock() + seconds
    if search.sizes[0] >= NEARLY_ALL * data.n or not isinstance(data, LocalRows):
        return []
    windows = _Windows(search, data)
    unit = unit_start(search.layout, START_NOISE)

    def look(d: int, row: int) -> tuple[float, int, ExactObjective]:
        """What is gained around a row by being rough in this input, before any climb."""
        if search.timer.clock() > deadline:
            raise TimeIsUpError
        window = windows.around(d, row)
        rough = -math.inf if bool((window.X[:, d] == window.X[0, d]).all()) else roughest(window, unit, [d])[0]
        gain = rough - likelihood_at(window, theta) if math.isfinite(rough) else -math.inf
        window.release()  # there may be many of them
        return gain, d, window

    inputs = windows.random.permutation(search.layout.n_inputs)[:MOST_INPUTS]
    looks = [partial(look, int(d), int(windows.random.integers(data.n))) for d in inputs]
    by_gain = sorted(side_by_side(looks, at_most=search.abreast(search.sizes[0])), key=lambda triple: -triple[0])
    found: list[FloatArray] = []
    for rank, (gain, d, window) in enumerate(by_gain[:MOST_FOLLOWED]):
        if gain == -math.inf or (rank and gain < 0.0):
            break
        shortest = lengthscales(window.X[:, d].cpu().numpy())[:-3:-1]
        finest = [rough_start(search.layout, unit, [d], short=short) for short in shortest]
        rival = _rival(search, window, theta, [finest[0], roughest(window, unit, [d])[1]], deadline)
        if rival is not None:
            found += [*finest, rival]
    return found


class _Windows:
    """Likelihoods of as many rows as the smallest subset has, next to each other in one input."""

    def __init__(self, search: Search, data: LocalRows) -> None:
        self.search, self.data = search, data
        self.columns = data.X.cpu().numpy()
        self.random = np.random.default_rng(0)

    def around(self, d: int, row: int) -> ExactObjective:
        """The rows next to one of them."""
        values, rows = self.columns[:, d], self.search.sizes[0]
        distances = np.abs(values - values[row])
        nearest = np.argpartition(distances, rows - 1)[:rows]
        X, y, noise = self.data.take(nearest)
        numerics = self.search.numerics
        return ExactObjective(self.search.layout.kernel, START_NOISE, X, y, row_noise=noise, numerics=numerics)


def _rival(
    search: Search, window: ExactObjective, theta: FloatArray, rough: list[FloatArray], deadline: float
) -> FloatArray | None:
    """Where one of the rough starts leads to on these rows, if that explains them as well as where θ leads to."""
    rows = len(window.y)
    calls = [partial(_climbed, search, window, start, deadline) for start in [theta, *rough]]
    climbs = side_by_side(calls, at_most=search.abreast(rows))
    search.flops += sum(climb.evaluations for climb in climbs if climb is not None) * search.evaluation_flops(rows)
    smooth, *others = (
        None if climb is None else SubsetOptimum(LogCoordinates.to_theta(climb.theta), -climb.value) for climb in climbs
    )
    for other in sorted((end for end in others if end is not None), key=lambda end: -end.likelihood):
        if smooth is None:
            return other.theta
        is_near = other.likelihood >= smooth.likelihood - RIVAL * rows
        if is_near and not are_on_one_hill(window, smooth, other):
            return other.theta
    return None


def _climbed(search: Search, window: ExactObjective, theta: FloatArray, deadline: float) -> Optimum | None:
    """Where θ leads to on these rows, if it can be computed there."""
    seconds = deadline - search.timer.clock()
    if seconds <= 0.0:
        raise TimeIsUpError
    try:
        optimum = search.ascent(window, StartingPoint(theta), seconds)
    except NumericalError:
        return None
    if optimum.reason is OptimiserEnd.TIME_LIMIT:
        raise TimeIsUpError
    return optimum
