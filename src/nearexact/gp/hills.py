"""Which climbs have ended on the same hill of a likelihood: these agree.

Two optima of nearly the same likelihood may be two explanations of the data; with many inputs and few rows there are
often dozens. Between two of them the likelihood falls, so that a look halfway tells them apart.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

import numpy as np

from nearexact.gp.exact import ExactObjective
from nearexact.gp.known_optimum import AGREEMENT, RIVAL, SubsetOptimum
from nearexact.gp.parameters import LogCoordinates, ParameterLayout
from nearexact.gp.safety import NumericalError
from nearexact.gp.starts import with_capped_lengthscales
from nearexact.typing import FloatArray


class Hills:
    """The hills of the likelihood of some rows, as far as climbs have ended on them.

    A hill is its highest known point. `has_time` is asked before each look at the likelihood: what nobody has looked at
    is a hill of its own, which agrees with no other.
    """

    def __init__(self, has_time: Callable[[], bool] = lambda: True) -> None:
        self.has_time = has_time
        self._tops: list[SubsetOptimum] = []
        self._hill: dict[SubsetOptimum, int] = {}

    def place(self, objective: ExactObjective, end: SubsetOptimum) -> int:
        """The number of the hill on which a climb has ended."""
        if end not in self._hill:
            near = [n for n, top in enumerate(self._tops) if _difference(top, end) <= RIVAL * len(objective.y)]
            known = (n for n in near if self.has_time() and are_on_one_hill(objective, self._tops[n], end))
            self._assign(end, next(known, len(self._tops)))
        return self._hill[end]

    def follow(self, start: SubsetOptimum, end: SubsetOptimum) -> None:
        """More steps from an optimum lead up the same hill."""
        if start in self._hill:
            self._assign(end, self._hill[start])

    def agreeing(self, objective: ExactObjective, best: SubsetOptimum, ends: Iterable[SubsetOptimum]) -> int:
        """How many of these ends are on the hill of the best, and nearly as high."""
        hill, most = self.place(objective, best), AGREEMENT * len(objective.y)
        return sum(_difference(best, end) <= most and self.place(objective, end) == hill for end in ends)

    def alone(self, objective: ExactObjective, ends: Iterable[SubsetOptimum]) -> int:
        """How many of these ends are alone on their hill."""
        return sum(count == 1 for count in Counter(self.place(objective, end) for end in ends).values())

    def are_one(self, one: SubsetOptimum, other: SubsetOptimum) -> bool:
        """Whether two optima are known to be on one hill."""
        return one in self._hill and self._hill[one] == self._hill.get(other)

    def _assign(self, end: SubsetOptimum, hill: int) -> None:
        self._hill[end] = hill
        if hill == len(self._tops):
            self._tops.append(end)
        elif end.likelihood > self._tops[hill].likelihood:
            self._tops[hill] = end


def are_on_one_hill(objective: ExactObjective, top: SubsetOptimum, other: SubsetOptimum) -> bool:
    """Whether the likelihood halfway between two optima is as high as theirs, about.

    If it is far higher, neither of them is one.
    """
    if np.array_equal(top.theta, other.theta):
        return True
    theta = halfway(objective.layout, top.theta, other.theta)
    try:
        likelihood = objective.factorise(*objective.layout.unpack(theta)).sure_lml
    except NumericalError:
        return False
    low, high = sorted([top.likelihood, other.likelihood])
    margin = AGREEMENT * len(objective.y)
    return low - margin <= likelihood <= high + margin


def halfway(layout: ParameterLayout, theta: FloatArray, other: FloatArray) -> FloatArray:
    """Between the logarithms; an input that matters in one place only is as good as off from a certain length on."""
    raw = [LogCoordinates.from_theta(at) for at in (theta, other)]
    capped = [LogCoordinates.from_theta(with_capped_lengthscales(layout, at)) for at in (theta, other)]
    both_off = np.logical_and(*(np.abs(a - b) > 1e-6 for a, b in zip(raw, capped, strict=True)))
    return LogCoordinates.to_theta(np.where(both_off, 0.5 * (raw[0] + raw[1]), 0.5 * (capped[0] + capped[1])))


def _difference(one: SubsetOptimum, other: SubsetOptimum) -> float:
    return abs(one.likelihood - other.likelihood)
