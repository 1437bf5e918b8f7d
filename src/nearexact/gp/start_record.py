"""Where the starts of an exact GP have led to on all rows, and who agrees on the best."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from nearexact.gp.exact import ExactObjective
from nearexact.gp.hills import Hills
from nearexact.gp.known_optimum import RIVAL, SubsetOptimum
from nearexact.gp.search import Search
from nearexact.typing import FloatArray

CONFIRMED = 2  # starts that agree


@dataclass
class FollowedStart:
    """A start, and where it has led to."""

    theta: FloatArray
    end: SubsetOptimum
    is_made: bool  # from an optimum: it agrees with nobody


class StartRecord:
    """One for all starts of a training. `has_time` is asked before the likelihood is looked at."""

    def __init__(self, objective: ExactObjective, search: Search, has_time: Callable[[], bool]) -> None:
        self.objective, self.search = objective, search
        self.top: SubsetOptimum | None = None  # the best so far, as far as it is an end
        self._hills = Hills(has_time)
        self._starts: list[FollowedStart] = []

    def stop_looking(self) -> None:
        """After an interruption: what was not looked at agrees with nobody."""
        self._hills.has_time = lambda: False

    def __len__(self) -> int:
        return len(self._starts)

    def add(self, theta: FloatArray, end: SubsetOptimum, *, is_made: bool) -> None:
        """A start and its end; one that goes on from an end takes the place of what led there."""
        for start in self._starts:
            if start.end.theta is theta:
                start.end = end
                return
        self._starts.append(FollowedStart(theta, end, is_made))

    def follow(self, end: SubsetOptimum) -> None:
        """More steps from the best have ended here."""
        if self.top is not None:
            self._hills.place(self.objective, self.top)
            self._hills.follow(self.top, end)

    def support(self) -> tuple[int, int]:
        """How many starts agree on the best, of how many: on all rows, or on fewer if the best comes from theirs."""
        if self.top is None:
            return 0, len(self._own)
        leading = [start.theta for start in self._starts if self._agree([start])]
        supports = [self.search.support_of(theta) for theta in leading]
        return max([(self._agree(self._own), len(self._own)), *supports])

    def unconfirmed(self) -> list[SubsetOptimum]:
        """Ends of starts that may have settled too early to agree with the best, if too few agree with it."""
        if self.top is None or self.support()[0] >= CONFIRMED:
            return []
        most = RIVAL * len(self.objective.y)
        near = [start.end for start in self._own if 0.0 < self.top.likelihood - start.end.likelihood <= most]
        return sorted(near, key=lambda end: -end.likelihood)[:CONFIRMED]

    def has_left(self, known: SubsetOptimum | None) -> bool:
        """Whether the best is no longer on the hill of what was the best."""
        if known is None or self.top is None or self.top is known:
            return False
        return not self._are_one(self.top, known)

    def ends_elsewhere(self, known: SubsetOptimum | None) -> list[SubsetOptimum]:
        """If the best is no longer on the hill that was known, ends of starts that have led to neither of both."""
        if known is None or self.top is None or not self.has_left(known):
            return []
        hills = {self._hills.place(self.objective, end): end for end in (known, self.top)}
        for end in sorted((start.end for start in self._own), key=lambda end: -end.likelihood):
            hills.setdefault(self._hills.place(self.objective, end), end)  # one of each hill
        return [end for end in hills.values() if end is not known and end is not self.top][:CONFIRMED]

    def _are_one(self, one: SubsetOptimum, other: SubsetOptimum) -> bool:
        return self._hills.place(self.objective, one) == self._hills.place(self.objective, other)

    @property
    def _own(self) -> list[FollowedStart]:
        return [start for start in self._starts if not start.is_made]

    def _agree(self, starts: list[FollowedStart]) -> int:
        assert self.top is not None
        return self._hills.agreeing(self.objective, self.top, [start.end for start in starts])
