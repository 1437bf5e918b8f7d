"""Which climbs have ended on the same hill as the best: these agree with it.

Two optima of nearly the same likelihood may be two explanations of the data; with many inputs and few rows there are
often dozens. Between two of them the likelihood falls, so that a look halfway tells them apart.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nearexact.gp.exact import ExactObjective
from nearexact.gp.known_optimum import AGREEMENT
from nearexact.gp.parameters import LogCoordinates, ParameterLayout
from nearexact.gp.rounds import SubsetOptimum
from nearexact.gp.safety import NumericalError
from nearexact.gp.starts import with_capped_lengthscales
from nearexact.typing import FloatArray


class Agreement:
    """Remembers what was found halfway between two optima of the same rows."""

    def __init__(self) -> None:
        # The optima themselves are kept: as long as they live, their identity is theirs alone.
        self._known: dict[tuple[int, int], tuple[SubsetOptimum, SubsetOptimum, bool]] = {}

    def count(self, objective: ExactObjective, best: SubsetOptimum, ends: Sequence[SubsetOptimum]) -> int:
        """How many of these ends agree with the best."""
        return sum(self._agree(objective, best, end) for end in ends)

    def _agree(self, objective: ExactObjective, best: SubsetOptimum, end: SubsetOptimum) -> bool:
        if end is best:
            return True
        if abs(best.likelihood - end.likelihood) > AGREEMENT * len(objective.y):
            return False
        key = id(best), id(end)
        if key not in self._known:
            self._known[key] = best, end, are_on_one_hill(objective, best, end)
        return self._known[key][2]


def are_on_one_hill(objective: ExactObjective, best: SubsetOptimum, other: SubsetOptimum) -> bool:
    """Whether the likelihood halfway between two optima is about as high as at the lower one."""
    theta = halfway(objective.layout, best.theta, other.theta)
    try:
        likelihood = objective.factorise(*objective.layout.unpack(theta)).lml
    except NumericalError:
        return False
    return likelihood >= min(best.likelihood, other.likelihood) - AGREEMENT * len(objective.y)


def halfway(layout: ParameterLayout, theta: FloatArray, other: FloatArray) -> FloatArray:
    """Between the logarithms; an input that matters in one place only is as good as off from a certain length on."""
    raw = [LogCoordinates.from_theta(at) for at in (theta, other)]
    capped = [LogCoordinates.from_theta(with_capped_lengthscales(layout, at)) for at in (theta, other)]
    both_off = np.logical_and(*(np.abs(a - b) > 1e-6 for a, b in zip(raw, capped, strict=True)))
    return LogCoordinates.to_theta(np.where(both_off, 0.5 * (raw[0] + raw[1]), 0.5 * (capped[0] + capped[1])))
