"""What a search on subsets keeps of each of them: which starts were tried, where they led, and who agrees."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from nearexact.gp.hills import Hills
from nearexact.gp.known_optimum import AGREEMENT, KnownOptimum, SubsetOptimum
from nearexact.typing import FloatArray


class StartingPoint(NamedTuple):
    """A θ to climb from."""

    theta: FloatArray
    curvature: FloatArray | None = None  # there, if θ is an optimum of fewer rows
    is_derived: bool = False  # made from the best so far, or tried before: where that leads, it says nothing


@dataclass(frozen=True)
class Round:
    """One subset, and what the starts on it have reached."""

    rows: int
    likelihoods: tuple[float, ...]  # exact log marginal likelihoods of these rows, the highest first
    evaluations: int
    seconds: float
    finished: bool  # whether all starts were tried to their end
    settled: bool = False  # whether the best of them was climbed from until hardly anything was left to gain
    # How many starts agree on the best, of how many: on these rows, or on fewer if the best comes from theirs; and what
    # the best was when they were counted.
    support: tuple[int, int] = (0, 0)
    counted_at: float = -math.inf
    agreeing: int = 1  # starts that have ended on the same hill as the best of all, this one counted
    support_rows: int = 0  # of the subset whose starts were counted

    @property
    def own_support(self) -> tuple[int, int]:
        """Of how many starts on these rows how many agree on the best."""
        return self.agreeing, len(self.likelihoods)

    def with_best(self, likelihood: float, *, settled: bool) -> Round:
        """The same after more steps from the best: it may have left behind those who agree."""
        led = replace(self, likelihoods=(likelihood, *self.likelihoods[1:]), settled=settled)
        return led if likelihood - self.counted_at <= AGREEMENT * self.rows else led.alone()

    def alone(self) -> Round:
        """The same where nobody agrees with the best."""
        return replace(self, agreeing=1).counted((1, len(self.likelihoods)), self.rows)

    def counted(self, support: tuple[int, int], rows: int) -> Round:
        """With so many that agree on the present best, of the starts on a subset of so many rows."""
        return replace(self, support=support, support_rows=rows, counted_at=self.likelihoods[0])

    def with_starts(self, likelihoods: tuple[float, ...], agreeing: int) -> Round:
        """After all starts were tried."""
        return replace(self, likelihoods=likelihoods, agreeing=agreeing, finished=True)


@dataclass
class Tried:
    """What the starts on a subset have come to so far."""

    rows: int
    hills: Hills
    # Of all that were followed to their end, but for those made from another optimum.
    ends: list[SubsetOptimum] = field(default_factory=list)
    optima: list[SubsetOptimum] = field(default_factory=list)  # but for those that have come near to the best
    leader: KnownOptimum | None = None
    evaluations: int = 0
    finished: bool = True
    first_leads: bool = False  # whether nothing is above what the first start has led to

    @property
    def likelihoods(self) -> list[float]:
        """That the starts have reached, the highest first."""
        return sorted((end.likelihood for end in self.ends), reverse=True)


@dataclass
class OpenRound:
    """Starts of a round that there was no time for."""

    number: int  # of the round
    tried: Tried
    starts: Iterator[StartingPoint]
    best: SubsetOptimum  # when the round ended
