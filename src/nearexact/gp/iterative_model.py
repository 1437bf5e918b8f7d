"""The model that training by conjugate gradients holds: a sparse GP at first, then the exact one, better and better."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from torch import Tensor

from nearexact.evidence import STANDARD_ERRORS
from nearexact.gp.bounds import Interval, LikelihoodBounds
from nearexact.gp.factorisation import Factorisation
from nearexact.gp.iterative import Estimate
from nearexact.gp.iterative_posterior import IterativePosterior, ModelSolver
from nearexact.gp.neighbours import Extrapolation
from nearexact.gp.posterior import ExactPosterior, SparsePosterior
from nearexact.gp.row_noise import RowNoise
from nearexact.gp.safety import NumericalError, Repairs
from nearexact.gp.stages import Stage, StageEnd
from nearexact.typing import FloatArray

AIMED_ERROR = 1e-4  # of the mean in the end, in standard deviations of the noise


@dataclass(frozen=True, eq=False)
class HeldModel:
    """A model at one θ."""

    theta: FloatArray
    value: float  # the estimate, or the ELBO
    bounds: LikelihoodBounds  # proved
    points: int
    jitter: float
    posterior: SparsePosterior | IterativePosterior | ExactPosterior
    estimate: Estimate | None = None
    iterations: int = 0  # that the weights have taken in the end
    given: int = 0  # rows given for each block, where blocks preconditioned
    left_over: float = math.nan  # mean of k(x, x) − q(x, x) of a sparse GP

    @property
    def is_finished(self) -> bool:
        """Whether this is the exact GP, with weights to rounding and variances as far as there was time for them."""
        return isinstance(self.posterior, ExactPosterior) or self.iterations > 0

    @staticmethod
    def sparse(theta: FloatArray, f: Factorisation) -> HeldModel:
        """A sparse GP."""
        if not math.isfinite(f.elbo):
            raise NumericalError("tr(K − Q) is negative by more than rounding")
        left_over = math.nan if f.residuals is None else float(f.residuals.nanmean())
        return HeldModel(theta, f.elbo, f.bounds, len(f.Z), f.jitter, f.posterior(), left_over=left_over)

    @staticmethod
    def estimated(
        theta: FloatArray, estimate: Estimate, X: Tensor, y: Tensor, row_noise: RowNoise | None = None, given: int = 0
    ) -> HeldModel:
        """The exact GP, as far as an evaluation gives it: its variances are upper bounds."""
        f, weights = estimate.factorisation, estimate.solution
        none = Extrapolation.none(weights)
        posterior = IterativePosterior.of(f, X, y, weights, estimate.residual_bound, none, row_noise)
        return HeldModel(theta, estimate.value, estimate.bounds, len(f.Z), f.jitter, posterior, estimate, given=given)

    def finished(self, solver: ModelSolver, seed: int, rows: int) -> HeldModel:
        """The exact GP with weights to rounding, and variances that are extrapolated to all rows from so many of them.

        Where time is up before that, its weights are nearly right, and its variances upper bounds.
        """
        weights = self.posterior.weights if isinstance(self.posterior, IterativePosterior) else None
        end, data = solver.finish(weights, AIMED_ERROR, seed, rows), solver.objective
        posterior = IterativePosterior.of(
            solver.factorisation, data.X, data.y, end.weights, end.residual_bound, end.variances, data.row_noise
        )
        bounds = self.bounds.meet(quadratic=end.quadratic, log_det=solver.log_det)
        value = self.value if self.estimate is not None else bounds.lower
        points = len(posterior.Z)
        return replace(self, value=value, bounds=bounds, points=points, posterior=posterior, iterations=end.iterations)

    def with_log_det_below(self, bound: float) -> HeldModel:
        """The same, where log|K̂| is known to be no larger than this; then no estimate of the likelihood is too low."""
        bounds, estimate = self.bounds.meet(log_det=Interval(upper=bound)), self.estimate
        if estimate is not None:
            estimate = replace(estimate, value=max(estimate.value, bounds.lower), bounds=bounds)
        return replace(self, value=max(self.value, bounds.lower), bounds=bounds, estimate=estimate)

    def factorised(self, posterior: ExactPosterior) -> HeldModel:
        """The same by one Cholesky factor: nothing is estimated any more."""
        return replace(self, value=posterior.lml, bounds=posterior.bounds, jitter=posterior.jitter, posterior=posterior)

    def stage(
        self,
        *,
        n: int,
        seconds: float,
        elapsed: float,
        evaluations: int,
        restarts: int,
        repairs: Repairs,
        end: StageEnd,
        stopped: str,
    ) -> Stage:
        """What the history says about it."""
        return Stage(
            n=n,
            scheduled_m=self.points,
            m=self.points,
            objective=self.value,
            lower_bound=self.bounds.lower,
            upper_bound=self.bounds.upper,
            kernel=self.posterior.kernel,
            noise_variance=self.posterior.noise_variance,
            seconds=seconds,
            elapsed=elapsed,
            evaluations=evaluations,
            reselections=0,
            restarts=restarts,
            rescues=0,
            jitter=self.jitter,
            repairs=repairs,
            end=end,
            stopped=stopped,
        )


@dataclass(frozen=True)
class Difference:
    """Between the exact likelihoods of two models, as far as it is known: estimates have errors of their own."""

    likely: float
    error: float  # two standard errors

    @staticmethod
    def between(model: HeldModel, other: HeldModel) -> Difference:
        """By how much the first is higher."""
        errors = [0.0 if m.estimate is None else m.estimate.standard_error for m in (model, other)]
        return Difference(model.value - other.value, STANDARD_ERRORS * math.hypot(*errors))

    @property
    def is_certain(self) -> bool:
        """Whether the first one is higher, about whatever the estimates hide."""
        return self.likely > self.error

    @property
    def most(self) -> float:
        """Nats by which it may be higher."""
        return self.likely + self.error
