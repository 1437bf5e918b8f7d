"""Where the starts of a group lead to on a subset of the rows: followed side by side, a core for each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from nearexact.gp.budget import TimeIsUpError
from nearexact.gp.exact import ExactObjective
from nearexact.gp.optimise import Optimum
from nearexact.gp.rounds import StartingPoint, Tried
from nearexact.gp.safety import NumericalError
from nearexact.gp.side_by_side import side_by_side

if TYPE_CHECKING:
    from nearexact.gp.search import Search

End = Optimum | NumericalError | None  # None where there was no time to begin


class GroupClimbs:
    """The climbs of one subset. `reserved` says how many seconds of what is left are for larger subsets."""

    def __init__(self, search: Search, objective: ExactObjective, tried: Tried, reserved: Callable[[], float]) -> None:
        self.search, self.objective, self.tried, self.reserved = search, objective, tried, reserved
        self._has_ended = self._is_stopped = False

    def ends(self, starts: Sequence[StartingPoint]) -> list[End]:
        """Where these starts lead to. They know of the best before them, but not of each other."""
        calls = [partial(self._end, start) for start in starts]
        return side_by_side(calls, self._stop, at_most=self.search.abreast(self.tried.rows))

    def _end(self, start: StartingPoint) -> End:
        search = self.search
        left = search.timer.left() - (self.reserved() if self._has_ended else 0.0)
        if self._has_ended and left < search.evaluation_seconds:
            return None
        try:
            optimum = search.ascent(self.objective, start, left, self.tried.leader, clock=self._clock)
        except NumericalError as error:
            return error
        self._has_ended = True
        search.evaluation_seconds, search.evaluation_rows = optimum.seconds / optimum.evaluations, self.tried.rows
        return optimum

    def _stop(self) -> None:
        self._is_stopped = True

    def _clock(self) -> float:
        """That of the search; after an interruption time is up."""
        if self._is_stopped:
            raise TimeIsUpError
        return self.search.timer.clock()
