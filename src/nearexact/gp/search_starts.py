"""The starts of a search, subset by subset: smooth ones, random ones, rough ones, and what is made from the best.

They come in groups. Those of a group do not depend on where others of it lead to, so they may be followed side by side.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from nearexact.gp.budget import TimeIsUpError
from nearexact.gp.known_optimum import SubsetOptimum
from nearexact.gp.parameter_scan import scanned_starts
from nearexact.gp.rough_scan import RoughScan, rougher_in_all
from nearexact.gp.rounds import StartingPoint
from nearexact.gp.starts import (
    SMOOTH_NOISE,
    START_NOISE,
    random_start,
    rough_start,
    unit_start,
    with_all_inputs,
    with_finer_details,
    with_less_influence,
    with_related_values,
)
from nearexact.gp.window_scan import starts_with_details
from nearexact.typing import FloatArray

if TYPE_CHECKING:
    from nearexact.gp.search import Search

FEWEST_STARTS, MOST_STARTS = 6, 24  # on the smallest subset
FEWEST_AGREEING = 2  # starts: else more of them are tried
# Where the likelihood has many hills, more random starts: while one more is so likely to find another hill, so many at
# most, and for this share of the search's time.
LIKELY_NEW, MOST_RUGGED, RUGGED_SHARE = 0.1, 24, 0.25
AT_ONCE = 2  # random ones, after the first of them: the same on every machine, however many cores it has
ENOUGH_AGREEING = 3  # starts that have ended near the best of all: then more of them are not needed
FIRST_ROUGH, NEXT_ROUGH = 6, 2  # inputs in which a start is rough alone, on the smallest subset and on the others
# Times that starts are made from the best: what these lead to is started from again. The time limit ends it earlier.
MOST_PASSES = 10
CONFIRMING = 2  # optima that may confirm what was made from the best
DETAILS_SHARE = 0.3  # of the time that is left on the last subset, at most, for a look at details
MOST_ROUGH_ROWS = 2048  # of a subset on which rough starts are tried

Group = list[StartingPoint]


class SearchStarts:
    """Those of one search. They depend on what it has found so far."""

    def __init__(self, search: Search) -> None:
        self.search, self.layout = search, search.layout
        self._unit = unit_start(search.layout, START_NOISE)
        self.has_seen_details = False  # that subsets do not show
        self.has_looked_at_neighbours = True  # unless there was no time

    @property
    def has_looked_everywhere(self) -> bool:
        """Whether no input is left that was to be looked at for details."""
        has_scanned = "_scan" not in self.__dict__ or self._scan.is_complete
        return has_scanned and self.has_looked_at_neighbours

    @cached_property
    def gaps(self) -> FloatArray:
        """Between neighbouring values of each input on the smallest subset: the usual one."""
        gaps = [np.diff(np.unique(values)) for values in self.search.subset.X[: self.search.sizes[0]].T.cpu().numpy()]
        return np.array([np.median(gap) if len(gap) else 0.0 for gap in gaps])

    def first(self) -> Iterator[Group]:
        """What was given, a smooth start, the usual one, other periods, random ones until enough agree, rough ones."""
        smooth = with_less_influence(self.layout, self._unit)
        noisy = self.layout.pack(self.layout.unpack(smooth)[0], SMOOTH_NOISE)
        at_random = (random_start(self.layout, smooth, self.search.random) for _ in range(2, MOST_STARTS))
        given = [] if self.search.start is None else [self.search.start]
        scanned = scanned_starts(self.search.objective(self.search.sizes[0]), noisy)
        first_random = itertools.islice(at_random, FEWEST_STARTS - 2)
        yield [StartingPoint(theta) for theta in (*given, noisy, self.search.theta0, *scanned, *first_random)]
        yield from self._at_random(at_random, ENOUGH_AGREEING)
        yield [*self._rough_in_all_inputs(), *self._rough_in_one_input(FIRST_ROUGH)]
        yield from self._at_random(at_random, FEWEST_AGREEING)  # a rough start may have found what no other has
        yield from self._while_rugged(random_start(self.layout, smooth, self.search.random) for _ in range(MOST_RUGGED))
        if self.search.looks_for_details and len(self.search.sizes) == 1:
            yield self._with_details()
        yield from self.second_chances()

    def _at_random(self, starts: Iterator[FloatArray], enough: int) -> Iterator[Group]:
        """More and more of these starts, until enough agree."""
        while self.search.agreeing < enough and (group := [*itertools.islice(starts, AT_ONCE)]):
            yield [StartingPoint(theta) for theta in group]

    def _while_rugged(self, starts: Iterator[FloatArray]) -> Iterator[Group]:
        """These starts, as long as others are likely to end where none has so far."""
        timer = self.search.timer
        while timer.seconds() < RUGGED_SHARE * timer.time_limit and self.search.chance_of_another_hill() > LIKELY_NEW:
            group = [StartingPoint(theta) for theta in itertools.islice(starts, AT_ONCE)]
            if not group:
                return
            yield group

    @cached_property
    def _scan(self) -> RoughScan:
        rows = self.search.sizes[0]
        abreast = self.search.abreast(rows)
        return RoughScan(self.search.objective(rows), self._unit, self.search.random, abreast=abreast)

    def _rough_in_all_inputs(self) -> Iterator[StartingPoint]:
        """In the usual way and, if the likelihood speaks for it, further."""
        yield StartingPoint(rough_start(self.layout, self._unit, range(self.layout.n_inputs)))
        if self.search.has_time_for_another():
            rougher = rougher_in_all(self.search.objective(self.search.sizes[0]), self._unit)
            if rougher is not None:
                yield StartingPoint(rougher)

    def _rough_in_one_input(self, most: int) -> Iterator[StartingPoint]:
        """The most likely ones that were not tried before; if there are none, the first ones again."""
        again = iter(tuple(self._scan.taken))
        for _ in range(min(most, self.layout.n_inputs + 1)):
            theta = self._scan.take(self.search.has_time_for_another)
            tried_before = theta is None
            theta = next(again, None) if theta is None else theta
            if theta is not None:
                yield StartingPoint(theta, is_derived=tried_before)

    def following(self, rows_now: int) -> Iterator[Group]:
        """The best of the last subset, and, while that is cheap, rough ones: more rows show finer details."""
        carried = self.search.rivals.carry_on_to(rows_now)
        self.search.wait_for(carried)
        return self._following(carried, rows_now)

    def _following(self, carried: list[SubsetOptimum], rows_now: int) -> Iterator[Group]:
        for group in (carried[:1], carried[1:]):  # where the best leads to, others need not be followed to their end
            thetas = [optimum.theta for optimum in group]
            curvatures = [self.search.curvature(theta, rows_now) for theta in thetas]
            derived = [optimum.is_derived for optimum in group]
            yield [StartingPoint(*start) for start in zip(thetas, curvatures, derived, strict=True)]
        if rows_now <= MOST_ROUGH_ROWS:
            yield [*self._rough_in_one_input(NEXT_ROUGH)]
        if self.search.looks_for_details and rows_now == self.search.sizes[-1]:
            yield self._with_details()
        yield from self.second_chances()

    def _with_details(self) -> Group:
        """What rows next to each other speak for."""
        best, seconds = self.search.candidates[0].theta, DETAILS_SHARE * self.search.timer.left()
        try:
            found = starts_with_details(self.search, best, seconds)
        except TimeIsUpError:
            self.has_looked_at_neighbours = False
            return []
        self.has_seen_details = bool(found)
        return [StartingPoint(theta) for theta in found]

    def second_chances(self) -> Iterator[Group]:
        """That of the best; if it leads higher, those of others, too: where they lead to the same, they confirm it."""
        best = self.search.candidates[0]
        yield [*self.second_chance(best.theta)]
        if self.search.candidates[0] is not best:
            known = [optimum for optimum in self.search.candidates if not optimum.is_derived and optimum is not best]
            others = [optimum for optimum in known if not self.search.hills.are_one(optimum, best)]
            for other in others[:CONFIRMING]:
                yield [start._replace(is_derived=False) for start in self.second_chance(other.theta)]

    def second_chance(self, theta: FloatArray) -> Iterator[StartingPoint]:
        """θ with its inputs switched on again, with related values where none are, and with finer details."""
        chances = (
            with_all_inputs(self.layout, theta),
            with_related_values(self.layout, theta, self.gaps),
            with_finer_details(self.layout, theta),
        )
        for changed in chances:
            if changed is not None:
                yield StartingPoint(changed, is_derived=True)
