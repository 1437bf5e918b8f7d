"""How near a model is to the exact GP: what is proved at its θ, what speaks for this θ, and a verdict on both.

At θ, the exact log marginal likelihood lies between `lower` and `upper`. That says nothing about other θ: a smooth
model with a gap of nearly 0 may be far worse than the exact GP, which would choose another θ. So a verdict of
near-exactness needs evidence too: exact likelihoods of a subset of the rows, at θ and at whatever a search from many
starts has found.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from typing import TYPE_CHECKING, Literal, NamedTuple

from nearexact.evidence import CERTIFIED_GAP, FEWEST_AGREEING, STANDARD_ERRORS, Evidence, are_enough
from nearexact.noise_only import explains_nothing
from nearexact.notebook import certificate_html
from nearexact.verdict_colours import PALETTES, VERDICT_KINDS, Palette

if TYPE_CHECKING:
    from nearexact.gp.bounds import LikelihoodBounds

Verdict = Literal["exact", "certified", "converged", "not reached", "no better than noise"]  # from best to worst
NEAR_EXACT: tuple[Verdict, ...] = ("exact", "certified", "converged")

CONVERGED_CHANGE = 0.002  # of the ELBO's distance to the constant predictor's log likelihood
CONVERGED_STEPS = 2  # steps up in M, one after the other, that must have changed so little
NEGLIGIBLE_ERROR = 0.01  # of a mean, in standard deviations of the noise
SUBSET_CAUTION = 2.0  # what a subset shows may be so many times as large on all rows


class Doubt(StrEnum):
    """Why evidence does not support a model's hyperparameters θ."""

    NOT_COMPARED = "not compared"  # there is no evidence
    STILL_RISING = "still rising"  # the optimiser was not done
    FOUND_ONCE = "found once"  # no two starts of the search agree on the best
    FOUND_RARELY = "found rarely"  # some do, but of so many that a better one may have been missed
    BOUND_TOO_LOW = "bound too low"  # θ is good, but what is proved about the model there is not
    BETTER_ELSEWHERE = "better elsewhere"  # another θ has a higher exact likelihood


class Estimate(NamedTuple):
    """Of the exact log marginal likelihood, by random probes: nothing is proved by it."""

    value: float
    standard_error: float


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
    evidence: Evidence | None = None  # what speaks for θ; None if nobody has looked
    # The likelihood itself where it was estimated by random probes, which proves nothing, and its standard error.
    estimate: float | None = None
    standard_error: float | None = None

    @staticmethod
    def of(
        bounds: LikelihoodBounds,
        verdict: Verdict,
        evidence: Evidence | None = None,
        *,
        iterations: int = 0,
        seconds: float = 0.0,
        estimate: Estimate | None = None,
    ) -> Certificate:
        """What these bounds and this evidence amount to."""
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
            evidence=evidence,
            estimate=None if estimate is None else estimate.value,
            standard_error=None if estimate is None else estimate.standard_error,
        )

    @property
    def about_theta(self) -> str:
        """What speaks for the hyperparameters, in words."""
        return "not compared with others" if self.evidence is None else self.evidence.in_words(self.n)

    @property
    def doubt(self) -> Doubt | None:
        """Why the evidence does not support the hyperparameters, if it does not."""
        return doubt_about(self.evidence, self.lower, self.n)

    @property
    def gap_per_point(self) -> float:
        """(upper − lower)/N: how much of a data point's log likelihood is uncertain, at most."""
        return (self.upper - self.lower) / self.n

    @property
    def kl_bound(self) -> float:
        """Bound on the Kullback-Leibler divergence from the approximate to the exact posterior: LML − ELBO at most."""
        return self.upper - self.elbo

    @property
    def divergence(self) -> str:
        """The same in words; empty where the likelihood was estimated: then the posterior is the exact one.

        The ELBO is that of the sparse GP which conjugate gradients were preconditioned with.
        """
        return "" if self.estimate is not None else f"at most {self.kl_bound:.4g} nats"

    @property
    def palette(self) -> Palette:
        """The colours in which the verdict is shown."""
        return PALETTES[VERDICT_KINDS.get(self.verdict, "plain")]

    @property
    def dominated_by(self) -> Literal["trace", "residual", "unknown"]:
        """What most of the gap comes from.

        "trace": the inducing points explain too little of K, and only more of them help. "residual": the bounds on the
        quadratic form are loose, and iterations of conjugate gradients (`certify`) help.
        """
        if math.isnan(self.trace_gap) or math.isnan(self.residual_gap):
            return "unknown"
        return "trace" if self.trace_gap >= self.residual_gap else "residual"

    @property
    def known_estimate(self) -> Estimate | None:
        """The estimate with its standard error, where there is one."""
        if self.estimate is None or self.standard_error is None:
            return None
        return Estimate(self.estimate, self.standard_error)

    @property
    def estimated(self) -> str:
        """The same in words, empty where there is none."""
        if self.estimate is None or self.standard_error is None:
            return ""
        return f"estimated as {self.estimate:.6g} ± {self.standard_error:.2g} (standard error)"

    def __str__(self) -> str:
        estimated = f", {self.estimated}" if self.estimated else ""
        return (
            f"{self.verdict}: {self.lower:.6g} <= log marginal likelihood <= {self.upper:.6g}{estimated},"
            f" gap {self.gap_per_point:.2g} nats per point; hyperparameters: {self.about_theta}"
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
                *([f"                           {self.estimated}"] if self.estimated else []),
                f"  gap per point            {self.gap_per_point:.3g} nats (certified below {CERTIFIED_GAP:g})",
                f"  gap                      {parts}",
                *([f"  KL to exact posterior    {self.divergence}"] if self.divergence else []),
                f"  hyperparameters          {self.about_theta}",
                f"  cost                     {cost}",
            ]
        )

    def _repr_html_(self) -> str:
        return certificate_html(self)


