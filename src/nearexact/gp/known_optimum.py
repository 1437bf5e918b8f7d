"""An optimum that another start may be on its way to: then there is no need to follow it to the end.

The last steps of an optimiser gain next to nothing and take most of its evaluations. A start that has come near to a
known optimum, in likelihood and in θ, agrees with it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from nearexact.gp.optimise import Step
from nearexact.gp.parameters import LogCoordinates, ParameterLayout
from nearexact.gp.starts import with_capped_lengthscales
from nearexact.typing import FloatArray

AGREEMENT = 0.005  # nats per row below the best, up to which a start has ended near it
RIVAL = 0.03  # nats per row: of an optimum so near to the best of a subset nobody knows which one wins on more rows
WORTH_CARRYING = 0.2  # nats per row below the best of a subset, up to which another optimum may yet win on all rows
SETTLED_GAIN = 5e-4  # nats per row that may be left to gain where a start has settled
SETTLED_STEPS = 3  # whose gains are compared with those of as many before


@dataclass(frozen=True, eq=False)
class SubsetOptimum:
    """A θ, and the exact log marginal likelihood of a subset there."""

    theta: FloatArray
    likelihood: float
    is_derived: bool = False  # whether what led to it was made from another optimum


@dataclass(frozen=True, eq=False)
class KnownOptimum:
    """The best θ so far of some rows, and how strongly their likelihood bends around it."""

    layout: ParameterLayout
    theta: FloatArray
    likelihood: float  # of these rows, in nats
    rows: int
    curvature: FloatArray  # about the second derivatives of the negative likelihood per row, by the logarithms of θ

    def is_near(self, theta: FloatArray, likelihood: float) -> bool:
        """Whether the likelihood here is nearly as high, and θ no further away than a hill of that height is wide.

        What is higher is not on its way to this optimum.
        """
        if not 0.0 <= self.likelihood - likelihood <= AGREEMENT * self.rows:
            return False
        change = self._logs(theta) - self._logs(self.theta)
        return bool(0.5 * change @ self.curvature @ change <= AGREEMENT)

    def _logs(self, theta: FloatArray) -> FloatArray:
        """Lengthscales of inputs that do not matter are alike, however long they are."""
        return LogCoordinates.from_theta(with_capped_lengthscales(self.layout, theta))


def left_to_gain(values: Sequence[float]) -> float:
    """What the last steps of a minimiser have gained, and what those to come will if gains go on shrinking as they do.

    Not finite while that cannot be told: on a long ridge each step gains little, and as much as the one before.
    """
    if len(values) <= 2 * SETTLED_STEPS:
        return math.inf
    before, middle, now = values[-1 - 2 * SETTLED_STEPS], values[-1 - SETTLED_STEPS], values[-1]
    last, earlier = middle - now, before - middle
    if last <= 0.0:
        return 0.0
    return last / (1.0 - last / earlier) if last < earlier else math.inf


def until_settled(
    rows: int, best: KnownOptimum | None, *, settles: bool, after: Callable[[Step], None] = lambda _: None
) -> Callable[[Step], None]:
    """What an optimiser is to call after each step: ends it near the best optimum so far.

    With `settles` also where little is left to gain. That is for starts that were an optimum of fewer rows; others may
    be on a plateau.
    """
    values: list[float] = []

    def after_step(step: Step) -> None:
        after(step)
        values.append(step.value)
        if settles and left_to_gain(values) <= SETTLED_GAIN * rows:
            raise StopIteration
        if best is not None and best.is_near(LogCoordinates.to_theta(step.theta), -step.value):
            raise StopIteration

    return after_step
