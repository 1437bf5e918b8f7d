"""How near a sparse GP's bounds can be brought to the exact log marginal likelihood, within a time limit.

First the quadratic form, by conjugate gradients: each iteration takes time of order N² and cuts its gap by a factor.
Then the log determinant, by its moments: that takes as long as about M/10 iterations, once, and needs room for two
arrays [N, M]; where there is none, the bounds of the sparse GP itself remain. Of an exact GP whose weights are known,
the quadratic form is known too, and its sparse GP may be a poor one: there the log determinant is bounded by the chain
rule.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from nearexact.gp import log_determinant
from nearexact.gp.bounds import Interval, LikelihoodBounds
from nearexact.gp.budget import TimeIsUpError, Timer
from nearexact.gp.chain_rule import log_det_bounds
from nearexact.gp.factorisation import Factorisation
from nearexact.gp.quadratic import SETTLED_PER_POINT, Iteration, conjugate_gradients, quadratic_of
from nearexact.gp.sparse import SparseObjective

logger = logging.getLogger(__name__)

MOST_ITERATIONS = 100


@dataclass(frozen=True)
class TightenedBounds:
    """What came out of it."""

    bounds: LikelihoodBounds
    iterations: int  # of conjugate gradients
    seconds: float
    finished: bool  # or else the time limit came first


def tighten_bounds(
    objective: SparseObjective,
    f: Factorisation,
    *,
    bounds: LikelihoodBounds | None = None,
    iterations: int = MOST_ITERATIONS,
    time_limit: float = math.inf,
    tolerance: float | None = None,
    on_iteration: Callable[[Iteration], None] = lambda iteration: None,
    on_share: Callable[[float], None] = lambda share: None,
    clock: Callable[[], float] = time.perf_counter,
) -> TightenedBounds:
    """The bounds of a sparse GP's last factorisation, or others that are known already, tightened.

    `iterations` of conjugate gradients at most, and fewer where more would not help (see there for the `tolerance`);
    `time_limit` in seconds. `on_iteration` is called after each, `on_share` with the share of the moments' work that is
    done. Nothing that takes time of order N² is done for `iterations=0`.
    """
    timer = Timer(time_limit, clock)
    bounds, number, finished = f.bounds if bounds is None else bounds, 0, True
    if iterations:
        try:
            for iteration in conjugate_gradients(
                objective, f, bounds=bounds, tolerance=tolerance, check=timer.check, clock=clock
            ):
                bounds, number = iteration.bounds, iteration.number
                on_iteration(iteration)
                if number == iterations:
                    break
            if bounds.trace_gap > SETTLED_PER_POINT * f.n and log_determinant.fits(objective):
                logs = log_determinant.unexplained(objective, f, check=timer.check, on_share=on_share).sum_of_logs()
                error = f.n * f.residual_error / f.noise_variance
                bounds = bounds.meet(log_det=Interval(f.log_det + logs.lower - error, f.log_det + logs.upper + error))
        except TimeIsUpError:
            finished = False
    seconds = timer.seconds()
    logger.info("bounds %.8g to %.8g after %d iterations, %.1f s", bounds.lower, bounds.upper, number, seconds)
    return TightenedBounds(bounds, number, seconds, finished)


def bounds_with_weights(
    objective: SparseObjective,
    f: Factorisation,
    weights: Tensor,
    *,
    time_limit: float = math.inf,
    clock: Callable[[], float] = time.perf_counter,
) -> LikelihoodBounds:
    """What is known of the exact GP whose weights have been found: no iteration is needed for its quadratic form.

    The sparse GP then is no more than what these were preconditioned with: the chain rule tells more of log|K̂|.
    """
    timer, bounds = Timer(time_limit, clock), f.bounds
    try:
        bounds = bounds.meet(quadratic=quadratic_of(objective, f, weights, timer.check))
    except TimeIsUpError:
        return bounds
    kernel, s, X, row_noise = f.kernel, f.noise_variance, objective.X, objective.row_noise
    for upper, _ in log_det_bounds(kernel, s, X, timer=timer, memory=objective.spare_memory, row_noise=row_noise):
        bounds = bounds.meet(log_det=Interval(upper=upper))
    return bounds
