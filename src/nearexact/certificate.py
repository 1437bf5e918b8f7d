"""How near a sparse GP is to the exact one: bounds on the log marginal likelihood at its θ, and a verdict.

The exact log marginal likelihood lies between `lower` and `upper`, whatever it is. The verdict puts their distance, and
what a larger M would change, into words.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from nearexact.gp.bounds import LikelihoodBounds
from nearexact.noise_only import explains_nothing
from nearexact.notebook import certificate_html

Verdict = Literal["certified", "converged", "not reached", "no better than noise"]
NEAR_EXACT = ("certified", "converged")

CERTIFIED_GAP = 0.01  # nats per point
CONVERGED_CHANGE = 0.002  # of the ELBO's distance to the constant predictor's log likelihood
CONVERGED_STEPS = 2  # steps up in M, one after the other, that must have changed so little


@dataclass(frozen=True, repr=False)
class Certificate:
    """Bounds on the exact log marginal likelihood at a model's hyperparameters, in nats, and what they amount to."""

    lower: float
    upper: float
    elbo: float  # the standard one (Titsias 2009), whatever the model was trained with
    n: int  # training points
    verdict: Verdict
    trace_gap: float = math.nan  # the part of upper − lower due to the log determinant: what Z does not explain of K
    residual_gap: float = math.nan  # the part due to the quadratic form: how well the data were fitted exactly
    iterations: int = 0  # of conjugate gradients
    seconds: float = 0.0  # that it took to find these bounds; 0 if they came with the fit

    @staticmethod
    def of(bounds: LikelihoodBounds, verdict: Verdict, *, iterations: int = 0, seconds: float = 0.0) -> Certificate:
        """What these bounds amount to."""
        return Certificate(
            lower=bounds.lower,
            upper=bounds.upper,
            elbo=bounds.elbo,
            n=bounds.n,
            verdict=verdict,
            trace_gap=bounds.trace_gap,
            residual_gap=bounds.residual_gap,
            iterations=iterations,
            seconds=seconds,
        )

    @property
    def gap_per_point(self) -> float:
        """(upper − lower)/N: how much of a data point's log likelihood is uncertain, at most."""
        return (self.upper - self.lower) / self.n

    @property
    def kl_bound(self) -> float:
        """Bound on the Kullback-Leibler divergence from the approximate to the exact posterior: LML − ELBO at most."""
        return self.upper - self.elbo

    @property
    def dominated_by(self) -> Literal["trace", "residual", "unknown"]:
        """What most of the gap comes from.

        "trace": the inducing points explain too little of K, and only more of them help. "residual": the bounds on the
        quadratic form are loose, and iterations of conjugate gradients (`certify`) help.
        """
        if math.isnan(self.trace_gap) or math.isnan(self.residual_gap):
            return "unknown"
        return "trace" if self.trace_gap >= self.residual_gap else "residual"

    def __str__(self) -> str:
        return (
            f"{self.verdict}: {self.lower:.6g} <= log marginal likelihood <= {self.upper:.6g},"
            f" gap {self.gap_per_point:.2g} nats per point"
        )

    def __repr__(self) -> str:
        cost = f"{self.iterations} CG iterations, {self.seconds:.1f} s" if self.seconds else "came with the fit"
        parts = (
            "parts not known"
            if self.dominated_by == "unknown"
            else f"mostly {self.dominated_by}: {self.trace_gap:.4g} trace + {self.residual_gap:.4g} residual"
        )
        return "\n".join(
            [
                f"Certificate: {self.verdict}",
                f"  log marginal likelihood  {self.lower:.8g} to {self.upper:.8g} nats",
                f"  gap per point            {self.gap_per_point:.3g} nats (certified below {CERTIFIED_GAP:g})",
                f"  gap                      {parts}",
                f"  KL to exact posterior    at most {self.kl_bound:.4g} nats",
                f"  cost                     {cost}",
            ]
        )

    def _repr_html_(self) -> str:
        return certificate_html(self)


def judge(
    lower: float, upper: float, elbos: Sequence[float], noise_only: float, n: int, *, elbo: float | None = None
) -> Verdict:
    """The verdict on a model with these bounds.

    `elbos` are those of growing M, which must have led to this model; `noise_only` is the log likelihood of the
    constant predictor. `elbo` is the model's own, if `lower` is another bound. Noise comes first: a model that explains
    nothing is near to the exact one that explains nothing.
    """
    elbo = lower if elbo is None else elbo
    if explains_nothing(elbo, noise_only, n):
        return "no better than noise"
    if -CERTIFIED_GAP * n < upper - lower < CERTIFIED_GAP * n:  # bounds far out of order are a numerical failure
        return "certified"
    if len(elbos) > CONVERGED_STEPS:
        worth = abs(elbos[-1] - noise_only)
        last = [*elbos[-CONVERGED_STEPS - 1 :], elbo]
        if all(abs(b - a) < CONVERGED_CHANGE * worth for a, b in pairwise(last)):
            return "converged"
    return "not reached"
