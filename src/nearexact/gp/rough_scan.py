"""In which inputs is a function rough? The likelihood says so before any start is climbed from.

A function with fast details in one of many inputs looks like noise from every smooth start. With which input a rough
start finds them matters far more than how rough it is, so inputs are looked at one by one.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch

from nearexact.gp.exact import ExactObjective
from nearexact.gp.safety import NumericalError
from nearexact.gp.side_by_side import side_by_side
from nearexact.gp.starts import SHORT, UNRELATED, rough_start
from nearexact.typing import FloatArray

MOST_INPUTS = 64  # that are looked at, taken at random where there are more
SHORTER = (1.0, 0.2, 0.04, 0.008)  # times the usual lengthscale of a rough start
NOISES = (0.01, 0.3)  # variances


class RoughScan:
    """θ made rough in one input, the most likely of all first; where there are many inputs, of some of them.

    So many likelihoods as are `abreast` may be computed at once.
    """

    def __init__(
        self, objective: ExactObjective, theta: FloatArray, random: np.random.Generator, *, abreast: int = 1
    ) -> None:
        self.objective, self.theta, self._at_once = objective, theta, max(min(abreast, torch.get_num_threads()), 1)
        values = objective.X.cpu().numpy()
        varying = np.flatnonzero(values.min(0) < values.max(0))
        self._unseen = [int(d) for d in random.permutation(varying)[:MOST_INPUTS]]
        self._found: list[tuple[float, int, FloatArray]] = []  # likelihood, input, start: what is not yet taken
        self.taken: list[FloatArray] = []
        self._first_again: FloatArray | None = None  # in the usual form

    @property
    def is_complete(self) -> bool:
        """Whether all of these inputs were looked at."""
        return not self._unseen

    def take(self, has_time: Callable[[], bool]) -> FloatArray | None:
        """The next start, after looking at all inputs while there is time; None if there is none left.

        The first one comes in the usual form as well: what two starts agree on is better known.
        """
        while self._unseen and has_time():
            group = [self._unseen.pop() for _ in range(min(self._at_once, len(self._unseen)))]
            self._found += side_by_side([partial(self._look, d) for d in group], at_most=self._at_once)
        if self._first_again is not None:
            again, self._first_again = self._first_again, None
            return again
        if not self._found:
            unseen = self._unseen[-1:]
            return rough_start(self.objective.layout, self.theta, unseen) if unseen else None
        best = max(self._found, key=lambda found: found[0])
        self._found = [found for found in self._found if found is not best]
        if not self.taken:
            self._first_again = rough_start(self.objective.layout, self.theta, [best[1]])
        self.taken.append(best[2])
        return best[2]

    def _look(self, d: int) -> tuple[float, int, FloatArray]:
        likelihood, theta, _ = roughest(self.objective, self.theta, [d])
        return likelihood, d, theta


def rougher_in_all(objective: ExactObjective, theta: FloatArray) -> FloatArray | None:
    """θ made rougher in all inputs than it usually is, if the likelihood speaks for that.

    Where only rows that nearly coincide have anything in common, all others look like noise.
    """
    _, found, is_usual = roughest(objective, theta, range(objective.layout.n_inputs))
    return None if is_usual else found


def roughest(objective: ExactObjective, theta: FloatArray, inputs: Sequence[int]) -> tuple[float, FloatArray, bool]:
    """θ made rough in these inputs, at the lengthscale and noise with the highest likelihood: that first.

    And whether the lengthscale is the usual one of a rough start.
    """
    values = objective.X.cpu().numpy()
    shorter = max((lengthscales(values[:, d]) for d in inputs), key=len)
    pairs = list(itertools.product(shorter, NOISES))
    grid = [rough_start(objective.layout, theta, inputs, short=short, noise=noise) for short, noise in pairs]
    likelihoods = [likelihood_at(objective, at) for at in grid]
    best = int(np.argmax(likelihoods))
    return likelihoods[best], grid[best], pairs[best][0] == shorter[0]


def lengthscales(values: FloatArray) -> list[float]:
    """Shorter and shorter ones, until no two values have anything to do with each other."""
    gaps = np.diff(np.unique(values))
    least = gaps.min(initial=math.inf) / UNRELATED
    shorter = [SHORT * factor for factor in SHORTER]
    return [length for number, length in enumerate(shorter) if number == 0 or shorter[number - 1] > least]


def likelihood_at(objective: ExactObjective, theta: FloatArray) -> float:
    """Minus infinity where it cannot be computed."""
    try:
        return objective.factorise(*objective.layout.unpack(theta)).sure_lml
    except NumericalError:
        return -math.inf
