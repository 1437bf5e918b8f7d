"""Functions with less noise than a GP usually assumes: kernels are compared again with hardly any.

A likelihood with next to no noise may rise where few rows are explained better and others are predicted far off. So
each row is predicted from all others, too, and has to be more probable then: before training, and after it. That cannot
be asked of kernels with a step where the data have one: rows that are left out have told where.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from nearexact.evidence import STANDARD_ERRORS
from nearexact.gp.budget import TimeIsUpError
from nearexact.gp.leave_one_out import left_out_densities
from nearexact.gp.posterior import ExactPosterior
from nearexact.gp.safety import DEFAULT_NUMERICS, LEAST_NOISE, numerics_for
from nearexact.tables.kernel_names import SPLIT

if TYPE_CHECKING:
    from torch import Tensor

    from nearexact.tables.kernel_choice import Choice, Contest, KernelOptimum, Trial

AT_FLOOR = 1.01  # times the usual lower bound on the noise: up to there a likelihood would have less if it could
LITTLE = numerics_for(LEAST_NOISE)
MORE_TIME = 0.5  # of the time for the choice of a kernel, on top of it: where noise is at its bound, which is rare


@dataclass(frozen=True, eq=False)
class LessNoise:
    """What a model with less noise than usual must bear out, and what to take instead if it does not."""

    density: float  # of rows that are left out, with the usual bound on the noise: the mean logarithm
    instead: Choice

    @property
    def bounds(self) -> tuple[float, float]:
        """On the noise variance."""
        return LITTLE.noise_bounds

    def is_borne_out_by(self, posterior: object) -> bool:
        """Whether a model that was trained with these bounds is no worse than what was found with the usual ones."""
        return isinstance(posterior, ExactPosterior) and float(left_out_densities(posterior).mean()) >= self.density


def with_less_noise(contest: Contest, standing: Sequence[Trial], usual: Choice) -> Choice:
    """The best kernel with less noise, if the usual one has as little as it may and rows left out agree; else that."""
    optimum = usual.optimum
    may_have_less = optimum is not None and optimum.noise_variance <= AT_FLOOR * DEFAULT_NUMERICS.noise_floor
    if optimum is None or not may_have_less or contest.row_noise is not None:
        return usual
    before = left_out_densities(contest.model(optimum))
    contest.begin_again(LITTLE, MORE_TIME)
    ranked = sorted(standing, key=lambda trial: (trial.kernel != usual.name, -trial.score))
    better: list[tuple[float, KernelOptimum]] = []
    for name in dict.fromkeys(trial.kernel for trial in ranked if SPLIT not in trial.kernel):
        try:
            found = contest.followed(name, optimum.rows)
        except TimeIsUpError:
            break
        if found is not None and _is_clearly_better(after := left_out_densities(contest.model(found)), before):
            better.append((float(after.mean()), found))
    choice = replace(usual, trials=tuple(contest.trials))
    if not better:
        return choice
    best = max(better, key=lambda pair: pair[0])[1]
    less_noise = LessNoise(float(before.mean()), choice)
    return replace(choice, name=best.name, kernel=contest.kernels[best.name], optimum=best, less_noise=less_noise)


def _is_clearly_better(densities: Tensor, others: Tensor) -> bool:
    """By two standard errors of the difference."""
    gains = densities - others
    return float(gains.mean()) > STANDARD_ERRORS * float(gains.std()) / math.sqrt(len(gains))
