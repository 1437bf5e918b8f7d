"""The end of training by conjugate gradients: the exact GP at the θ that was found, in what is left of the time."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from nearexact.gp.budget import TimeIsUpError
from nearexact.gp.factorisation import Factorisation
from nearexact.gp.iterative_cost import variance_seconds
from nearexact.gp.iterative_model import HeldModel
from nearexact.gp.iterative_plan import IterativePlan
from nearexact.gp.iterative_posterior import IterativePosterior
from nearexact.gp.iterative_workbench import Workbench
from nearexact.gp.nearest_density import best_noise
from nearexact.gp.neighbours import CALIBRATION_ROWS
from nearexact.gp.safety import NumericalError
from nearexact.typing import FloatArray

logger = logging.getLogger(__name__)

Keep = Callable[[HeldModel], None]

# Of what is left, where there is time for no more than one solution: for the weights, and for selecting points.
SOLVING_SHARE, SELECTING_SHARE = 0.5, 0.1
CHECKING_PASSES = 1.5  # over K: one that may take longer than predicted


class Finishing:
    """Turns the model of an evaluation, or a sparse one where there was time for none, into the exact GP."""

    def __init__(self, workbench: Workbench, plan: IterativePlan) -> None:
        self.workbench, self.plan = workbench, plan
        self._tried_to_solve = False  # without an evaluation

    def finish(self, model: HeldModel, keep: Keep) -> None:
        """Weights to rounding, and variances. Each better model is kept at once: the next may not come in time."""
        if model.is_finished:
            return
        if self.plan.has_time_to_factorise():
            try:
                keep(self.workbench.factorised(model))
                return
            except NumericalError as error:
                logger.info("no Cholesky factor at the end: %s", error)
        try:
            if model.estimate is not None:
                self._solve(model, keep)
            elif self.plan.sizes and not self._tried_to_solve:
                self._tried_to_solve = True
                self.plan.consider_blocks()
                self._solve_once_somehow(model, keep)
        except TimeIsUpError:
            logger.info("time was up before the model was finished")
        except NumericalError as error:
            logger.warning("the model could not be finished: %s", error)
        finally:
            self.workbench.release()

    def prove(self, model: HeldModel, keep: Keep) -> None:
        """Tighten what is proved about the likelihood of the exact GP, where there is no factor that tells it."""
        if isinstance(model.posterior, IterativePosterior):
            for bound in self.workbench.log_det_bounds(model):
                keep(model.with_log_det_below(bound))

    def _solve(self, model: HeldModel, keep: Keep) -> None:
        started, (m, rows) = self.plan.timer.seconds(), self.plan.finishing(self.plan.left_to_finish())
        solver = self.workbench.solver(model, m, model.given)
        keep(model.finished(solver, self.workbench.new_seed(), rows))
        logger.info(
            "finished with M=%d and %d rows in %.1f s, %.1f predicted", m, rows, self.plan.timer.seconds() - started,
            self.plan.cost.finishing(m, rows),
        )  # fmt: skip

    def _solve_once_somehow(self, model: HeldModel, keep: Keep) -> None:
        """With blocks where a function is rough; with points where these do not do."""
        try:
            self._solve_once(model, keep)
        except NumericalError as error:
            if not self.plan.cost.given or not self.plan.has_another(model.points):
                raise
            logger.info("no solution with blocks: %s", error)
            self._solve_once(model, keep)

    def _solve_once(self, model: HeldModel, keep: Keep) -> None:
        """The exact GP at the θ of the search, where there was no time for an evaluation: the mean, then variances."""
        timer, cost = self.plan.timer, self.plan.cost
        m = cost.most_points(self.plan.sizes, SELECTING_SHARE * self.plan.left_to_finish())
        if cost.given:
            m = min(m, self.plan.points())
        solver, seed = self.workbench.solver(model, m, cost.given), self.workbench.new_seed()
        sparse = HeldModel.sparse(model.theta, solver.factorisation)
        keep(sparse)
        theta = self._with_enough_noise(model.theta, solver.factorisation)
        if theta is not model.theta:
            solver = self.workbench.solver(replace(sparse, theta=theta), sparse.points, cost.given)
            sparse = HeldModel.sparse(theta, solver.factorisation)
            keep(sparse)
        computing = cost.computing(CHECKING_PASSES)  # K again, if time is up before the weights are right
        solver.check = lambda: timer.require(computing)
        started = timer.seconds()
        exact = sparse.finished(solver, seed, 0)
        keep(exact)
        self.plan.learn_from_weights(exact.points, exact.iterations)
        seconds = timer.seconds() - started
        rows = next(
            (rows for rows in CALIBRATION_ROWS if variance_seconds(seconds, rows) <= self.plan.left_to_finish()), 0
        )
        if rows:
            keep(exact.finished(solver, seed, rows))

    def _with_enough_noise(self, theta: FloatArray, f: Factorisation) -> FloatArray:
        """θ, or one with more noise, at which the weights can be found in time."""
        assert f.residuals is not None
        bench, layout = self.workbench, self.workbench.layout
        share = self.plan.cost.least_noise(SOLVING_SHARE * self.plan.left_to_finish())
        least, (kernel, noise) = share * float(f.residuals.nanmean()), layout.unpack(theta)
        if noise >= least:
            return theta
        most = layout.numerics.noise_bounds[1]
        if least > most:
            return theta
        noise, _ = best_noise(kernel, least, bench.X, bench.y, bench.row_noise, most=most)
        logger.info("with noise of %.2g there is no time for the exact GP: with %.2g", f.noise_variance, noise)
        more = layout.pack(kernel, noise)
        return more if layout.bounds is None else np.clip(more, *layout.bounds)
