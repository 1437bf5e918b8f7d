"""An upper bound on log|K̂| by the chain rule: by far the tightest where inducing points explain too little.

With rows in blocks, log|K̂| is the sum over all blocks of log|K̂_b given the rows before b|, and to know fewer of these
can only enlarge a term: Schur complements grow as rows are left out. So each block is taken given those rows before it
that tell most about it, which are nearly enough if its rows are near to each other. One Cholesky factor, of the rows
that are given and the block, has the term at its end. Hadamard's inequality is the case of one row given none.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from nearexact.gp.block_columns import Check, by_columns
from nearexact.gp.budget import TimeIsUpError, Timer
from nearexact.gp.flops import cholesky_flops, feature_count, kernel_flops
from nearexact.gp.lapack import cholesky
from nearexact.gp.memory import chunk_rows, row_chunks
from nearexact.gp.posterior import relative_rounding, rounding_error
from nearexact.gp.row_noise import RowNoise, noise_variances
from nearexact.gp.safety import NumericalError
from nearexact.kernels.base import Kernel

logger = logging.getLogger(__name__)

GIVEN = (256, 512, 1024, 2048, 4096)  # rows for a block, one bound after the other
GROWTH = 4.0  # of the time from one bound to the next, at most
SETTLED_PER_ROW = 1e-3  # of log|K̂|: a bound that falls by less is hardly above it
BLOCK_SHARE = 0.5  # of the rows that are given: fewer take longer, more bring less
# Of so many rows the median correlation shows whether rows have anything to do with each other; how often inputs are
# brought together by half until they have; and how much correlations of these count.
SAMPLED_ROWS, LEAST_CORRELATION, MOST_HALVINGS, FAINT = 256, 0.01, 30, 1e-6
SQUARE_ARRAYS = 3  # of a block and the rows given, besides the kernel's own


@dataclass(frozen=True, eq=False)
class Ordered:
    """Rows of data in blocks that are near to each other, and these in a random order."""

    kernel: Kernel
    features: Tensor  # [N, F]
    diagonal: Tensor  # k(x, x) [N]
    noise: Tensor  # of each row [N]
    nearness: Nearness
    blocks: Sequence[Tensor]  # positions of rows

    @staticmethod
    def of(
        kernel: Kernel, noise_variance: float, X: Tensor, row_noise: RowNoise | None, block_rows: int, seed: int
    ) -> Ordered:
        """In blocks of at most so many rows."""
        kernel, noise = kernel.for_inputs(X.shape[1]), noise_variances(row_noise, noise_variance)
        features = kernel.features(X, X.mean(0))
        diagonal = kernel.diagonal(features)
        noises = noise if isinstance(noise, Tensor) else torch.full_like(diagonal, noise)
        generator = torch.Generator().manual_seed(seed)
        shuffled = torch.randperm(len(X), generator=generator).to(X.device)
        nearness = Nearness.of(kernel, X, noises, shuffled[:SAMPLED_ROWS])
        groups = list(nearness.groups(shuffled, block_rows))
        order = torch.randperm(len(groups), generator=generator).tolist()
        return Ordered(kernel, features, diagonal, noises, nearness, [groups[i] for i in order])

    def known(self, number: int, given: int) -> Tensor:
        """So many of the rows before a block that tell most about it."""
        block = self.blocks[number]
        return self.nearness.telling_most(block, torch.cat([block[:0], *self.blocks[:number]]), given)

    def log_det(self, number: int, given: int) -> float:
        """log|K̂| of a block given so many of the rows before it; and no less than that, in spite of rounding."""
        known, block = self.known(number, given), self.blocks[number]
        rows = torch.cat([known, block])
        K = self.kernel.gram(self.features[rows])
        K.diagonal().add_(self.noise[rows])
        L, is_factor = cholesky(K, out=K)
        if not is_factor:
            raise NumericalError("a block of K has no Cholesky factor")
        log_det = 2.0 * float(L.diagonal()[len(known) :].log().sum())
        return log_det + log_det_error(self.diagonal[rows], self.noise[rows])


@dataclass(frozen=True, eq=False)
class Nearness:
    """Which rows are near to each other, by correlations.

    With a short lengthscale these are 0 between nearly all rows, and do not tell near ones from far ones. Then those of
    inputs that are brought together decide between rows that have next to nothing to do with each other.
    """

    kernel: Kernel
    features: Tensor  # [N, F]
    deviations: Tensor  # of noisy values [N]
    together: Nearness | None = None

    @staticmethod
    def of(kernel: Kernel, X: Tensor, noise: Tensor, sample: Tensor) -> Nearness:
        """As by the kernel; `sample` shows whether that is enough."""
        nearness = Nearness._by(kernel, X, noise)
        if nearness._tells(sample):
            return nearness
        for _ in range(MOST_HALVINGS):
            X = 0.5 * X
            together = Nearness._by(kernel, X, noise)
            if together._tells(sample):
                return replace(nearness, together=together)
        return nearness

    @staticmethod
    def _by(kernel: Kernel, X: Tensor, noise: Tensor) -> Nearness:
        features = kernel.features(X, X.mean(0))
        return Nearness(kernel, features, (kernel.diagonal(features) + noise).sqrt())

    def _tells(self, sample: Tensor) -> bool:
        """Whether most rows have something to do with each other, about the noise."""
        K = self.kernel.gram(self.features[sample])
        deviations = K.diagonal().sqrt()
        return float((K / deviations / deviations[:, None]).abs().median()) >= LEAST_CORRELATION

    def groups(self, rows: Tensor, most: int) -> Iterator[Tensor]:
        """These rows in groups, each halved by which of two rows far from each other its rows are nearer to."""
        parts = math.ceil(len(rows) / most)
        if parts < 2:
            yield rows
            return
        far = rows[self.correlations(rows, rows[:1])[:, 0].argmin()]
        other = rows[self.correlations(rows, far[None])[:, 0].argmin()]
        nearer = self.correlations(rows, torch.stack([far, other]))
        ranked = rows[torch.argsort(nearer[:, 0] - nearer[:, 1], stable=True)]
        half = len(rows) * (parts // 2) // parts
        yield from self.groups(ranked[:half], most)
        yield from self.groups(ranked[half:], most)

    def telling_most(self, block: Tensor, before: Tensor, number: int) -> Tensor:
        """So many of the rows before that are most like some row of a block."""
        if len(before) <= number:
            return before
        told = torch.cat(
            [
                self.correlations(before[part], block).abs_().amax(1)
                for part in row_chunks(len(before), chunk_rows(len(block)))
            ]
        )
        return before[told.topk(number).indices]

    def correlations(self, rows: Tensor, others: Tensor) -> Tensor:
        """Between noisy values at some rows and at others: [rows, others]."""
        K = self.kernel.cross(self.features[rows], self.features[others])
        K.div_(self.deviations[rows, None]).div_(self.deviations[others])
        return K if self.together is None else K.add_(self.together.correlations(rows, others), alpha=FAINT)


def log_det_bounds(
    kernel: Kernel,
    noise_variance: float,
    X: Tensor,
    *,
    timer: Timer,
    memory: int,
    row_noise: RowNoise | None = None,
    seed: int = 0,
) -> Iterator[tuple[float, float]]:
    """Lower and lower upper bounds on log|K̂|, with the operations of each, while time and memory allow another one.

    They end where more rows would hardly change them.
    """
    last, predicted = math.inf, 0.0
    for given in GIVEN:
        started = timer.seconds()
        if predicted > timer.left() or needed_memory(kernel, given) > memory:
            return
        try:
            bound = log_det_bound(
                kernel, noise_variance, X, given, row_noise=row_noise, seed=seed, memory=memory, check=timer.check
            )
        except TimeIsUpError:
            return
        except NumericalError as error:
            logger.info("no bound on log|K| by the chain rule: %s", error)
            return
        logger.info("log|K| <= %.8g with %d rows given, %.1f s", bound, given, timer.seconds() - started)
        yield min(bound, last), flops(len(X), given, feature_count(kernel, X))
        if last - bound < SETTLED_PER_ROW * len(X) or given + block_rows(given) >= len(X):
            return
        last, predicted = bound, GROWTH * (timer.seconds() - started)


def log_det_bound(
    kernel: Kernel,
    noise_variance: float,
    X: Tensor,
    given: int,
    *,
    memory: int,
    row_noise: RowNoise | None = None,
    seed: int = 0,
    check: Check = lambda: None,
) -> float:
    """log|K̂| is at most this, proved with so many rows given for each block.

    A few matrices of these and the block must fit into the memory. `check` is called between blocks.
    """
    ordered = Ordered.of(kernel, noise_variance, X, row_noise, block_rows(given), seed)
    at_most = max(memory // needed_memory(kernel, given), 1)

    def work(numbers: Sequence[int], check: Check) -> float:
        total = 0.0
        for number in numbers:
            check()
            total += ordered.log_det(number, given)
        return total

    return math.fsum(by_columns(len(ordered.blocks), work, check, device=X.device, at_most=at_most))


def log_det_error(diagonal: Tensor, noise: Tensor) -> float:
    """By how much rounding may change log|K̂| of rows with these k(x, x) and noise variances."""
    eps = torch.finfo(diagonal.dtype).eps
    return 2.0 * rounding_error(relative_rounding(diagonal, float(noise.min()), eps))


def block_rows(given: int) -> int:
    """Of a block, if so many rows are given."""
    return max(int(BLOCK_SHARE * given), 1)


def needed_memory(kernel: Kernel, given: int) -> int:
    """Bytes for one block at a time."""
    rows = given + block_rows(given)
    return 8 * (SQUARE_ARRAYS + kernel.temporaries) * rows**2


def flops(n: int, given: int, features: int) -> float:
    """Of the Cholesky factors of all blocks, and of the kernel between these and the rows before them."""
    rows = min(given + block_rows(given), n)
    return n / block_rows(given) * (cholesky_flops(rows) + kernel_flops(rows, rows, features)) + 0.5 * kernel_flops(
        n, n, features
    )
