"""Numerical safety: the jitter ladder, the trace repair, and the record of everything that was repaired.

A factorisation either succeeds, succeeds after a counted repair, or raises NumericalError with advice. The policy is
that of Ober et al. (section 4.1 and appendix B.1), with the direction of the trace test as in their text.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from nearexact.gp.lapack import cholesky


@dataclass(frozen=True)
class Numerics:
    """Numerical constants in one place; the defaults are the paper's unless a comment says otherwise."""

    first_jitter: float = 1e-10
    jitter_factor: float = 10.0
    cholesky_attempts: int = 10
    floor: float = 1e-5  # lower bound on every positive hyperparameter, unless noise_bounds allow less noise
    noise_bounds: tuple[float, float] = (0.0, math.inf)  # a user's, on the noise variance; fixed if both are the same
    # By how much q(x, x) may exceed k(x, x), relatively, for a negative trace to be mended. The paper mends "relatively
    # small" errors and says no number: this one is ours.
    trace_tolerance: float = 1e-3
    selection_tolerance: float = (
        1e-12  # ours: residual variance, relative to the largest, below which points are copies
    )
    direct_condition: float = 30.0  # mean condition of K_ZZ up to which V is not needed at all; see sparse.py ...
    direct_signal_to_noise: float = 1e8  # largest mean of k(x, x)/s for the same
    merge_condition: float = 1e3  # ... and up to which its second solve is not needed

    @property
    def noise_floor(self) -> float:
        """Lower bound on the noise variance."""
        return min(self.floor, self.noise_bounds[0] or self.floor)


DEFAULT_NUMERICS = Numerics()
LEAST_NOISE = 1e-8  # the lowest floor under the noise variance that may be asked for
ROUNDING_SAFETY = 4.0  # times the largest rounding error that shows: others may be larger than those that do


def numerics_for(noise_variance: object) -> Numerics:
    """The usual constants, with a floor that allows so little noise."""
    if not (isinstance(noise_variance, float) and LEAST_NOISE <= noise_variance < DEFAULT_NUMERICS.floor):
        return DEFAULT_NUMERICS
    return replace(DEFAULT_NUMERICS, noise_bounds=(noise_variance, math.inf))


class NumericalError(ArithmeticError):
    """A computation that cannot be carried out in float64; the message says what to look at."""


@dataclass
class Repairs:
    """What had to be mended so far. Nothing is mended without being counted here."""

    largest_jitter: float = 0.0
    jitters_raised: int = 0
    traces_repaired: int = 0
    traces_rejected: int = 0
    variances_clamped: int = 0
    residuals_clamped: int = 0
    residuals_rejected: int = 0

    def add_residuals(self, other: Repairs) -> None:
        """Count what was done to residual variances elsewhere."""
        self.residuals_clamped += other.residuals_clamped
        self.residuals_rejected += other.residuals_rejected

    @staticmethod
    def sum(parts: Iterable[Repairs]) -> Repairs:
        """All of them together."""
        total = Repairs()
        for part in parts:
            total.largest_jitter = max(total.largest_jitter, part.largest_jitter)
            total.jitters_raised += part.jitters_raised
            total.traces_repaired += part.traces_repaired
            total.traces_rejected += part.traces_rejected
            total.variances_clamped += part.variances_clamped
            total.residuals_clamped += part.residuals_clamped
            total.residuals_rejected += part.residuals_rejected
        return total


def jittered_cholesky(
    K: Tensor,
    repairs: Repairs,
    *,
    what: str,
    first_jitter: float | None = None,
    numerics: Numerics = DEFAULT_NUMERICS,
    out: Tensor | None = None,
) -> tuple[Tensor, float]:
    """Lower Cholesky factor of K + jitter·I, and the jitter that it took. K is changed: its diagonal gets the jitter.

    `first_jitter=0` is for matrices that carry noise on their diagonal already: the ladder then starts on failure, and
    leaves out what is lost in the rounding errors of a factor. The factor may be written into `out`.
    """
    first = numerics.first_jitter if first_jitter is None else first_jitter
    rung = first or numerics.first_jitter
    ladder = [rung * numerics.jitter_factor**number for number in range(numerics.cholesky_attempts - (first == 0.0))]
    diagonal = K.diagonal().clone()
    if first == 0.0:
        lost = math.sqrt(len(K)) * torch.finfo(K.dtype).eps * float(diagonal.max()) if len(K) else 0.0
        ladder = [0.0, *([jitter for jitter in ladder if not jitter < lost] or ladder[-1:])]
    for attempt, jitter in enumerate(ladder):
        if jitter:
            K.diagonal().copy_(diagonal + jitter)
        L, succeeded = cholesky(K, out)
        # A NaN or infinity anywhere in a row of the lower triangle reaches that row's diagonal entry.
        if succeeded and bool(torch.isfinite(L.diagonal()).all()):
            repairs.largest_jitter = max(repairs.largest_jitter, jitter)
            repairs.jitters_raised += attempt > 0
            return L, jitter
    if not torch.isfinite(diagonal).all() or not torch.isfinite(K).all():
        raise NumericalError(f"{what} has entries that are not finite: look for huge inputs or hyperparameters")
    raise NumericalError(
        f"{what} ({len(K)} x {len(K)}, diagonal {float(diagonal.min()):.3g} to {float(diagonal.max()):.3g}) is not"
        f" positive definite even with {ladder[-1]:.0e} added to its diagonal: look for a signal"
        " variance that is huge next to the noise, or lengthscales far beyond the range of the inputs"
    )


def repair_trace(
    trace: float, largest_ratio: float, repairs: Repairs, numerics: Numerics = DEFAULT_NUMERICS
) -> tuple[float, bool]:
    """tr(K − Q), which is never negative in exact arithmetic, and whether it was replaced by 0.

    `largest_ratio` is the largest q(x_n, x_n)/k(x_n, x_n): only if all are at most slightly above 1 is a negative trace
    rounding noise. Else the trace is NaN and so is what is computed from it.
    """
    if trace >= 0.0:
        return trace, False
    if largest_ratio <= 1.0 + numerics.trace_tolerance:
        repairs.traces_repaired += 1
        return 0.0, True
    repairs.traces_rejected += 1
    return math.nan, False


def residual_error(largest_ratio: float, diagonal: float) -> float:
    """By how much residual variances may be off: what is below zero shows how large rounding errors are.

    Where the signal is 1e10 times the noise or more, they are as large as the noise; and residuals that are set to zero
    would let bounds meet that prove nothing.
    """
    return ROUNDING_SAFETY * (largest_ratio - 1.0) * diagonal if largest_ratio > 1.0 else 0.0


def clamp_residuals(
    residuals: Tensor, largest_ratio: float, repairs: Repairs, numerics: Numerics = DEFAULT_NUMERICS
) -> Tensor:
    """Residual variances k(x_n, x_n) − q(x_n, x_n), [N], with those below zero set to zero, in place.

    The test is that of `repair_trace`, for each of them: what is negative by more than rounding makes them all NaN.
    """
    negative = int((residuals < 0.0).sum())
    if not negative:
        return residuals
    if largest_ratio <= 1.0 + numerics.trace_tolerance:
        repairs.residuals_clamped += negative
        return residuals.clamp_(min=0.0)
    repairs.residuals_rejected += 1
    return residuals.fill_(math.nan)


def clamp_variances(variance: Tensor, repairs: Repairs) -> Tensor:
    """Variances with rounding noise below zero set to zero, in place."""
    negative = int((variance < 0.0).sum())
    repairs.variances_clamped += negative
    return variance.clamp_(min=0.0) if negative else variance
