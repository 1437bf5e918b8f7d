"""The rest of a search that its time limit has cut short: what was not tried may be what the exact GP would choose.

Before sparse training a search has a share of the time only. Where training then needs no more time for itself, because
nothing but θ is open, the starts that were left out are tried as well. Optima of smaller subsets that may win are
followed to the largest, also those that were too many to be carried on.
"""

from __future__ import annotations

import itertools
from dataclasses import replace

from nearexact.gp.budget import TimeIsUpError, Timer
from nearexact.gp.known_optimum import RIVAL, SubsetOptimum
from nearexact.gp.optimise import OptimiserEnd
from nearexact.gp.parameters import LogCoordinates
from nearexact.gp.rounds import OpenRound, StartingPoint
from nearexact.gp.safety import NumericalError
from nearexact.gp.search import SAME_OPTIMUM, Search


def complete_search(search: Search, seconds: float) -> None:
    """Try what there was no time for, for so long at most: subsets not yet begun, starts, then optima left behind."""
    if not search.rounds or (search.is_complete and not search.rivals.left_behind):
        return
    search.timer = Timer(seconds, search.timer.clock)
    search.run()
    if len(search.rounds) < len(search.sizes):
        return
    while search.open_rounds:
        subset = search.open_rounds[0]
        if not _tried_all(search, subset):
            return
        search.open_rounds.remove(subset)
        _count_again(search, subset)
    _catch_up(search)


def _catch_up(search: Search) -> None:
    """Follow what was left behind to the largest subset, while there is time."""
    last = search.rounds[-1].rows
    while search.rivals.left_behind:
        optimum = search.rivals.left_behind[0]
        try:
            there = _optimum(search, last, StartingPoint(optimum.theta, search.curvature(optimum.theta, last)))
        except TimeIsUpError:
            return
        except NumericalError:
            there = None  # it leads nowhere
        if there is not None:
            _compare(search, replace(there, is_derived=optimum.is_derived))
        del search.rivals.left_behind[0]  # only now, after it counts


def _tried_all(search: Search, subset: OpenRound) -> bool:
    """Go on with the starts of a round; whether there was time for all of them."""
    tried, last = subset.tried, search.rounds[-1].rows
    objective = search.objective(tried.rows)
    highest = max(optimum.likelihood for optimum in tried.optima)
    for start in subset.starts:
        try:
            here = there = _optimum(search, tried.rows, start)
            is_rival = here.likelihood > highest - RIVAL * tried.rows
            if is_rival and tried.rows < last:
                there = _optimum(search, last, StartingPoint(here.theta, search.curvature(here.theta, last)))
        except TimeIsUpError:
            subset.starts = itertools.chain([start], subset.starts)
            return False
        except NumericalError:
            continue
        highest = max(highest, here.likelihood)
        # What was left out on the last subset is among the candidates already, as what it might be.
        search.candidates[1:] = [other for other in search.candidates[1:] if other.theta is not start.theta]
        tried.ends += [] if start.is_derived else [here]
        search.agreeing = tried.hills.agreeing(objective, _best(search, subset), tried.ends)
        if is_rival:
            _compare(search, replace(there, is_derived=start.is_derived))
    return True


def _best(search: Search, subset: OpenRound) -> SubsetOptimum:
    """What the starts of this round may agree on: the best of the last subset, or what has led to it."""
    return search.candidates[0] if subset.tried.rows == search.rounds[-1].rows else subset.best


def _optimum(search: Search, rows: int, start: StartingPoint) -> SubsetOptimum:
    """Where a start leads to on so many rows; TimeIsUpError if there is no time for that."""
    if search.timer.left() < search.seconds_of(rows):
        raise TimeIsUpError
    optimum = search.climb(search.objective(rows), start, search.timer.left())
    if optimum.reason is OptimiserEnd.TIME_LIMIT:
        raise TimeIsUpError
    return SubsetOptimum(LogCoordinates.to_theta(optimum.theta), -optimum.value)


def _compare(search: Search, optimum: SubsetOptimum) -> None:
    """Take note of an optimum of the last subset."""
    rows = search.rounds[-1].rows
    objective = search.objective(rows)
    if optimum.likelihood > search.candidates[0].likelihood + SAME_OPTIMUM * rows:
        search.lead(objective, optimum)
    else:
        search.take_note(objective, optimum)


def _count_again(search: Search, subset: OpenRound) -> None:
    """Who agrees, now that all starts of this round were tried."""
    tried, before = subset.tried, search.rounds[subset.number]
    objective = search.objective(tried.rows)
    agreeing = max(tried.hills.agreeing(objective, _best(search, subset), tried.ends), 1)
    likelihoods = (max([before.likelihoods[0], *tried.likelihoods]), *tried.likelihoods[1:])
    search.rounds[subset.number] = now = before.with_starts(likelihoods, agreeing)
    last = search.rounds[-1]
    if last.support_rows == tried.rows:  # it is the starts of this round that speak for the best
        search.rounds[-1] = last.counted(now.own_support, tried.rows)
