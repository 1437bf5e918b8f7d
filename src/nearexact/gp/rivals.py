"""Which optima of a subset may yet win on more rows, besides the best: those that go on, and those that wait."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from nearexact.gp.enough_noise import with_enough_noise
from nearexact.gp.known_optimum import RIVAL, SubsetOptimum

if TYPE_CHECKING:
    from nearexact.gp.search import Search

CARRIED, MOST_CARRIED = 3, 6  # optima of a subset that go on to the next; more than three only if they are rivals
OTHER_NOISE = 3.0  # factor between noise variances, from which on two optima explain the data in different ways


class Rivals:
    """Those of one search, of its last subset."""

    def __init__(self, search: Search) -> None:
        self.search = search
        # Optima of smaller subsets that may yet win and were too many to be carried on; and whether an earlier search,
        # which this one goes on from, had any.
        self.left_behind: list[SubsetOptimum] = []
        self.were_forgotten = False

    def carried(self) -> list[SubsetOptimum]:
        """The optima that go on to more rows: the best, the best that explains the data in another way, the next best.

        What looks like noise in few rows may turn out as fine details in more, and the other way round.
        """
        best, *others = self.search.candidates
        different = next((other for other in others if self._is_different(best, other)), None)
        if different is not None:
            others.remove(different)
            others.insert(0, different)
        return [best, *others][: min(max(1 + len(self.near_best()), CARRIED), MOST_CARRIED)]

    def carry_on(self) -> list[SubsetOptimum]:
        """The same, before a larger subset. Rivals beyond them are left behind, for when there is time."""
        carried = self.carried()
        others = [other for other in self.near_best() if other not in carried and other not in self.left_behind]
        self.left_behind += [other for other in others if not self.search.hills.are_one(other, carried[0])]
        return carried

    def carry_on_to(self, rows: int) -> list[SubsetOptimum]:
        """The same, with enough noise for so many rows; where the best falls with them, in the order that they show."""
        search, carried = self.search, self.carry_on()
        search.earlier += carried
        objective, before = search.objective(rows), search.rounds[-1].rows
        found = [with_enough_noise(objective, optimum, before) for optimum in carried]
        search.flops += sum(one.factorisations for one in found) * search.factorisation_flops(rows)
        if found[0].has_fallen:
            found.sort(key=lambda one: -one.likelihood)
        return [one.optimum for one in found]

    def near_best(self) -> list[SubsetOptimum]:
        """Other optima that explain the last subset nearly as well as the best; some may be on one hill with it."""
        best, *others = self.search.candidates
        rows = self.search.rounds[-1].rows if self.search.rounds else 1
        return [other for other in others if best.likelihood - other.likelihood <= RIVAL * rows]

    def on_other_hills(self) -> list[SubsetOptimum]:
        """All optima on other hills that explain the last subset nearly as well as the best, the highest first.

        More rows must decide. Hills are told apart whatever the time limit.
        """
        search = self.search
        if not search.rounds:
            return []
        near = self.near_best()
        objective, before, search.look_until = search.objective(search.rounds[-1].rows), search.look_until, math.inf
        try:
            hills = [search.hills.place(objective, optimum) for optimum in (search.candidates[0], *near)]
        finally:
            search.look_until = before
        return [other for number, other in enumerate(near, 1) if hills[number] not in hills[:number]]

    @property
    def are_left_behind(self) -> bool:
        """Whether more rows may have another best: of too many to be carried on, or one that subsets do not show."""
        details = self.search.starts.has_seen_details and self.search.sizes[-1] < self.search.data.n
        return bool(self.left_behind) or self.were_forgotten or details

    def _is_different(self, optimum: SubsetOptimum, other: SubsetOptimum) -> bool:
        return abs(math.log(self._noise(optimum) / self._noise(other))) >= math.log(OTHER_NOISE)

    def _noise(self, optimum: SubsetOptimum) -> float:
        return self.search.layout.unpack(optimum.theta)[1]
