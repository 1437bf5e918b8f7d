"""What speaks for a θ, as far as a search on subsets knows: the second half of a sparse model's verdict."""

from __future__ import annotations

import math

import numpy as np

from nearexact.evidence import Evidence
from nearexact.gp.known_optimum import AGREEMENT, RIVAL, SubsetOptimum
from nearexact.gp.optimise import OptimiserEnd
from nearexact.gp.parameters import LogCoordinates
from nearexact.gp.rounds import StartingPoint
from nearexact.gp.row_noise import noise_only
from nearexact.gp.safety import NumericalError
from nearexact.gp.search import SAME_OPTIMUM, Search
from nearexact.gp.simpler_forms import least_price
from nearexact.noise_only import explains_nothing
from nearexact.typing import FloatArray


def gain_per_row(search: Search, theta: FloatArray) -> float:
    """How much higher the exact likelihood of the last subset is at the best θ than here, in nats per row."""
    if not search.rounds:
        return math.nan
    rows = search.rounds[-1].rows
    try:
        likelihood = search.objective(rows).factorise(*search.layout.unpack(theta)).sure_lml
    except NumericalError:
        return math.inf
    return max(search.candidates[0].likelihood - likelihood, 0.0) / rows


def evidence_for(search: Search, theta: FloatArray, seconds: float) -> Evidence | None:
    """What speaks for a θ: how much is gained by moving on from it, or by going to the best of the search.

    `seconds` are what that may take.
    """
    if not search.rounds:
        return None
    if gain_per_row(search, theta) <= 2.0 * AGREEMENT and seconds > 5.0 * search.evaluation_seconds:
        _climb_from(search, theta, seconds)
    gain, last = gain_per_row(search, theta), search.rounds[-1]
    climbed = search.climbed is not None and np.array_equal(search.climbed, theta)
    # Else more may be found further up, or from starts that were not tried: rough ones come last. And which of two
    # rivals wins, more rows than those of a subset must decide.
    is_known = gain > RIVAL or (
        search.is_complete
        and last.settled
        and climbed
        and not search.rivals.are_left_behind
        and (last.rows >= search.data.n or not search.rivals.on_other_hills())
    )
    agreeing, starts = last.support
    known_gain = gain if is_known else None
    return Evidence(last.rows, starts, agreeing, known_gain, search.candidates[0].likelihood, price_of(search, theta))


def price_of(search: Search, theta: FloatArray) -> float | None:
    """How many parameters a likelihood must pay for, where these are fewer than those of the kernel.

    None also where nothing needs to be paid for: the best of the search explains more than chance in any case.
    """
    if not found_nothing(search):
        return None
    price = least_price(search.objective(search.rounds[0].rows), theta)
    return price if price < search.layout.kernel.size else None


def found_nothing(search: Search, price: float | None = None) -> bool:
    """Whether the exact likelihood of the last subset was no better than noise wherever the search has looked."""
    last = search.objective(search.rounds[-1].rows)
    parameters = search.layout.kernel.size if price is None else price
    return explains_nothing(
        search.candidates[0].likelihood, noise_only(last.y, last.row_noise), len(last.y), parameters
    )


def _climb_from(search: Search, theta: FloatArray, seconds: float) -> None:
    """See whether steps from here lead to a higher likelihood than the best so far, and let the best settle."""
    search.look_until = deadline = search.timer.clock() + seconds
    objective = search.objective(search.rounds[-1].rows)
    here = SubsetOptimum(theta, objective.factorise(*search.layout.unpack(theta)).sure_lml)
    if here.likelihood > search.candidates[0].likelihood:
        search.lead(objective, here)
    leads = search.candidates[0] is here
    if not search.rounds[-1].settled:
        search.settle(objective, seconds if leads else 0.5 * seconds)
    climbed = leads and search.rounds[-1].settled
    for start in ([] if leads else [StartingPoint(theta)]) + list(search.starts.second_chance(theta)):
        if search.timer.clock() > deadline:
            return
        try:
            optimum = search.climb(objective, start, deadline - search.timer.clock())
        except NumericalError:
            continue
        if optimum.reason is OptimiserEnd.TIME_LIMIT:
            return
        climbed |= start.theta is theta
        end = SubsetOptimum(LogCoordinates.to_theta(optimum.theta), -optimum.value, start.is_derived)
        if end.likelihood > search.candidates[0].likelihood + SAME_OPTIMUM * len(objective.y):
            search.lead(objective, end)
        else:  # if it is another hill nearly as high, it is a rival
            search.take_note(objective, end)
    if climbed:
        search.climbed = np.array(theta)
