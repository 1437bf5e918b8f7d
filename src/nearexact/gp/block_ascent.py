"""Towards an optimum on the likelihood of rows in blocks, where that is nearly the exact one and far cheaper.

Where a function is rough, a few near rows tell nearly all about a row that all others do, and the likelihood of blocks
given theirs (row_blocks.py) is far cheaper than an exact evaluation. All rows count in it, so that it shows what
subsets do not, but it is no bound: where it leads to is looked at by an exact evaluation.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass, replace
from functools import partial

from nearexact.gp.budget import TimeIsUpError, Timer
from nearexact.gp.chain_rule import Ordered, block_rows
from nearexact.gp.flops import cholesky_flops, kernel_flops
from nearexact.gp.known_optimum import KnownOptimum, until_settled
from nearexact.gp.linalg import as_columns
from nearexact.gp.optimise import LBFGSSettings, OptimiserEnd, minimise
from nearexact.gp.parameters import LogCoordinates
from nearexact.gp.row_blocks import RowBlocks, density_memory
from nearexact.gp.rows import LocalRows, local
from nearexact.gp.safety import NumericalError
from nearexact.gp.search import Search
from nearexact.typing import FloatArray

logger = logging.getLogger(__name__)

FEWEST_ROWS = 2048  # with fewer, exact likelihoods are as cheap
GIVEN, MORE_GIVEN = 128, 512  # rows for each block: to climb with, and to see what these leave out
# Nats per row by which more rows that are given may change log|P|/2, or the rest of the likelihood: each of them hides
# some of the other, and where one changes much, P is not nearly K̂.
LOOSE = 0.03
HOPELESS = 0.1  # of log|P|/2, by some blocks, before any climb: then it is not worth its time
SAMPLED_BLOCKS = 16  # or up to twice as many
CLIMBING_SHARE = 0.7  # of the seconds; the rest is for more rows that are given
MOST_ROUNDS = 5  # each with blocks that are chosen anew
LITTLE = 1e-3  # nats per row: a round that gains less is the last one
SETTINGS = LBFGSSettings(max_iterations=30, ftol=1e-6, first_step=0.3)


@dataclass(frozen=True, eq=False)
class BlockOptimum:
    """Where a climb on the likelihood in blocks has led to, by more rows that are given."""

    theta: FloatArray
    likelihood: float
    gain: float  # over where the climb began
    is_nearly_exact: bool  # the likelihood, as far as is known


def climbed_in_blocks(
    search: Search, theta: FloatArray, seconds: float, *, top: KnownOptimum | None = None
) -> BlockOptimum | None:
    """Where θ leads to in so many seconds, if that is higher than θ with more rows given, too.

    It may end near the `top` of a hill that is known.
    """
    data = search.data
    if seconds <= 0.0 or data.n < FEWEST_ROWS or not isinstance(data, LocalRows) or not _fits(search):
        return None
    try:
        return _Ascent(search, data, Timer(seconds, search.timer.clock)).climbed(theta, top)
    except (NumericalError, TimeIsUpError) as error:
        logger.info("a climb on the likelihood in blocks ended early: %s", error or "time is up")
        return None


def block_likelihood(search: Search, theta: FloatArray) -> float:
    """With more rows given than a climb has; not finite where it cannot be computed."""
    ascent = _Ascent(search, local(search.data), Timer())
    try:
        return ascent.likelihood(*ascent.parts(ascent.blocks(theta, MORE_GIVEN), theta))
    except NumericalError:
        return math.nan


def _fits(search: Search) -> bool:
    """Whether half of the memory has room for as many blocks as are in it at once; others may hold the rest."""
    needed = density_memory(search.layout.kernel, search.data.n, MORE_GIVEN)
    return search.memory is None or 2 * needed <= search.memory


class _Ascent:
    """One climb, on blocks that are chosen anew for each θ that it has reached."""

    def __init__(self, search: Search, data: LocalRows, timer: Timer) -> None:
        self.search, self.data, self.timer, self.layout = search, data, timer, search.layout
        self.targets = as_columns(data.y).shape[1]

    def climbed(self, start: FloatArray, top: KnownOptimum | None) -> BlockOptimum | None:
        """From a start."""
        theta, n = start, self.data.n
        if self._sampled_change(theta) > HOPELESS:
            return None
        for _ in range(MOST_ROUNDS):
            few = self.blocks(theta, GIVEN)
            before = self.likelihood(*self.parts(few, theta))
            known = None if top is None else replace(top, likelihood=self.likelihood(*self.parts(few, top.theta)))
            optimum = minimise(
                LogCoordinates.objective(partial(self._negated, few)),
                LogCoordinates.from_theta(theta),
                bounds=LogCoordinates.bounds(self.layout.bounds),
                time_limit=CLIMBING_SHARE * self.timer.time_limit - self.timer.seconds(),
                callback=until_settled(n, known, settles=False),
                settings=SETTINGS,
                clock=self.timer.clock,
            )
            theta, ended = LogCoordinates.to_theta(optimum.theta), optimum.reason
            is_little = -optimum.value - before <= LITTLE * n
            if is_little or ended in (OptimiserEnd.TIME_LIMIT, OptimiserEnd.CALLBACK):
                break
        return self._checked(start, theta, few)

    def _checked(self, start: FloatArray, theta: FloatArray, few: RowBlocks) -> BlockOptimum | None:
        """What more rows that are given say about a θ that was reached."""
        more = self.blocks(theta, MORE_GIVEN)
        with_few, with_more = self.parts(few, theta), self.parts(more, theta)
        likelihood = self.likelihood(*with_more)
        gain = likelihood - self.likelihood(*self.parts(more, start))
        by_log_det, by_rest = (
            0.5 * (one - other) / self.data.n for one, other in zip(with_few, with_more, strict=True)
        )
        by_log_det *= self.targets
        logger.info(
            "in blocks: %.8g, gained %.4g, log|P|/2 falls by %.2g a row, the rest by %.2g, %.1f s", likelihood, gain,
            by_log_det, by_rest, self.timer.seconds(),
        )  # fmt: skip
        is_nearly_exact = max(abs(by_log_det), abs(by_rest)) <= LOOSE
        return BlockOptimum(theta, likelihood, gain, is_nearly_exact) if gain > 0.0 else None

    def _sampled_change(self, theta: FloatArray) -> float:
        """By how much more rows that are given lower log|P|/2, in nats per row, as far as some blocks tell."""
        data, size = self.data, block_rows(MORE_GIVEN)
        ordered = Ordered.of(*self.layout.unpack(theta), data.X, data.row_noise, size, seed=0)
        sample = range(len(ordered.blocks))[:: -max(len(ordered.blocks) // SAMPLED_BLOCKS, 1)]
        change = 0.0
        for number in sample:
            self.timer.check()
            change += ordered.log_det(number, GIVEN) - ordered.log_det(number, MORE_GIVEN)
            self.search.flops += kernel_flops(size, number * size, self.search.n_features)
            self.search.flops += cholesky_flops(MORE_GIVEN + size)
        return 0.5 * self.targets * change / sum(len(ordered.blocks[number]) for number in sample)

    def blocks(self, theta: FloatArray, given: int) -> RowBlocks:
        """Chosen for this θ."""
        data, n = self.data, self.data.n
        self.search.flops += 0.5 * kernel_flops(n, n, self.search.n_features)
        chosen = (*self.layout.unpack(theta), data.X, given)
        return RowBlocks.chosen(*chosen, row_noise=data.row_noise, check=self.timer.check)

    def parts(self, blocks: RowBlocks, theta: FloatArray) -> tuple[float, float]:
        """log|P| and yᵀP⁻¹y."""
        self.search.flops += blocks.factor_flops(self.search.n_features)
        return blocks.parts(*self.layout.unpack(theta), self.data.y, self.timer.check)

    def likelihood(self, log_det: float, quadratic: float) -> float:
        """Of these parts."""
        constant = self.data.n * math.log(2.0 * math.pi)
        return -0.5 * (self.targets * (constant + log_det) + quadratic)

    def _negated(self, blocks: RowBlocks, theta: FloatArray) -> tuple[float, FloatArray]:
        self.search.flops += blocks.density_flops(self.search.n_features)
        return self.layout.negated(partial(blocks.density, z=self.data.y), theta)
