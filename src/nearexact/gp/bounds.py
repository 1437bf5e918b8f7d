"""Bounds on a log marginal likelihood, as bounds on its two parts: the log determinant and the quadratic form.

With K̂ = K + sI the likelihood is −½(N log 2π + log|K̂| + yᵀK̂⁻¹y); that of several targets is the sum of theirs. Every
inequality that is known about one part may be combined with every inequality about the other, so that what several
methods prove together is never looser than what one of them proves alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Interval:
    """A number that lies between two others; an end that is not known is infinite."""

    lower: float = -math.inf
    upper: float = math.inf

    @property
    def width(self) -> float:
        """How much is not known."""
        return self.upper - self.lower

    def meet(self, other: Interval) -> Interval:
        """What both of them prove."""
        return Interval(max(self.lower, other.lower), min(self.upper, other.upper))


@dataclass(frozen=True)
class LikelihoodBounds:
    """Where the exact log marginal likelihood of n points lies, in nats, and the ELBO of the model in question."""

    n: int
    elbo: float  # the standard one (Titsias 2009): the likelihood exceeds it by KL[approximate ‖ exact posterior]
    log_det: Interval  # log|K̂|
    quadratic: Interval  # yᵀK̂⁻¹y, summed over the targets
    targets: int = 1

    @staticmethod
    def exact(n: int, log_det: float, quadratic: float, targets: int = 1, error: float = 0.0) -> LikelihoodBounds:
        """Where both parts are known; the likelihood of each target up to an `error`, in nats."""
        elbo = likelihood(n, log_det, quadratic, targets)
        around = Interval(log_det - 2.0 * error, log_det + 2.0 * error)
        return LikelihoodBounds(n, elbo, around, Interval(quadratic, quadratic), targets)

    @property
    def lower(self) -> float:
        """The likelihood is not less than this."""
        return likelihood(self.n, self.log_det.upper, self.quadratic.upper, self.targets)

    @property
    def upper(self) -> float:
        """The likelihood is not more than this."""
        return likelihood(self.n, self.log_det.lower, self.quadratic.lower, self.targets)

    @property
    def trace_gap(self) -> float:
        """The part of upper − lower that comes from the log determinant, that is from tr(K − Q)."""
        return 0.5 * self.targets * self.log_det.width

    @property
    def residual_gap(self) -> float:
        """The part of upper − lower that comes from the quadratic form, that is from how well K̂v = y is solved."""
        return 0.5 * self.quadratic.width

    def meet(self, *, log_det: Interval | None = None, quadratic: Interval | None = None) -> LikelihoodBounds:
        """These bounds and others together."""
        return LikelihoodBounds(
            self.n,
            self.elbo,
            self.log_det.meet(log_det or Interval()),
            self.quadratic.meet(quadratic or Interval()),
            self.targets,
        )


def likelihood(n: int, log_det: float, quadratic: float, targets: int = 1) -> float:
    """−½(N log 2π + log|K̂| + yᵀK̂⁻¹y), summed over targets that share K̂."""
    return -0.5 * (targets * (n * math.log(2.0 * math.pi) + log_det) + quadratic)
