"""Towards the optimum on a sparse GP's bound, where that is nearly the exact likelihood and far cheaper.

Where few inducing points explain nearly all of K, conjugate gradients need next to no iterations, and an evaluation
takes what computing K does, for all pairs of rows. The bound takes sweeps over the data alone. What it gives is proved
about the exact likelihood, so that θ never becomes worse by it.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable

from nearexact.gp.budget import TimeIsUpError
from nearexact.gp.iterative_model import HeldModel
from nearexact.gp.iterative_plan import IterativePlan
from nearexact.gp.iterative_workbench import Workbench
from nearexact.gp.nearest_density import log_densities, tested_rows
from nearexact.gp.optimise import LBFGSSettings, minimise
from nearexact.gp.parameters import LogCoordinates
from nearexact.gp.safety import NumericalError
from nearexact.gp.search import Search
from nearexact.typing import FloatArray

logger = logging.getLogger(__name__)

# Of k(x, x), relative to the noise, that a sparse GP with any points may leave for selected ones to be tried; and the
# share of the time that is left that one evaluation may take.
MOST_LEFT_OVER, TRYING_SHARE = 2.0, 0.05
TIGHT = 0.01  # nats per row that the bound may lose
LITTLE = 5e-4  # nats per row: a round that gains less is the last one
MOST_ROUNDS = 10  # each with points that are selected anew
# Of the density of rows given their nearest, in nats: few points may like a smoother θ than the exact GP would.
MOST_LOST = 0.03
TIME_SHARE = 0.6  # of what there is before the end of training
SETTINGS = LBFGSSettings(max_iterations=20, ftol=1e-7, first_step=0.3)


def ascend(
    bench: Workbench, plan: IterativePlan, search: Search, model: HeldModel, keep: Callable[[HeldModel], None]
) -> None:
    """Hand over models with ever higher bounds, the first one at the θ of this model; none where the bound is loose."""
    m, n = plan.points_of_bound() if search.rounds else 0, len(bench.y)
    is_rough = model.left_over > MOST_LEFT_OVER * model.posterior.noise_variance
    if is_rough or plan.cost.sweeping(m) > TRYING_SHARE * plan.timer.left():
        return
    end = plan.timer.seconds() + TIME_SHARE * (plan.timer.left() - plan.finishing_seconds())
    best, theta, highest = None, model.theta, -math.inf
    try:
        for _ in range(MOST_ROUNDS if m else 0):
            objective = bench.sparse_objective(theta, m)
            found = HeldModel.sparse(theta, objective.factorise(*bench.layout.unpack(theta), residuals=True))
            is_tight = found.left_over <= 2.0 * TIGHT * found.posterior.noise_variance
            gain = (found.bounds.lower - best.bounds.lower) / n if best is not None else None
            density = _density(bench, theta)
            if not is_tight if gain is None else gain <= 0.0 or density < highest - MOST_LOST:
                return
            highest = max(density, highest)
            keep(found)
            logger.info("a sparse GP with M=%d: bound %.8g after %.1f s", m, found.value, plan.timer.seconds())
            left = end - plan.timer.seconds()
            if not is_tight or (gain is not None and gain <= LITTLE) or left <= plan.cost.sweeping(m):
                return
            best, curvature = found, search.curvature(theta, n)
            optimum = minimise(
                LogCoordinates.objective(objective),
                LogCoordinates.from_theta(theta),
                bounds=LogCoordinates.bounds(bench.layout.bounds),
                time_limit=left,
                settings=SETTINGS,
                curvature=None if curvature is None else n * curvature,
                clock=plan.timer.clock,
            )
            bench.count_sweeps(optimum.evaluations, m)
            theta = LogCoordinates.to_theta(optimum.theta)
    except (NumericalError, TimeIsUpError) as error:
        logger.info("an ascent on a sparse GP's bound ended early: %s", error)


def _density(bench: Workbench, theta: FloatArray) -> float:
    """Mean log density of some rows, each given the rows that are nearest to it among all: what the exact GP says."""
    kernel, noise = bench.layout.unpack(theta)
    return float(log_densities(kernel, [noise], bench.X, bench.y, tested_rows(bench.X), bench.row_noise).mean())
