"""More noise for an optimum of few rows that is far off with more of them.

Few rows can be explained by next to no noise where those that are near to each other, and differ, are missing. With a
few such pairs the likelihood is thousands of nats lower, and a climb from there takes many evaluations. The noise
alone, looked at again, brings most of that back in ten of them, without a gradient.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

from nearexact.gp.exact import ExactObjective
from nearexact.gp.known_optimum import SubsetOptimum
from nearexact.gp.safety import NumericalError

NOISES = tuple(10.0 ** (0.5 * power) for power in range(-9, 1))  # that are tried besides an optimum's own
FALLEN = 0.1  # nats per row below what it was with fewer rows
CLEARLY = 0.05  # nats per row by which other noise must be better


class MoreRows(NamedTuple):
    """An optimum of fewer rows, maybe with more noise, and its likelihood with more rows."""

    optimum: SubsetOptimum
    likelihood: float
    has_fallen: bool
    factorisations: int


def with_enough_noise(objective: ExactObjective, optimum: SubsetOptimum, rows_before: int) -> MoreRows:
    """The optimum as it is, unless its likelihood has fallen and more noise is clearly better."""
    kernel, own = objective.layout.unpack(optimum.theta)

    def likelihood(noise: float) -> float:
        try:
            return objective.factorise(kernel, noise).lml
        except NumericalError:
            return -math.inf

    present, n = likelihood(own), objective.n
    if present / n >= optimum.likelihood / rows_before - FALLEN:
        return MoreRows(optimum, present, has_fallen=False, factorisations=1)
    noises = [noise for noise in NOISES if own < noise <= objective.layout.numerics.noise_bounds[1]]
    best, noise = max([(likelihood(noise), noise) for noise in noises], default=(-math.inf, own))
    count = 1 + len(noises)
    if not best > present + CLEARLY * n:
        return MoreRows(optimum, present, has_fallen=True, factorisations=count)
    noisier = replace(optimum, theta=objective.layout.pack(kernel, noise))
    return MoreRows(noisier, best, has_fallen=True, factorisations=count)