def judge(
    lower: float,
    upper: float,
    elbos: Sequence[float],
    noise_only: float,
    n: int,
    *,
    elbo: float | None = None,
    parameters: float | None = None,
) -> Verdict:
    """The verdict on a model with these bounds at its own θ; `confirm` asks whether this is the θ to be at.

    `elbos` are those of growing M, which must have led to this model; `noise_only` is the log likelihood of the
    constant predictor. `elbo` is the model's own, if `lower` is another bound; `parameters` is how many count
    against it. Noise comes first: a model that explains nothing is near to the exact one that explains nothing.
    """
    elbo = lower if elbo is None else elbo
    if explains_nothing(elbo, noise_only, n, parameters):
        return "no better than noise"
    if -CERTIFIED_GAP * n < upper - lower < CERTIFIED_GAP * n:  # bounds far out of order are a numerical failure
        return "certified"
    if len(elbos) > CONVERGED_STEPS:
        worth = abs(elbos[-1] - noise_only)
        last = [*elbos[-CONVERGED_STEPS - 1 :], elbo]
        if all(abs(b - a) < CONVERGED_CHANGE * worth for a, b in pairwise(last)):
            return "converged"
    return "not reached"


def judge_estimate(
    estimate: Estimate, noise_only: float, n: int, evidence: Evidence | None, mean_error: float
) -> Verdict:
    """The verdict on a model whose posterior is the exact one but for `mean_error`, at a θ found on this estimate.

    It is "exact" if the mean cannot be told from the exact one, the likelihood is known as well as a certified one, and
    the evidence supports θ. The estimate's own uncertainty counts against it throughout.
    """
    margin = STANDARD_ERRORS * estimate.standard_error
    lower, upper = estimate.value - margin, estimate.value + margin
    verdict = confirm(judge(lower, upper, [], noise_only, n), lower, n, evidence)
    if verdict == "certified":
        return "exact" if mean_error <= NEGLIGIBLE_ERROR else "not reached"
    return verdict


def confirm(verdict: Verdict, lower: float, n: int, evidence: Evidence | None) -> Verdict:
    """A verdict at θ, or "not reached" if it is one of near-exactness that the evidence does not support."""
    return "not reached" if verdict in NEAR_EXACT and doubt_about(evidence, lower, n) is not None else verdict


def doubt_about(evidence: Evidence | None, lower: float, n: int) -> Doubt | None:
    """Why the evidence does not support the θ of a model with this lower bound; None if it does.

    The exact likelihood of the rows of the search must hardly be higher anywhere else. Where these are all rows, the
    model's lower bound must come near the highest, too.
    """
    if evidence is None:
        return Doubt.NOT_COMPARED
    gain = math.nan if evidence.gain_per_row is None else evidence.gain_per_row
    if math.isnan(gain) and evidence.starts <= 1:
        return Doubt.STILL_RISING  # there was no time for others to agree
    if evidence.agreeing < FEWEST_AGREEING:
        return Doubt.FOUND_ONCE
    if math.isnan(gain):
        return Doubt.STILL_RISING
    if not are_enough(evidence.agreeing, evidence.starts):
        return Doubt.FOUND_RARELY
    if evidence.rows < n:
        return None if SUBSET_CAUTION * gain <= CERTIFIED_GAP else Doubt.BETTER_ELSEWHERE
    if gain > CERTIFIED_GAP:
        return Doubt.BETTER_ELSEWHERE
    return None if evidence.likelihood - lower <= CERTIFIED_GAP * n else Doubt.BOUND_TOO_LOW
