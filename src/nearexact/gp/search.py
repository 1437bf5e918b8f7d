"""Hyperparameters from exact likelihoods of subsets: where in θ the exact GP would be.

A sparse GP with few points prefers smooth θ, where few points suffice, and any optimiser ends in whatever optimum lies
near its start. The exact likelihood of a few hundred rows has no such preference and costs next to no time. So: many
starts on a small random subset, the best few carried on to subsets that grow. θ still moves with the number of rows,
so this finds the right optimum and something else finishes, on all rows.

The optimiser moves in logarithms of the hyperparameters; see LogCoordinates.
"""

from __future__ import annotations

import itertools
import logging
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import torch

from nearexact.evidence import strongest
from nearexact.gp.budget import Timer
from nearexact.gp.curvature import LEAST, positive, second_derivatives
from nearexact.gp.exact import ExactObjective, exact_memory
from nearexact.gp.flops import cholesky_flops, exact_flops, feature_count, kernel_flops
from nearexact.gp.group_climbs import GroupClimbs
from nearexact.gp.hills import Hills
from nearexact.gp.known_optimum import KnownOptimum, SubsetOptimum, until_settled
from nearexact.gp.lapack import THREADED_ROWS
from nearexact.gp.optimise import LBFGSSettings, OptimiserEnd, Optimum, minimise
from nearexact.gp.parameters import LogCoordinates, ParameterLayout
from nearexact.gp.rivals import Rivals
from nearexact.gp.rounds import OpenRound, Round, StartingPoint, Tried
from nearexact.gp.row_noise import RowNoise, noise_of
from nearexact.gp.rows import Taken, as_rows
from nearexact.gp.safety import DEFAULT_NUMERICS, LEAST_NOISE, NumericalError, Numerics
from nearexact.gp.search_starts import Group, SearchStarts
from nearexact.gp.starts import START_NOISE, Start
from nearexact.gp.subsets import subset_order, subset_sizes
from nearexact.kernels.base import Kernel
from nearexact.typing import FloatArray

logger = logging.getLogger(__name__)

FIRST_ROWS = 256  # of the smallest subset, at least, where there are as many
MOST_ROWS = 2048  # of the largest subset, of which an evaluation takes a few tenths of a second
CHEAP_ROWS = 1024  # a factorisation takes a few hundredths of a second
SAME_OPTIMUM = 1e-3  # nats per row between two likelihoods, up to which the higher one is no news
SETTINGS = LBFGSSettings(max_iterations=30, ftol=1e-5)
# Rows that second derivatives are judged by: so many that this takes about as long as one evaluation with those rows
# that they are for.
FEWEST_CURVATURE_ROWS, MOST_CURVATURE_ROWS = 256, 1024
CURVATURE_SHARE = 0.1  # of the time limit, at most
# Evaluations on each larger subset that the best of a subset must have time for before others have theirs; but not more
# than this share of the time that is left when a subset begins: many starts are what finds the right optimum.
LEADER_EVALUATIONS, LEADER_SHARE = 12, 0.5
FEWEST_EVALUATIONS = 5.0  # with a subset: with less time it is not begun
# Evaluations of subsets take time with about this power of their rows; with the third one only where rows are many.
COST_POWER = 2.4
MOST_ABREAST = 64  # evaluations at once, however many cores there are
POLISH = LBFGSSettings(max_iterations=200, ftol=1e-8)
ENDED = (OptimiserEnd.CONVERGED, OptimiserEnd.CALLBACK, OptimiserEnd.NO_FURTHER_STEP)  # where a start leads to


