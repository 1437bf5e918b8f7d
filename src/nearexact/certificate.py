"""How near a sparse GP is to the exact one: bounds on the log marginal likelihood at its θ, and a verdict.

The exact log marginal likelihood lies between `lower` and `upper`, whatever it is. The verdict puts their distance, and
what a larger M would change, into words.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from nearexact.gp.starts import explains_nothing

Verdict = Literal["certified", "converged", "not reached", "no better than noise"]
NEAR_EXACT = ("certified", "converged")

CERTIFIED_GAP = 0.01  # nats per point
CONVERGED_CHANGE = 0.002  # of the ELBO's distance to the constant predictor's log likelihood
CONVERGED_STEPS = 2  # steps up in M, one after the other, that must have changed so little


@dataclass(frozen=True)
class Certificate:
    """Bounds on the exact log marginal likelihood at a model's hyperparameters, in nats, and what they amount to."""

    lower: float
    upper: float
    elbo: float  # the bound that the model was trained with
    n: int  # training points
    verdict: Verdict

    @property
    def gap_per_point(self) -> float:
        """(upper − lower)/N: how much of a data point's log likelihood is uncertain, at most."""
        return (self.upper - self.lower) / self.n

    @property
    def kl_bound(self) -> float:
        """Bound on the Kullback-Leibler divergence from the approximate to the exact posterior: LML − ELBO at most."""
        return self.upper - self.elbo

    def __str__(self) -> str:
        return (
            f"{self.verdict}: {self.lower:.6g} <= log marginal likelihood <= {self.upper:.6g},"
            f" gap {self.gap_per_point:.2g} nats per point"
        )


def judge(lower: float, upper: float, elbos: Sequence[float], noise_only: float, n: int) -> Verdict:
    """The verdict on a model with these bounds.

    `elbos` are those of growing M, which must have led to this model; `noise_only` is the log likelihood of the
    constant predictor. Noise comes first: a model that explains nothing is near to the exact one that explains nothing.
    """
    if explains_nothing(lower, noise_only, n):
        return "no better than noise"
    if -CERTIFIED_GAP * n < upper - lower < CERTIFIED_GAP * n:  # bounds far out of order are a numerical failure
        return "certified"
    if len(elbos) > CONVERGED_STEPS:
        worth = abs(elbos[-1] - noise_only)
        last = [*elbos[-CONVERGED_STEPS - 1 :], lower]
        if all(abs(b - a) < CONVERGED_CHANGE * worth for a, b in pairwise(last)):
            return "converged"
    return "not reached"
