"""Starts besides the best of a search that may lead higher with all rows, and whether they were followed.

An optimum of a subset has rivals, of which more rows may prefer another; and more rows show finer details. Where an
evaluation with all rows is affordable, as by conjugate gradients, all of these are tried, and only then the best is
known to be that.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from nearexact.evidence import STANDARD_ERRORS, are_enough, strongest
from nearexact.gp.budget import TimeIsUpError, Timer
from nearexact.gp.known_optimum import WORTH_CARRYING, KnownOptimum, SubsetOptimum
from nearexact.gp.search import Search
from nearexact.gp.search_completion import complete_search
from nearexact.gp.search_starts import CONFIRMING, MOST_PASSES
from nearexact.gp.window_scan import starts_with_details
from nearexact.typing import FloatArray

COMPLETION_SHARE, DETAILS_SHARE = 0.4, 0.2  # of the time that is left, at most


@dataclass(frozen=True, eq=False)
class OtherStart:
    """A θ to climb from."""

    theta: FloatArray
    is_optimum: bool  # of a subset; or else it may be far from any
    is_made: bool = False  # from the best: where that leads, it says nothing about who agrees


@dataclass(frozen=True, eq=False)
class OtherEnd:
    """Where a start has led to with all rows, and what it may still gain."""

    likelihood: float
    standard_error: float
    left_to_gain: float = 0.0


class OtherStarts:
    """Those besides the `first` start, which was followed to its end with all rows.

    Where it `has_moved` far away from the optimum of a subset, what has led to that says nothing about the end.
    """

    def __init__(self, search: Search, first: FloatArray, *, has_moved: bool = False) -> None:
        self.search, self._has_moved = search, has_moved
        self._leading: FloatArray = first  # the start that has led to the best
        self._origin: FloatArray | None = None  # that which had led to what the leading start was made from
        self._taken: list[FloatArray] = [first]
        self._open: list[OtherStart] = []
        # Starts that were followed with all rows, and of these who agrees. With other noise, or made from an optimum,
        # the first one says nothing: the optimum that it comes from may be followed as well.
        self._count = self._agreeing = int(any(first is own.theta for own in search.candidates if not own.is_derived))
        self._ends: list[OtherEnd] = []
        self._has_ended = self._lacked_time = False
        self._known: KnownOptimum | None = None

    @property
    def lack_time(self) -> bool:
        """Whether there was no time for all of them."""
        return self._lacked_time or not self.search.is_complete or bool(self.search.rivals.left_behind)

    @property
    def are_followed(self) -> bool:
        """Whether nothing is left that may lead higher, as far as anybody knows."""
        is_open = bool(self._open) or self.lack_time or self.search.rivals.are_left_behind
        return self._has_ended and not is_open

    def take(self, best: Callable[[], FloatArray], timer: Timer, kept: Callable[[], float]) -> Iterator[OtherStart]:
        """One after the other; `best` is asked for the best θ so far, and `kept` for the seconds that the end takes."""

        def left() -> float:
            return max(timer.left() - kept(), 0.0)

        if not self.search.rounds:
            return
        complete_search(self.search, COMPLETION_SHARE * left())
        for optimum in self._optima():
            yield from self._begin(OtherStart(optimum.theta, is_optimum=True, is_made=optimum.is_derived))
        if self.search.rounds[-1].rows >= self.search.data.n:  # all the rest was tried with all rows
            self._has_ended = True
            return
        try:
            details = starts_with_details(self.search, best(), DETAILS_SHARE * left())
        except TimeIsUpError:
            self._lacked_time = True
            return
        for theta in details:
            yield from self._begin(OtherStart(theta, is_optimum=False))
        for _ in range(MOST_PASSES):
            known = best()
            for start in itertools.chain(self._made_from(known, is_made=True), self._confirming()):
                yield start
                if best() is not known:  # what is made from that one is worth more
                    break
            if best() is known:
                self._has_ended = True
                return

    def _optima(self) -> list[SubsetOptimum]:
        """The best of the search and its rivals; and what it would have carried on, where larger subsets were left."""
        best, others = self.search.candidates[0], self.search.rivals.carried() if self.search.is_cut else []
        least = best.likelihood - WORTH_CARRYING * self.search.rounds[-1].rows
        others = [other for other in others if other.likelihood >= least]
        return list(dict.fromkeys([best, *self.search.rivals.on_other_hills(), *others]))

    def _made_from(self, theta: FloatArray, *, is_made: bool) -> Iterator[OtherStart]:
        """With its inputs switched on again, with related values, with finer details."""
        for chance in self.search.starts.second_chance(theta):
            yield from self._begin(OtherStart(chance.theta, is_optimum=False, is_made=is_made))

    def _confirming(self) -> Iterator[OtherStart]:
        """Where only what was made from another optimum has led to the best: what others lead to in the same way."""
        known = [optimum for optimum in self.search.candidates if not optimum.is_derived]
        origin = next((optimum for optimum in known if optimum.theta is self._origin), self.search.candidates[0])
        others = [other for other in known if other is not origin and not self.search.hills.are_one(other, origin)]
        for other in others[:CONFIRMING]:
            if are_enough(*self.support()):
                return
            yield from self._made_from(other.theta, is_made=False)

    def _begin(self, start: OtherStart) -> Iterator[OtherStart]:
        if any(np.array_equal(start.theta, theta) for theta in self._taken):
            return
        self._taken.append(start.theta)
        self._open.append(start)
        yield start

    def lead(self, start: OtherStart) -> None:
        """This one has led higher than all before."""
        self._origin, self._leading, self._agreeing = self._leading, start.theta, 0

    def followed(self, start: OtherStart, end: OtherEnd, *, agrees: bool) -> None:
        """A start has come to its end, on the hill of the best or elsewhere; what leads agrees with itself."""
        self._open.remove(start)
        self._ends.append(end)
        if not start.is_made:
            self._agreeing += agrees
            self._count += 1

    def excess(self, likelihood: float, standard_error: float) -> float:
        """Nats by which any of them may be higher than this, about whatever the estimates hide."""
        return max(
            (
                end.likelihood + end.left_to_gain - likelihood
                + STANDARD_ERRORS * math.hypot(end.standard_error, standard_error)
                for end in self._ends
            ),
            default=0.0,
        )  # fmt: skip

    def support(self) -> tuple[int, int]:
        """How many starts agree on the best, of how many: with all rows, or on the subset that its start came from."""
        own = self._agreeing, self._count
        return own if self._has_moved else strongest(own, self.search.support_of(self._leading))

    def known(self, theta: FloatArray, likelihood: float) -> KnownOptimum | None:
        """The best so far, if it is known how the likelihood bends around it."""
        if self._known is None or self._known.theta is not theta:
            n, self._known = self.search.data.n, None
            curvature = self.search.curvature(theta, n)
            if curvature is not None:
                self._known = KnownOptimum(self.search.layout, theta, likelihood, n, curvature)
        return self._known