class Search:
    """One search. `run` does it; whenever it ends, `candidates` are the best θ so far, the best one first.

    `time_limit` is in seconds of the clock, `memory` in bytes. `start` is tried before the others. With `polishes` the
    best of the last subset is climbed from until nothing is left to gain: else it is no evidence for any θ. With
    `looks_for_details` all rows are looked at for details that subsets do not show. With `keeps_digits` it stays where
    a sparse GP of all rows can precondition conjugate gradients in 64 bits. `is_worth` is asked before each subset but
    the first whether so many rows are worth the time. The same seed gives the same search, as far as the time limit
    allows.
    """

    def __init__(
        self,
        kernel: Kernel,
        X: Any,
        y: Any,
        *,
        time_limit: float = math.inf,
        memory: int | None = None,
        seed: int | None = None,
        most_rows: int = MOST_ROWS,
        start: Start | None = None,
        row_noise: RowNoise | None = None,
        polishes: bool = True,
        looks_for_details: bool = True,
        keeps_digits: bool = False,
        is_worth: Callable[[int], bool] = lambda _: True,
        on_round: Callable[[Round], None] = lambda _: None,
        clock: Callable[[], float] = time.perf_counter,
        numerics: Numerics = DEFAULT_NUMERICS,
    ) -> None:
        self.data = as_rows(X, y, row_noise)
        self.layout = ParameterLayout(kernel, self.data.inputs, numerics)
        self.numerics, self.polishes, self.is_worth, self.on_round = numerics, polishes, is_worth, on_round
        self.looks_for_details, self._stands_for = looks_for_details, self.data.n if keeps_digits else None
        self.timer, self.memory = Timer(time_limit, clock), memory
        self.rounds: list[Round] = []
        one_row = torch.zeros(1, self.data.inputs, dtype=torch.float64)
        self.flops, self.n_features = 0.0, feature_count(self.layout.kernel, one_row)
        self.random = np.random.default_rng(seed)
        self.theta0 = self.layout.pack(self.layout.kernel, START_NOISE)  # the kernel's own values
        self.start: FloatArray | None = None
        if start is not None:
            kernel, noise = self.layout.check(start[0]), start[1]
            least = numerics.noise_floor  # it may come from a model with a lower one
            self.start = self.layout.pack(kernel, least if LEAST_NOISE <= noise < least else noise)
        self.candidates = [SubsetOptimum(self.theta0 if self.start is None else self.start, -math.inf)]
        self.earlier: list[SubsetOptimum] = []  # that smaller subsets have handed on
        self.sizes = [
            rows
            for rows in subset_sizes(self.data.n, most_rows, 2 * FIRST_ROWS)
            if memory is None or exact_memory(self.layout.kernel, rows) <= memory
        ]
        self.evaluation_seconds, self.evaluation_rows = 0.0, 1  # of the last evaluations
        self.agreeing = 0  # starts of the present round
        self._present: Tried | None = None  # what that has come to
        self.hills = self._hills(FIRST_ROWS)  # of the last round
        self._last_ends: list[SubsetOptimum] = []  # of the starts of the last round
        self.rivals = Rivals(self)
        self.is_cut = False  # whether larger subsets were not worth their time
        self.open_rounds: list[OpenRound] = []
        self.starts = SearchStarts(self)
        self._reserved = 0.0  # seconds of the present round that are for larger subsets
        self.look_until = -math.inf  # of the clock: until then hills are told apart whatever the time limit
        self.climbed: FloatArray | None = None  # the last θ that somebody asked about from which steps led no higher
        # Optima of the last subset that are not yet tried on this one, and how far below the best they were, per row
        self.waiting: list[tuple[SubsetOptimum, float]] = []

    @cached_property
    def subset(self) -> Taken:
        """The rows of the largest subset, in the order in which the smaller ones are its beginnings."""
        return self.data.take(subset_order(self.data, self.sizes[-1], self.random))

    def run(self) -> None:
        """Go through the subsets, from the next one on, while there is time."""
        begun = len(self.rounds)
        for position, rows in enumerate(self.sizes[begun:], begun):
            if position and (not self.rounds or self.timer.left() < FEWEST_EVALUATIONS * self.seconds_of(rows)):
                break
            if position and not self.is_worth(rows):
                self.is_cut = True
                del self.sizes[position:]
                break
            self._round(rows, self.starts.first() if position == 0 else self.starts.following(rows))

    def polish(self, seconds: float) -> None:
        """Climb from the best on the largest subset, for so long at most, where all rows are too dear for many steps.

        Others are not tried there; if there was no time for a round on it, they go on as what may still win.
        """
        if not self.rounds or self.rounds[-1].settled:
            return
        started, rows = self.timer.seconds(), self.sizes[-1]
        objective, last = self.objective(rows), self.rounds[-1]
        if last.rows == rows:
            self.settle(objective, seconds)
            return
        leader, *others = self.rivals.carry_on_to(rows)
        start = StartingPoint(leader.theta, self.curvature(leader.theta, rows))
        try:
            optimum = self.ascent(objective, start, seconds - (self.timer.seconds() - started), settings=POLISH)
        except NumericalError as error:
            logger.debug("the best could not be climbed from on %d rows: %s", rows, error)
            return
        self.wait_for(others)
        self.hills = self._hills(rows)
        tried = Tried(rows, self.hills, finished=False)
        self._compare(objective, tried, start, optimum)
        tried.finished = False
        self._keep_untried(rows)
        self._record(objective, tried, optimum.reason in ENDED, self.timer.seconds() - started)

    @property
    def is_complete(self) -> bool:
        """Whether every start on every subset was tried to its end."""
        return (
            len(self.rounds) == len(self.sizes)
            and all(subset.finished for subset in self.rounds)
            and self.starts.has_looked_everywhere
        )

    @property
    def may_be_completed(self) -> bool:
        """Whether something was left out, and all of it is known."""
        unfinished = [number for number, subset in enumerate(self.rounds) if not subset.finished]
        open_rounds = [subset.number for subset in self.open_rounds]
        return (
            bool(self.rounds) and unfinished == open_rounds and not (self.is_complete and not self.rivals.left_behind)
        )

    def objective(self, rows: int) -> ExactObjective:
        """The exact likelihood of the first so many rows of the subsets, which are nested."""
        subset = self.subset
        data, noise = (subset.X[:rows], subset.y[:rows]), noise_of(subset.row_noise, slice(rows))
        return ExactObjective(
            self.layout.kernel,
            START_NOISE,
            *data,
            row_noise=noise,
            numerics=self.numerics,
            stands_for=self._stands_for,
        )

    def curvature(self, theta: FloatArray, wanted_rows: int) -> FloatArray | None:
        """About the second derivatives of the negative likelihood per row by the logarithms of θ, if there is time.

        They are those of a subset that has been searched already, and positive definite. `wanted_rows` are those of the
        likelihood that they are wanted for.
        """
        if not self.rounds:
            return None
        as_one = int(wanted_rows / (len(theta) + 1) ** (1.0 / 3.0))
        rows = min(self.rounds[-1].rows, max(FEWEST_CURVATURE_ROWS, min(as_one, MOST_CURVATURE_ROWS)))
        if len(theta) * self.seconds_of(rows) > CURVATURE_SHARE * self.timer.time_limit:
            return None
        objective = LogCoordinates.objective(self.objective(rows))
        try:
            logs = LogCoordinates.from_theta(theta)
            matrix = second_derivatives(objective, logs, at_once=self.abreast(rows)) / rows
        except NumericalError:
            return None
        self.flops += (len(theta) + 1) * self.evaluation_flops(rows)
        return positive(matrix, LEAST) if np.isfinite(matrix).all() else None

    def lead(self, objective: ExactObjective, optimum: SubsetOptimum) -> None:
        """Take this for the best of the last subset: nobody has climbed from there, and no start may agree with it."""
        before, last = self.candidates[0], self.rounds[-1]
        is_same = self.hills.place(objective, before) == self.hills.place(objective, optimum)
        with_it = replace(last, likelihoods=(optimum.likelihood, *last.likelihoods), settled=False)
        self.rounds[-1] = with_it.with_best(optimum.likelihood, settled=False) if is_same else with_it.alone()
        self.candidates.insert(0, optimum)

    def take_note(self, objective: ExactObjective, optimum: SubsetOptimum) -> None:
        """Of an optimum of the last subset that is no better than the best."""
        best, *others = self.candidates
        hills = [self.hills.place(objective, candidate) for candidate in self.candidates]
        if self.hills.place(objective, optimum) not in hills:
            self.candidates = [best, *sorted([*others, optimum], key=lambda candidate: -candidate.likelihood)]

    def settle(self, objective: ExactObjective, seconds: float) -> None:
        """Climb from the best of the last subset until nothing is left to gain, if there is time."""
        evaluations, settled = self._polished(objective, seconds)
        last = self.rounds[-1].with_best(self.candidates[0].likelihood, settled=settled)
        self.rounds[-1] = replace(last, evaluations=last.evaluations + evaluations)

    def climb(
        self, objective: ExactObjective, start: StartingPoint, seconds: float, settings: LBFGSSettings = SETTINGS
    ) -> Optimum:
        """Where a start leads to, by itself."""
        optimum = self.ascent(objective, start, seconds, settings=settings)
        self.flops += optimum.evaluations * self.evaluation_flops(len(objective.y))
        return optimum

    def ascent(
        self,
        objective: ExactObjective,
        start: StartingPoint,
        seconds: float,
        best: KnownOptimum | None = None,
        settings: LBFGSSettings = SETTINGS,
        clock: Callable[[], float] | None = None,
    ) -> Optimum:
        """The same; it ends near the `best` so far, if that is known. Changes nothing here: several may run at once."""
        (theta, curvature, _), rows = start, len(objective.y)
        return minimise(
            LogCoordinates.objective(objective if settings is POLISH else objective.nearly),
            LogCoordinates.from_theta(theta),
            bounds=LogCoordinates.bounds(self.layout.bounds),
            time_limit=max(seconds, 0.0),
            callback=until_settled(rows, best, settles=curvature is not None or settings is POLISH),
            settings=settings,
            curvature=None if curvature is None else rows * curvature,
            clock=clock or self.timer.clock,
        )

    def support_of(self, theta: FloatArray) -> tuple[int, int]:
        """How many starts agree on an optimum of the last subset, of how many; none on what is not one."""
        candidate = next((c for c in self.candidates if c.theta is theta), None)
        if candidate is None or not self.rounds:
            return 0, 0
        if candidate is self.candidates[0]:
            return self.rounds[-1].support
        objective = self.objective(self.rounds[-1].rows)
        return self.hills.agreeing(objective, candidate, self._last_ends), len(self._last_ends)

    def doubt(self, *, looked_everywhere: bool, left_behind_a_rival: bool) -> None:
        """What an earlier search, whose rounds these are, has left open."""
        self.starts.has_looked_at_neighbours = looked_everywhere
        self.rivals.were_forgotten = left_behind_a_rival

    def _hills(self, rows: int) -> Hills:
        """None yet; a look at the likelihood takes a quarter of an evaluation."""

        def has_time() -> bool:
            is_cheap = rows <= CHEAP_ROWS or self.timer.left() > self.evaluation_seconds
            return is_cheap or self.timer.clock() < self.look_until

        return Hills(has_time)

    def has_time_for_another(self) -> bool:
        """Start of the present round, besides what larger subsets need."""
        return self.timer.left() - self._reserved > self.evaluation_seconds

    def chance_of_another_hill(self) -> float:
        """How likely one more start of the present round is to end where no other has.

        That is the share of ends that are alone on their hill, by Good and Turing's estimate (Good 1953).
        """
        tried = self._present
        if tried is None or not tried.ends:
            return 1.0
        return tried.hills.alone(self.objective(tried.rows), tried.ends) / len(tried.ends)

    def seconds_of(self, rows: int) -> float:
        """What an evaluation with so many rows may take."""
        return float(self.evaluation_seconds * (rows / self.evaluation_rows) ** COST_POWER)

    def abreast(self, rows: int) -> int:
        """How many evaluations with so many rows may run at once: one of many rows, which has all cores for itself.

        Half of the memory is for them; others may hold the rest.
        """
        if rows >= THREADED_ROWS:
            return 1
        if self.memory is None:
            return MOST_ABREAST
        return max(self.memory // (2 * exact_memory(self.layout.kernel, rows)), 1)

    def evaluation_flops(self, rows: int) -> float:
        """Operations of an evaluation with so many rows."""
        return exact_flops(rows, self.n_features)

    def factorisation_flops(self, rows: int) -> float:
        """The same without a gradient."""
        return cholesky_flops(rows) + kernel_flops(rows, rows, self.n_features)

    def wait_for(self, optima: list[SubsetOptimum]) -> None:
        """What is to be tried on a larger subset, with how far below the best it was on the last one, per row."""
        highest, rows = self.candidates[0].likelihood, self.rounds[-1].rows
        self.waiting = [(optimum, (highest - optimum.likelihood) / rows) for optimum in optima]

    def _leaders_seconds(self, rows: int) -> float:
        """What it takes to carry the best optimum of so many rows on to all larger subsets, and to polish it there."""
        sizes = [size for size in self.sizes if size > rows] + (self.sizes[-1:] if self.polishes else [])
        return LEADER_EVALUATIONS * sum(self.seconds_of(size) for size in sizes)

    def _round(self, rows: int, groups: Iterator[Group]) -> None:
        """Optimise from each start on a subset, while there is time."""
        started, share = self.timer.seconds(), LEADER_SHARE * self.timer.left()
        self.hills, self._reserved = self._hills(rows), 0.0
        objective, tried = self.objective(rows), Tried(rows, self.hills)
        self._present = tried
        climbs = GroupClimbs(self, objective, tried, lambda: min(self._leaders_seconds(rows), share))
        untried: list[StartingPoint] = []
        begun: list[FloatArray] = []
        for group in groups:
            new = [start for start in group if self._is_new(start, begun)]
            for start, end in zip(new, climbs.ends(new), strict=True):
                if end is None:
                    tried.finished = False
                    untried.append(start)
                    continue
                self._has_tried(start)
                if isinstance(end, NumericalError):
                    logger.debug("a start on %d rows failed: %s", rows, end)
                    continue
                self._compare(objective, tried, start, end)
                if end.reason is OptimiserEnd.TIME_LIMIT:
                    untried.append(start._replace(theta=LogCoordinates.to_theta(end.theta)))
            if not tried.finished:
                break
            self._reserved = min(self._leaders_seconds(rows), share)
        if not tried.optima:
            return
        settled = False
        if self.polishes and rows == self.sizes[-1]:
            evaluations, settled = self._polished(objective, self.timer.left())
            tried.evaluations += evaluations
        if not tried.finished:
            left_out = itertools.chain(untried, itertools.chain.from_iterable(groups))
            self.open_rounds.append(OpenRound(len(self.rounds), tried, left_out, self.candidates[0]))
        self._keep_untried(rows)
        self._record(objective, tried, settled, self.timer.seconds() - started)

    def _has_tried(self, start: StartingPoint) -> None:
        self.waiting = [(other, deficit) for other, deficit in self.waiting if other.theta is not start.theta]

    def _is_new(self, start: StartingPoint, begun: list[FloatArray]) -> bool:
        """Whether no start of this subset was the same: bounds may leave nothing of what makes it different."""
        is_known = not self.layout.nothing_is_free and any(np.array_equal(start.theta, theta) for theta in begun)
        begun.append(start.theta)
        if is_known:
            self._has_tried(start)
        return not is_known

    def _compare(self, objective: ExactObjective, tried: Tried, start: StartingPoint, optimum: Optimum) -> None:
        """Take note of where a start has led to."""
        rows, leader = tried.rows, tried.leader
        is_first, is_cut_short = not tried.evaluations, optimum.reason is OptimiserEnd.TIME_LIMIT
        tried.evaluations += optimum.evaluations
        self.flops += optimum.evaluations * self.evaluation_flops(rows)
        tried.finished = tried.finished and not is_cut_short
        result = SubsetOptimum(LogCoordinates.to_theta(optimum.theta), -optimum.value, start.is_derived)
        if start.is_derived and tried.hills.agreeing(objective, result, tried.ends):
            derived, result = result, replace(result, is_derived=False)  # others lead there, too
            tried.hills.follow(derived, result)
        elif not start.is_derived and not is_cut_short:  # else it comes again
            tried.ends.append(result)
        if (
            leader is None
            or result.likelihood > leader.likelihood
            or not leader.is_near(result.theta, result.likelihood)
        ):
            tried.optima.append(result)
            self.candidates = self._different(objective, tried.optima)
        best, curvature = self.candidates[0], start.curvature
        if best is result:  # another curvature than that of its start is not known
            tried.first_leads = is_first
            tried.leader = None
            if curvature is not None and optimum.reason in ENDED:
                tried.leader = KnownOptimum(self.layout, best.theta, best.likelihood, rows, curvature)
        self.agreeing = tried.hills.agreeing(objective, best, tried.ends)

    def _keep_untried(self, rows: int) -> None:
        """What was not tried on this subset may still win: it counts as being as near to the best as before."""
        if not self.waiting:
            return
        highest = self.candidates[0].likelihood
        self.candidates += [replace(optimum, likelihood=highest - deficit * rows) for optimum, deficit in self.waiting]
        self.candidates[1:] = sorted(self.candidates[1:], key=lambda candidate: -candidate.likelihood)
        self.waiting = []

    def _record(self, objective: ExactObjective, tried: Tried, settled: bool, seconds: float) -> None:
        best, self._last_ends = self.candidates[0], tried.ends
        likelihoods = (best.likelihood, *tried.likelihoods[1:])
        agreeing = max(tried.hills.agreeing(objective, best, tried.ends), 1)
        present = Round(tried.rows, likelihoods, tried.evaluations, seconds, tried.finished, settled, agreeing=agreeing)
        support, of_rows = present.own_support, tried.rows
        if self.rounds and tried.first_leads:
            before = self.rounds[-1]
            if strongest(support, before.support) == before.support:
                support, of_rows = before.support, before.support_rows
        self.rounds.append(present.counted(support, of_rows))
        self.on_round(self.rounds[-1])
        logger.info(
            "search on %d rows: %.6g, %d of %d starts agree, %d evaluations, %.1f s",
            tried.rows, likelihoods[0], agreeing, len(likelihoods), tried.evaluations, seconds,
        )  # fmt: skip

    def _polished(self, objective: ExactObjective, seconds: float) -> tuple[int, bool]:
        """Climb from the best until nothing is left to gain: evaluations, and whether there was time for that."""
        best, rows = self.candidates[0], len(objective.y)
        if seconds < self.evaluation_seconds:
            return 0, False
        deadline = self.timer.clock() + seconds
        start = StartingPoint(best.theta, self.curvature(best.theta, rows))
        try:
            optimum = self.climb(objective, start, deadline - self.timer.clock(), settings=POLISH)
        except NumericalError:
            return 0, False
        if -optimum.value > best.likelihood:
            polished = replace(best, theta=LogCoordinates.to_theta(optimum.theta), likelihood=-optimum.value)
            self.hills.follow(best, polished)
            self.candidates[0] = polished
        return optimum.evaluations, optimum.reason in ENDED

    def _different(self, objective: ExactObjective, optima: list[SubsetOptimum]) -> list[SubsetOptimum]:
        """Those that do not agree with a higher one, the best first."""
        different: list[SubsetOptimum] = []
        for optimum in sorted(optima, key=lambda optimum: -optimum.likelihood):
            if not self.hills.agreeing(objective, optimum, different):
                different.append(optimum)
        return different
