"""Where the starts of an exact GP have led to on all rows, and who agrees on the best."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from nearexact.evidence import FEWEST_AGREEING, are_enough, strongest
from nearexact.gp.exact import ExactObjective
from nearexact.gp.hills import Hills
from nearexact.gp.known_optimum import RIVAL, SubsetOptimum
from nearexact.gp.search import Search
from nearexact.typing import FloatArray

HIDDEN = 0.1  # the chance that the best optimum of all rows is none on a subset: then no start there leads to it


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
        """How many starts agree on the best, of how many: on all rows, or on fewer if the best comes from theirs.

        Those that come from nowhere, with all rows, count in both cases.
        """
        if self.top is None:
            return 0, len(self._own)
        on_fewer, fresh = self._support_on_fewer(), self._support_of_fresh()
        own = self._agree(self._own), len(self._own)
        return strongest(own, (on_fewer[0] + fresh[0], on_fewer[1] + fresh[1])) if on_fewer[0] else own

    def is_confirmed(self) -> bool:
        """Whether enough starts agree on the best."""
        return are_enough(*self.support())

    def chance_of_missing(self) -> float:
        """How likely a better optimum was missed: what all rows show may not be there on fewer."""
        rounds, n = self.search.rounds, len(self.objective.y)
        hidden = 0.0 if rounds and rounds[-1].rows >= n else HIDDEN
        agreeing, starts = zip(self._support_on_fewer(), self._support_of_fresh(), strict=True)
        share = 1.0 - sum(agreeing) / max(sum(starts), 1)
        return float((hidden + (1.0 - hidden) * share ** starts[0]) * share ** starts[1])

    def _support_on_fewer(self) -> tuple[int, int]:
        leading = [start.theta for start in self._starts if self._agree([start])]
        return strongest((0, 0), *(self.search.support_of(theta) for theta in leading))

    def _support_of_fresh(self) -> tuple[int, int]:
        """That of starts that no search has led to, with all rows."""
        carried = [candidate.theta for candidate in self.search.candidates]
        fresh = [start for start in self._own if not any(start.theta is theta for theta in carried)]
        return self._agree(fresh), len(fresh)

    def unconfirmed(self) -> list[SubsetOptimum]:
        """Ends of starts that may have settled too early to agree with the best, if too few agree with it."""
        if self.top is None or self.is_confirmed():
            return []
        most = RIVAL * len(self.objective.y)
        near = [start.end for start in self._own if 0.0 < self.top.likelihood - start.end.likelihood <= most]
        return sorted(near, key=lambda end: -end.likelihood)[:FEWEST_AGREEING]

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
        return [end for end in hills.values() if end is not known and end is not self.top][:FEWEST_AGREEING]

    def _are_one(self, one: SubsetOptimum, other: SubsetOptimum) -> bool:
        return self._hills.place(self.objective, one) == self._hills.place(self.objective, other)

    @property
    def _own(self) -> list[FollowedStart]:
        return [start for start in self._starts if not start.is_made]

    def _agree(self, starts: list[FollowedStart]) -> int:
        assert self.top is not None
        return self._hills.agreeing(self.objective, self.top, [start.end for start in starts])
