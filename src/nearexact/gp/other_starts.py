"""Starts besides the best of a search that may lead higher with all rows, and whether they were followed.

An optimum of a subset has rivals, of which more rows may prefer another; and more rows show finer details. Where an
evaluation with all rows is affordable, as by conjugate gradients, all of these are tried, and only then the best is
known to be that.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from nearexact.gp.budget import TimeIsUpError, Timer
from nearexact.gp.known_optimum import KnownOptimum
from nearexact.gp.search import Search
from nearexact.gp.search_completion import complete_search
from nearexact.gp.search_starts import CONFIRMING
from nearexact.gp.start_record import CONFIRMED
from nearexact.gp.window_scan import starts_with_details
from nearexact.typing import FloatArray

COMPLETION_SHARE, DETAILS_SHARE = 0.4, 0.2  # of the time that is left, at most
MOST_PASSES = 3  # over what is made from the best: it may lead to another one


@dataclass(frozen=True, eq=False)
class OtherStart:
    """A θ to climb from."""

    theta: FloatArray
    is_optimum: bool  # of a subset; or else it may be far from any
    is_made: bool = False  # from the best: where that leads, it says nothing about who agrees


class OtherStarts:
    """Those besides the `first` start, which was followed to its end with all rows."""

    def __init__(self, search: Search, first: FloatArray) -> None:
        self.search, self._first = search, first
        self._leading: FloatArray = first  # the start that has led to the best
        self._taken: list[FloatArray] = [first]
        self._open: list[OtherStart] = []
        self._agreeing, self._count = 1, 1  # starts that were followed with all rows, the first one counted
        self.excess = 0.0  # nats by which any of them may be higher than the best, as estimates are uncertain
        self._has_ended = False

    @property
    def are_all_tried(self) -> bool:
        """Whether there was time for all of them."""
        return self._has_ended and self.search.is_complete and not self.search.has_left_behind_a_rival

    @property
    def are_followed(self) -> bool:
        """Whether nothing is left that may lead higher, as far as anybody knows."""
        return self.are_all_tried and not self._open

    def take(self, best: Callable[[], FloatArray], timer: Timer, kept: Callable[[], float]) -> Iterator[OtherStart]:
        """One after the other; `best` is asked for the best θ so far, and `kept` for the seconds that the end takes."""

        def left() -> float:
            return max(timer.left() - kept(), 0.0)

        if not self.search.rounds:
            return
        complete_search(self.search, COMPLETION_SHARE * left())
        for optimum in [self.search.candidates[0], *self.search.rivals()]:
            yield from self._begin(OtherStart(optimum.theta, is_optimum=True, is_made=optimum.is_derived))
        if self.search.rounds[-1].rows >= self.search.data.n:  # all the rest was tried with all rows
            self._has_ended = True
            return
        try:
            details = starts_with_details(self.search, best(), DETAILS_SHARE * left())
        except TimeIsUpError:
            return
        for theta in details:
            yield from self._begin(OtherStart(theta, is_optimum=False))
        for _ in range(MOST_PASSES):
            known = best()
            for start in self._made_from(known, is_made=True):
                yield start
                if best() is not known:  # what is made from that one is worth more
                    break
            if best() is known:
                self._has_ended = True
                break
        if self._has_ended:
            yield from self._confirming()

    def _made_from(self, theta: FloatArray, *, is_made: bool) -> Iterator[OtherStart]:
        """With its inputs switched on again, with related values, with finer details."""
        for chance in self.search.starts.second_chance(theta):
            yield from self._begin(OtherStart(chance.theta, is_optimum=False, is_made=is_made))

    def _confirming(self) -> Iterator[OtherStart]:
        """Where only what was made from another optimum has led to the best: what others lead to in the same way."""
        others = [optimum for optimum in self.search.candidates if not optimum.is_derived]
        for other in others[1 : 1 + CONFIRMING]:
            if self.support()[0] >= CONFIRMED:
                return
            yield from self._made_from(other.theta, is_made=False)

    def _begin(self, start: OtherStart) -> Iterator[OtherStart]:
        if any(np.array_equal(start.theta, theta) for theta in self._taken):
            return
        self._taken.append(start.theta)
        self._open.append(start)
        yield start

    def followed(self, start: OtherStart, *, agrees: bool, leads: bool, excess: float) -> None:
        """A start has come to its end: near the best so far, or higher, or neither.

        `excess` is by how many nats it may be higher than the best so far.
        """
        self._open.remove(start)
        if leads:
            self._leading, self._agreeing, self.excess = start.theta, 0 if start.is_made else 1, 0.0
        elif agrees:
            self._agreeing += not start.is_made
        else:
            self.excess = max(self.excess, excess)
        self._count += not start.is_made

    def support(self) -> tuple[int, int]:
        """How many starts agree on the best, of how many: with all rows, or on the subset that its start came from."""
        return max((self._agreeing, self._count), self.search.support_of(self._leading))

    def known(self, theta: FloatArray, likelihood: float) -> KnownOptimum | None:
        """The best so far, if it is known how the likelihood bends around it."""
        n = self.search.data.n
        curvature = self.search.curvature(theta, n)
        if curvature is None or not math.isfinite(likelihood):
            return None
        return KnownOptimum(self.search.layout, theta, likelihood, n, curvature)
