"""What an evaluation by conjugate gradients costs, and how many inducing points make it cheapest.

More points make the sweeps over the data dearer, with M², and the iterations fewer. Which number is cheapest is decided
by counting operations, not by a clock, so that the same data give the same model; the clock tells only how many seconds
an operation takes.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from nearexact.gp import chain_rule
from nearexact.gp.budget import held_memory
from nearexact.gp.chain_rule import block_rows
from nearexact.gp.exact import fastest
from nearexact.gp.iterative import PROBES, solving_memory
from nearexact.gp.memory import MemoryPlan
from nearexact.gp.row_blocks import blocks_memory
from nearexact.gp.schedule import LARGEST_SHARE
from nearexact.gp.stored_kernel import Storage, StoredKernel, stored_bytes
from nearexact.kernels.base import Kernel
from nearexact.limits import memory_budget
from nearexact.typing import MemoryLimit

SIZES = (100, 200, 400, 700, 1000, 1500, 2000, 3000, 4000, 6000, 8000)  # inducing points to choose from
SWEEP_OPERATIONS = 5.0  # for each row and pair of points, of a value and its gradient
PRODUCT_OPERATIONS = 3.0  # for each pair of rows and each column: two, but not at the speed of large matrix products
MOST_SPEED = 1e-14  # seconds for an operation, at least
USUAL_ITERATIONS, USUAL_M = 60.0, 1000  # taken until iterations have been counted
USUAL_PASS = 8.0  # products of K that take as long as computing it
ITERATIONS_POWER = 1.3  # iterations fall about with this power of M (kin40k: 1.2 to 1.4)
MOST_ERROR = 2e-3  # nats per row: four of them are less than the gap that certifies
NEARLY_AS_CHEAP = 1.15  # times the least cost: up to there more points are taken, since errors fall with 1/M²
# Of the points so far: with far fewer, iterations may be many more than the power says; but where next to none were
# needed, there are far too many points.
LEAST_SHARE, NO_ITERATIONS, LEAST_WITHOUT = 0.6, 3.0, 0.2
# A product with K takes as long as reading K, and as long as that again for so many columns.
COLUMNS_AS_READING = 18.0
# An evaluation computes K to keep it, to see how large the residuals are, and for the gradient, which takes twice as
# long; the end of training does not need the last.
EVALUATION_PASSES, FINISHING_PASSES = 4.0, 2.0
# Selecting points and one factorisation, relative to the sweeps of an evaluation; and iterations for variances and for
# weights to rounding, relative to those of an evaluation.
FINISHING_SWEEPS, VARIANCE_ITERATIONS, WEIGHT_ITERATIONS = 0.6, 0.9, 2.5
# Times the root of the mean of k(x, x) − q(x, x), divided by s: iterations until weights are usable, and at most those
# of an evaluation (10 to 26 on kin40k and protein).
ITERATIONS_BY_NOISE, EVALUATION_BY_NOISE = 10.0, 30.0
# The chain rule with up to so many rows given computes half of K each time, not in the best order.
PROVED_WITH, PROVING_PASSES = 1024, 2.0
# Blocks of rows instead of points: rows given for each, operations for each row and pair of these, and points beside
# them, for bounds and variances.
GIVEN, BLOCK_OPERATIONS, BLOCK_POINTS = 512, 30.0, 700
FEWEST_BLOCKS = 16  # with fewer of them Cholesky is as cheap
FEW_ITERATIONS = 8.0  # with points: then a function is so smooth that they are the better preconditioner
TRIAL_ROWS = 2048  # products of which tell what those of all rows cost
TRIAL_NOISE = 0.1


@dataclass(frozen=True)
class EvaluationCost:
    """Operations and seconds of an evaluation with M points, from what the last one took."""

    n: int
    seconds_per_operation: float
    iterations: float = USUAL_ITERATIONS
    iterations_m: int = USUAL_M  # points with which there were so many iterations
    error_per_row: float = 0.0  # standard error of the estimate with as many points, in nats per row
    is_measured: bool = False  # or else only guessed
    kernel_pass: float = USUAL_PASS  # products that take as long as computing K once
    given: int = 0  # rows given for each block where blocks precondition, whatever the number of points

    @staticmethod
    def tried(kernel: Kernel, X: Tensor, memory: int, clock: Callable[[], float] = time.perf_counter) -> EvaluationCost:
        """As predicted from products with fewer rows."""
        n, rows = len(X), min(len(X), TRIAL_ROWS)
        product = StoredKernel(X[:rows], memory if stored_bytes(n, Storage.FLOAT32) <= memory else 0)
        product.update(kernel, TRIAL_NOISE)
        columns = torch.ones(rows, PROBES + 1, dtype=X.dtype, device=X.device)
        computing = fastest(lambda: product.update(kernel, TRIAL_NOISE), clock)
        seconds = fastest(lambda: product(columns), clock)
        kernel_pass = max(computing / max(seconds, 1e-9), 1.0) if product.storage is not Storage.NONE else 1.0
        return EvaluationCost(n, seconds * (n / rows) ** 2 / product_operations(n), kernel_pass=kernel_pass)

    def measured(self, m: int, seconds: float, iterations: int, error_per_row: float) -> EvaluationCost:
        """After an evaluation."""
        once = EvaluationCost(self.n, 1.0, iterations, m, error_per_row, True, self.kernel_pass, self.given)
        return replace(once, seconds_per_operation=max(seconds / once.predicted(m), MOST_SPEED))

    def after_sparse(self, m: int, left_over: float, noise_variance: float) -> EvaluationCost:
        """Before the first evaluation, with what a sparse GP leaves of k(x, x): the function may be a smooth one."""
        iterations = iterations_by_noise(left_over, noise_variance)
        if self.is_measured or not iterations < self.predicted_iterations(m):
            return self
        return replace(self, iterations=iterations, iterations_m=m)

    def elsewhere(self) -> EvaluationCost:
        """At another θ: what an operation takes is known, how many iterations it takes is not."""
        return EvaluationCost(self.n, self.seconds_per_operation, kernel_pass=self.kernel_pass)

    def after_weights(self, m: int, iterations: int) -> EvaluationCost:
        """After weights to rounding, which have taken so many iterations."""
        return replace(self, iterations=max(iterations / WEIGHT_ITERATIONS, 1.0), iterations_m=m)

    def predicted_iterations(self, m: int) -> float:
        """With m points; not more than there are rows, in exact arithmetic."""
        fewer: float = 1.0 if self.given else (self.iterations_m / m) ** ITERATIONS_POWER
        return min(max(self.iterations * fewer, 1.0), self.n)

    def sweeping(self, m: int) -> float:
        """Seconds of the sweeps of an evaluation, over points and over blocks."""
        each = SWEEP_OPERATIONS * m**2 + BLOCK_OPERATIONS * self.given**2
        return self.seconds_per_operation * self.n * each

    def with_blocks(self, m: int) -> EvaluationCost:
        """With blocks, which are predicted to cost as much as m points."""
        iterations = max(self.iterations_worth(m, self.predicted_iterations(m)), 1.0)
        return replace(self.elsewhere(), given=GIVEN, iterations=iterations, iterations_m=m)

    def iterations_worth(self, m: int, iterations: float) -> float:
        """With blocks, that cost as much as so many with m points."""
        points = replace(self, seconds_per_operation=1.0)
        saved = points.sweeping(m) - replace(points, given=GIVEN).sweeping(BLOCK_POINTS)
        return iterations + saved / product_operations(self.n)

    def solving(self, m: int) -> float:
        """Seconds of its conjugate gradients."""
        return self.seconds_per_operation * self.predicted_iterations(m) * product_operations(self.n)

    def computing(self, passes: float) -> float:
        """Seconds of computing K so many times."""
        return self.seconds_per_operation * passes * self.kernel_pass * product_operations(self.n)

    def predicted(self, m: int) -> float:
        """Seconds of an evaluation."""
        return self.sweeping(m) + self.solving(m) + self.computing(EVALUATION_PASSES)

    def finishing(self, m: int, columns: int) -> float:
        """Seconds of weights to rounding and, from so many further columns, variances, with points selected anew."""
        usual = COLUMNS_AS_READING + PROBES + 1.0
        together = min(VARIANCE_ITERATIONS, WEIGHT_ITERATIONS) if columns else 0.0
        alone = WEIGHT_ITERATIONS - together
        relative = together * (COLUMNS_AS_READING + columns + 1.0) + alone * (COLUMNS_AS_READING + 1.0)
        solving = relative / usual * self.solving(m)
        return FINISHING_SWEEPS * self.sweeping(m) + solving + self.computing(FINISHING_PASSES)

    def proving(self) -> float:
        """Seconds of bounds on log|K̂| by the chain rule that are worth having, one after the other."""
        return self.computing(PROVING_PASSES) + self.seconds_per_operation * chain_rule.flops(self.n, PROVED_WITH, 0)

    def cheapest(self, sizes: list[int]) -> int:
        """The number of points with which an evaluation takes about the least time, and is not too noisy."""
        factor = math.sqrt(self.error_per_row / MOST_ERROR)  # errors fall about with 1/M²
        share = LEAST_SHARE if self.iterations > NO_ITERATIONS else LEAST_WITHOUT
        least = self.iterations_m * max(factor, share) if self.is_measured else 0.0
        possible = [m for m in sizes if m >= least] or sizes[-1:]
        counted = replace(self, seconds_per_operation=1.0, kernel_pass=USUAL_PASS)  # since a clock decides nothing
        most = NEARLY_AS_CHEAP * min(map(counted.predicted, possible))
        return max(m for m in possible if counted.predicted(m) <= most)

    def least_noise(self, seconds: float) -> float:
        """The smallest noise variance, relative to what P leaves of k(x, x), with which weights are found in this time.

        Iterations grow with the root of its inverse; those of three data sets were about 5 to 15 times it until weights
        were usable.
        """
        column = (COLUMNS_AS_READING + 1.0) / (COLUMNS_AS_READING + PROBES + 1.0)
        product = self.seconds_per_operation * column * product_operations(self.n)
        return (ITERATIONS_BY_NOISE * product / max(seconds, product)) ** 2

    def most_points(self, sizes: list[int], seconds: float) -> int:
        """That can be selected, and a sparse GP with them be computed, within this time."""
        return max([m for m in sizes if FINISHING_SWEEPS * self.sweeping(m) <= seconds] or sizes[:1])


def iterations_by_noise(left_over: float, noise_variance: float) -> float:
    """Of an evaluation, from what points leave of k(x, x)."""
    return max(EVALUATION_BY_NOISE * math.sqrt(max(left_over, 0.0) / noise_variance), 1.0)


def variance_seconds(weight_seconds: float, columns: int) -> float:
    """What variances from so many columns take, from what the weights took."""
    share = VARIANCE_ITERATIONS / WEIGHT_ITERATIONS
    return share * weight_seconds * (COLUMNS_AS_READING + columns + 1.0) / (COLUMNS_AS_READING + 1.0)


def product_operations(n: int) -> float:
    """Of K with y and the probes."""
    return PRODUCT_OPERATIONS * n**2 * (PROBES + 1)


def possible_sizes(kernel: Kernel, n: int, n_features: int, memory: int) -> list[int]:
    """Numbers of points for which V can be kept, and K beside it where there is room for that with any of them.

    None where memory is too small for the fewest points: every iteration needs V.
    """
    most = max(int(LARGEST_SHARE * n), 1)
    rooms = {m: _room(kernel, n, n_features, memory, m) for m in dict.fromkeys(min(size, most) for size in SIZES)}
    with_V = [m for m, room in rooms.items() if room >= 0]
    with_K = [m for m in with_V if rooms[m] >= stored_bytes(n, Storage.FLOAT32)]
    return with_K or with_V


def blocks_fit(kernel: Kernel, n: int, n_features: int, memory: int) -> bool:
    """Whether there is room for blocks and points beside them, and for K too if points alone leave room for that."""
    if n < FEWEST_BLOCKS * block_rows(GIVEN):
        return False
    alone = _room(kernel, n, n_features, memory, SIZES[0])
    beside = _room(kernel, n, n_features, memory - blocks_memory(kernel, n, GIVEN), BLOCK_POINTS)
    return beside >= (stored_bytes(n, Storage.FLOAT32) if alone >= stored_bytes(n, Storage.FLOAT32) else 0)


def _room(kernel: Kernel, n: int, n_features: int, memory: int, m: int) -> int:
    """Bytes left beside m points with V; less than none where that does not fit."""
    budget = memory - held_memory(m) - solving_memory(kernel, n)
    try:
        plan = MemoryPlan.within(budget, kernel, n, m, n_features)
    except ValueError:  # not even a chunk fits
        return -1
    return budget - plan.memory if plan.keeps_v else -1


def iterative_fits(
    kernel: Kernel, X: Tensor, time_limit: float, memory_limit: MemoryLimit, *, evaluations: float
) -> bool:
    """Whether so many evaluations of the exact likelihood by conjugate gradients fit into the limits, as predicted.

    Weights at the θ of a search, with the search, take about as long as 1.2 of them.
    """
    memory = memory_budget(memory_limit, X.device)
    if not possible_sizes(kernel, len(X), kernel.features(X[:1], X[0]).shape[1], memory):
        return False
    if math.isinf(time_limit):
        return True
    cost = EvaluationCost.tried(kernel, X, memory)
    return evaluations * (cost.solving(USUAL_M) + cost.computing(EVALUATION_PASSES)) <= time_limit


def rough_evaluation_seconds(kernel: Kernel, X: Tensor, memory: int) -> float:
    """What an evaluation by conjugate gradients may take if the function is a rough one."""
    return EvaluationCost.tried(kernel, X, memory).predicted(USUAL_M)
