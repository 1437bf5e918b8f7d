"""Towards an optimum on the likelihood of rows in blocks, where that is nearly the exact one and far cheaper.

Where a function is rough, a few near rows tell nearly all about a row that all others do, and the likelihood of blocks
given theirs (row_blocks.py) takes a tenth of an exact evaluation or less. All rows count in it, so that it shows what
subsets do not, but it is no bound: where it leads to is looked at by an exact evaluation.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from functools import partial

from nearexact.gp.budget import TimeIsUpError, Timer
from nearexact.gp.chain_rule import Ordered, block_rows
from nearexact.gp.flops import kernel_flops
from nearexact.gp.known_optimum import KnownOptimum, until_settled
from nearexact.gp.linalg import as_columns
from nearexact.gp.optimise import LBFGSSettings, OptimiserEnd, minimise
from nearexact.gp.parameters import LogCoordinates
from nearexact.gp.row_blocks import RowBlocks, density_memory
from nearexact.gp.rows import LocalRows
from nearexact.gp.safety import NumericalError
from nearexact.gp.search import Search
from nearexact.typing import FloatArray

logger = logging.getLogger(__name__)

FEWEST_ROWS = 2048  # with fewer, exact likelihoods are as cheap
GIVEN, MORE_GIVEN = 128, 512  # rows for each block: to climb with, and to see what these leave out
# Nats per row by which more rows that are given may change log|P|/2, or the rest of the likelihood: each of them hides
# some of the other, and where one changes much, P is not nearly K̂.
LOOSE = 0.03
HOPELESS, SAMPLED_BLOCKS = 0.1, 16  # of log|P|/2 in so many blocks, before any climb: then it is not worth its time
CLIMBING_SHARE = 0.7  # of the seconds; the rest is for more rows that are given
MOST_ROUNDS = 5  # each with blocks that are chosen anew
LITTLE = 1e-3  # nats per row: a round that gains less is the last one
SETTINGS = LBFGSSettings(max_iterations=30, ftol=1e-6, first_step=0.3)


@dataclass(frozen=True, eq=False)
class BlockOptimum:
    """Where a climb on the likelihood in blocks has led to."""

    theta: FloatArray
    likelihood: float
    is_nearly_exact: bool  # that, as far as more rows that are given tell


def climbed_in_blocks(
    search: Search, theta: FloatArray, seconds: float, *, top: KnownOptimum | None = None
) -> BlockOptimum | None:
    """Where θ leads to in so many seconds, if that is higher than θ with more rows given, too.

    It may end near the `top` of a hill that is known.
    """
    data = search.data
    if data.n < FEWEST_ROWS or not isinstance(data, LocalRows) or not _fits(search):
        return None
    try:
        return _Ascent(search, data, Timer(seconds, search.timer.clock)).climbed(theta, top)
    except (NumericalError, TimeIsUpError) as error:
        logger.info("a climb on the likelihood in blocks ended early: %s", error or "time is up")
        return None


def _fits(search: Search) -> bool:
    """Whether memory has room for as many blocks as are in it at once."""
    return search.memory is None or density_memory(search.layout.kernel, search.data.n, MORE_GIVEN) <= search.memory


class _Ascent:
    """One climb, on blocks that are chosen anew for each θ that it has reached."""

    def __init__(self, search: Search, data: LocalRows, timer: Timer) -> None:
        self.search, self.data, self.timer, self.layout = search, data, timer, search.layout
        self.targets = as_columns(data.y).shape[1]

    def climbed(self, start: FloatArray, top: KnownOptimum | None) -> BlockOptimum | None:
        theta, n = start, self.data.n
        if self._sampled_change(theta) > HOPELESS:
            return None
        for _ in range(MOST_ROUNDS):
            few = self._blocks(theta, GIVEN)
            before = self._value(few, theta)
            known = None if top is None else replace(top, likelihood=self._value(few, top.theta))
            optimum = minimise(
                LogCoordinates.objective(partial(self._negated, few)),
                LogCoordinates.from_theta(theta),
                bounds=LogCoordinates.bounds(self.layout.bounds),
                time_limit=CLIMBING_SHARE * self.timer.time_limit - self.timer.seconds(),
                callback=until_settled(n, known, settles=False),
                settings=SETTINGS,
                clock=self.timer.clock,
            )
            theta, value = LogCoordinates.to_theta(optimum.theta), -optimum.value
            if optimum.reason is OptimiserEnd.CALLBACK:
                return BlockOptimum(theta, value, is_nearly_exact=True)  # as near the top that is known
            if value - before <= LITTLE * n or optimum.reason is OptimiserEnd.TIME_LIMIT:
                break
        return self._checked(start, theta, few, value)

    def _checked(self, start: FloatArray, theta: FloatArray, few: RowBlocks, value: float) -> BlockOptimum | None:
        """What more rows that are given say about a θ that was reached."""
        more = self._blocks(theta, MORE_GIVEN)
        likelihood, before = self._value(more, theta), self._value(more, start)
        by_log_det = 0.5 * self.targets * (self._log_det(few, theta) - self._log_det(more, theta))
        most = LOOSE * self.data.n
        is_nearly_exact = by_log_det <= most and abs(likelihood - value - by_log_det) <= most
        logger.info(
            "in blocks: %.8g, before %.8g, log|P|/2 falls by %.2g a row, the rest by %.2g, %.1f s", likelihood, before,
            by_log_det / self.data.n, (value + by_log_det - likelihood) / self.data.n, self.timer.seconds(),
        )  # fmt: skip
        return BlockOptimum(theta, likelihood, is_nearly_exact) if likelihood > before else None

    def _sampled_change(self, theta: FloatArray) -> float:
        """By how much more rows that are given lower log|P|/2, in nats per row, as far as some blocks tell."""
        data, size = self.data, block_rows(MORE_GIVEN)
        ordered = Ordered.of(*self.layout.unpack(theta), data.X, data.row_noise, size, seed=0)
        sample = range(len(ordered.blocks))[:: -max(len(ordered.blocks) // SAMPLED_BLOCKS, 1)]
        change = sum(ordered.log_det(number, GIVEN) - ordered.log_det(number, MORE_GIVEN) for number in sample)
        return 0.5 * change / sum(len(ordered.blocks[number]) for number in sample)

    def _blocks(self, theta: FloatArray, given: int) -> RowBlocks:
        data, n = self.data, self.data.n
        self.search.flops += 0.5 * kernel_flops(n, n, self.search.n_features)
        chosen = (*self.layout.unpack(theta), data.X, given)
        return RowBlocks.chosen(*chosen, row_noise=data.row_noise, check=self.timer.check)

    def _log_det(self, blocks: RowBlocks, theta: FloatArray) -> float:
        self.search.flops += blocks.factor_flops(self.search.n_features)
        return blocks.log_det(*self.layout.unpack(theta), check=self.timer.check)

    def _value(self, blocks: RowBlocks, theta: FloatArray) -> float:
        return -self._negated(blocks, theta)[0]

    def _negated(self, blocks: RowBlocks, theta: FloatArray) -> tuple[float, FloatArray]:
        self.search.flops += blocks.density_flops(self.search.n_features)
        return self.layout.negated(partial(blocks.density, z=self.data.y), theta)
