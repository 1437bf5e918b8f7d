"""In which inputs is a function rough? The likelihood says so before any start is climbed from.

A function with fast details in one of many inputs looks like noise from every smooth start. With which input a rough
start finds them matters far more than how rough it is, so every input is looked at, alone.
"""

from __future__ import annotations

import math
import time

import numpy as np

from nearexact.gp.exact import ExactObjective
from nearexact.gp.safety import NumericalError
from nearexact.gp.starts import SHORT, UNRELATED, rough_start
from nearexact.typing import FloatArray

FINER = (1.0, 0.2, 0.04, 0.008)  # times the usual lengthscale of a rough start
NOISES = (0.01, 0.3)  # variances


def roughest_first(
    objective: ExactObjective, theta: FloatArray, random: np.random.Generator, seconds: float = math.inf
) -> list[FloatArray]:
    """θ made rough in one input, for each of them: at its best lengthscale and noise, the most likely of all first.

    After so many seconds those that were not looked at come last, as they are.
    """
    layout, started = objective.layout, time.perf_counter()
    found: list[tuple[float, FloatArray]] = []
    for d in random.permutation(layout.n_inputs):
        inputs = [int(d)]
        if time.perf_counter() - started > seconds:
            found.append((-math.inf, rough_start(layout, theta, inputs)))
            continue
        grid = [
            rough_start(layout, theta, inputs, short=short, noise=noise)
            for short in _lengthscales(objective.X[:, d].cpu().numpy())
            for noise in NOISES
        ]
        found.append(max(((_likelihood(objective, at), at) for at in grid), key=lambda pair: pair[0]))
    return [at for _, at in sorted(found, key=lambda pair: -pair[0])]


def _lengthscales(values: FloatArray) -> list[float]:
    """Shorter and shorter ones, until no two values have anything to do with each other."""
    gaps = np.diff(np.unique(values))
    least = gaps.min(initial=math.inf) / UNRELATED
    shorter = [SHORT * factor for factor in FINER]
    return [length for number, length in enumerate(shorter) if number == 0 or shorter[number - 1] > least]


def _likelihood(objective: ExactObjective, theta: FloatArray) -> float:
    try:
        return objective.factorise(*objective.layout.unpack(theta)).lml
    except NumericalError:
        return -math.inf
