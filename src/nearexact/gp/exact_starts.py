"""Which starts an exact GP follows on all rows: what a search has found or left out, and what is made from the best."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from nearexact.evidence import MOST_LIKELY_MISSED
from nearexact.gp.budget import TimeIsUpError
from nearexact.gp.known_optimum import RIVAL, WORTH_CARRYING, SubsetOptimum
from nearexact.gp.optimise import LBFGSSettings
from nearexact.gp.search_completion import complete_search
from nearexact.gp.search_starts import MOST_PASSES
from nearexact.gp.starts import (
    START_NOISE,
    gain_by_switching_on,
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
    from nearexact.gp.exact_training import ExactTraining

FEW_EVALUATIONS = 3.0  # with less time than for so many, L-BFGS gets nowhere
USUAL_EVALUATIONS = 30.0  # until a start was followed to its end
DETAILS_SHARE = 0.2  # of what is left after that, at most, for a look at details that more rows show
COMPLETION_SHARE = 0.6  # of what is left in the end, for what the search had no time for
MOST_RANDOM = 40  # starts with all rows, where too few agree on the best
CONFIRMING_SHARE = 0.5  # of the time before, for these where enough agree on a subset
SETTLED = 1e-3  # nats per row that may be left to gain where the optimiser is nearly done
# While several starts compete, and for the best. They come from a search and are near their optimum already: steps that
# are too long waste evaluations.
COARSE, FINE = LBFGSSettings(ftol=1e-5, first_step=0.3), LBFGSSettings(ftol=1e-8, first_step=0.3)
FAR = LBFGSSettings(ftol=1e-5)  # for starts that are far from any optimum: on a plateau nothing has settled
CLOSER = LBFGSSettings(ftol=1e-7, first_step=0.3)  # for a start that may have settled too early


class ExactStarts:
    """Those of one training. They depend on what it has found so far, and on the time that is left."""

    def __init__(self, training: ExactTraining) -> None:
        self.training, self.search, self.layout = training, training.search, training.layout
        self.made: list[FloatArray] = []  # starts that were made from an optimum
        # How far each optimum of the search was below the best, in nats per row, until it was followed to its end.
        self.pending: list[float] = []
        self.beyond: list[SubsetOptimum] = []  # rivals of these that wait until the others were followed
        # Whether what more rows show than those of the search was looked for, and from where.
        self.looked_further = self.layout.nothing_is_free
        self._looked_from: SubsetOptimum | None = None

    @property
    def are_followed(self) -> bool:
        """Whether no start is left that may lead higher."""
        has_looked = self.looked_further and not self.training.record.has_left(self._looked_from)
        return has_looked and min(self.pending, default=math.inf) > RIVAL and not self.beyond

    def was_followed(self, number: int) -> None:
        """Take note that this start has come to its end."""
        if number < len(self.pending):
            self.pending[number] = math.inf

    def was_made(self, theta: FloatArray) -> bool:
        """Whether a start was made from an optimum: then it agrees with nobody."""
        return any(theta is made for made in self.made)

    def all(self) -> Iterator[tuple[FloatArray, LBFGSSettings]]:
        """Those of the search, what was made from their best, what only more rows show, and the best to its end."""
        starts = self.first()
        self.looked_further |= self._has_searched_all_rows
        settings = COARSE if len(starts) > 1 else FINE
        for theta in starts:
            yield theta, settings
        polished = self.training.best_theta if settings is FINE else None
        revived = self._revived()
        if revived is not None:
            self.made.append(revived)
            yield revived, FAR
        yield from self._made_from_best()
        # The best may also be what training started from.
        if self.training.best_theta is not polished or not self.training.settled:
            yield self.training.best_theta, FINE
        left_out = self._left_out(starts)
        for theta in left_out:
            yield theta, COARSE
        if left_out and not self.training.settled:
            yield self.training.best_theta, FINE
        for end in self.training.record.unconfirmed():
            yield end.theta, CLOSER
        for _ in range(MOST_PASSES):
            for theta in self._at_random():
                yield theta, FAR
            if not self.training.record.has_left(self._looked_from):
                return
            yield from self._made_from_best()
            yield self.training.best_theta, FINE

    def _made_from_best(self) -> Iterator[tuple[FloatArray, LBFGSSettings]]:
        """What only more rows show than those of the search, again and again while it leads to another hill."""
        for _ in range(MOST_PASSES):
            known = self._looked_from = self.training.record.top
            further = self._further()
            # Until all of them are followed, nothing speaks for the best.
            self.pending += [math.inf] * (len(self.training.history) - len(self.pending)) + [0.0] * len(further)
            for theta in further:
                yield theta, FAR
            elsewhere = self.training.record.ends_elsewhere(known)
            for end in elsewhere:  # what they lead to in the same way, they confirm
                for theta in self._what_more_rows_show(end.theta):
                    yield theta, FAR
            if not self.training.record.has_left(known):
                break

    def _at_random(self) -> Iterator[FloatArray]:
        """While too few starts agree on the best and time is left, others that know nothing of it.

        What only a start has led to that was made from another optimum, nobody confirms: random starts may, or they
        lead higher. Where starts agree on a subset only, some with all rows tell whether these have another optimum,
        if that takes little of what all before has taken.
        """
        begun, record = self.training.timer.seconds(), self.training.record
        unit, random = unit_start(self.layout, START_NOISE), self.search.random
        smooth = with_less_influence(self.layout, unit)
        for number in range(MOST_RANDOM):
            is_worth_it = self.are_followed and self.training.settled and not self.training.explains_nothing
            if not is_worth_it:
                return
            if record.is_confirmed():
                took_long = self.training.timer.seconds() - begun > CONFIRMING_SHARE * begun
                if took_long or record.chance_of_missing() <= MOST_LIKELY_MISSED:
                    return
            # Fast details of one input are found from starts that are rough in it.
            rough_in = [int(random.integers(self.layout.n_inputs))] if number % 2 else []
            yield random_start(self.layout, rough_start(self.layout, unit, rough_in) if rough_in else smooth, random)

    @property
    def _has_searched_all_rows(self) -> bool:
        return bool(self.search.rounds) and self.search.rounds[-1].rows >= self.training.n

    def _revived(self) -> FloatArray | None:
        """The best with its inputs switched on again, where that may help."""
        revived = with_all_inputs(self.layout, self.training.best_theta)
        if revived is None or self.training.best_gradient is None:
            return None
        gain = gain_by_switching_on(self.layout, self.training.best_theta, -self.training.best_gradient, revived)
        return revived if gain > SETTLED * self.training.n else None

    def _further(self) -> list[FloatArray]:
        """Starts for what all rows may show and those of the search do not."""
        if not self.search.rounds or self._has_searched_all_rows:
            return []
        made = self._what_more_rows_show(self.training.best_theta)
        self.made += made
        if self.looked_further:
            return made
        left = self.training.timer.left() - self.training.last_model_seconds
        try:
            found = starts_with_details(self.search, self.training.best_theta, DETAILS_SHARE * left)
        except TimeIsUpError:
            return made
        self.looked_further = True
        return made + found

    def _what_more_rows_show(self, theta: FloatArray) -> list[FloatArray]:
        """θ with related values, and with finer details."""
        related = with_related_values(self.layout, theta, self.search.starts.gaps)
        finer = with_finer_details(self.layout, theta)
        return [changed for changed in (related, finer) if changed is not None]

    def _left_out(self, followed: list[FloatArray]) -> list[FloatArray]:
        """Starts from what the search had no time for before, if there is time now and anything new is found."""
        left = self.training.timer.left() - 2.0 * self.training.last_model_seconds
        is_whole = not (self.search.may_be_completed or self.beyond)
        if is_whole or left < FEW_EVALUATIONS * self.training.evaluation_seconds:
            return []
        number = len(self.training.history)
        self.training.objective.release()  # the search needs the memory
        self.beyond.append(self.search.candidates[0])  # whoever interrupts must not take it for whole
        if self.search.may_be_completed:
            complete_search(self.search, COMPLETION_SHARE * left)
        found = self._near([*self.search.rivals.carried(), *self.search.rivals.on_other_hills()])
        near = [pair for pair in found if not any(np.array_equal(pair[0], theta) for theta in followed)]
        self.pending += [math.inf] * (number - len(self.pending)) + [deficit for _, deficit in near]
        self.beyond = []
        return [theta for theta, _ in near]

    def _near(self, optima: list[SubsetOptimum]) -> list[tuple[FloatArray, float]]:
        """Those of the last subset that may yet win on all rows, and how far below the best they are, per row."""
        rows = self.search.rounds[-1].rows if self.search.rounds else 1
        different = list(dict.fromkeys(optima))
        deficits = [(self.search.candidates[0].likelihood - optimum.likelihood) / rows for optimum in different]
        self.made += [optimum.theta for optimum in different if optimum.is_derived]
        return [(o.theta, d) for o, d in zip(different, deficits, strict=True) if d <= WORTH_CARRYING]

    def first(self) -> list[FloatArray]:
        """The best of the search, and others that may yet win on all rows."""
        carried = self.search.rivals.carried()
        self.beyond = [other for other in self.search.rivals.near_best() if other not in carried]
        near = self._near(carried)
        if not near:
            return [self.search.candidates[0].theta]
        self.pending = [deficit for _, deficit in near]
        starts = [theta for theta, _ in near]
        seconds = len(starts) * USUAL_EVALUATIONS * self.training.evaluation_seconds
        if seconds > self.training.timer.left() and self.training.has_time_to_climb():
            self._put_first(self.training.best_of_search(), starts)
        return starts

    def _put_first(self, theta: FloatArray, starts: list[FloatArray]) -> None:
        """Where not all starts can be followed to their end, the first one should be what all rows speak for."""
        known = next((i for i, start in enumerate(starts) if np.array_equal(start, theta)), None)
        if known == 0:
            return
        pending = 0.0
        if known is None:
            self.made.append(theta)
        else:
            del starts[known]
            pending = self.pending.pop(known)
        starts.insert(0, theta)
        self.pending.insert(0, pending)
