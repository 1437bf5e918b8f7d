"""The constant predictor's log likelihood, and the trap that it is: a model that explains everything as noise.

Core, certificate and benchmark all need it, and some of them without torch, so it is here and is plain arithmetic.
"""

from __future__ import annotations

import math
from typing import Any

# By how much a model must beat the constant predictor to count as one: so many nats per point, and more than what the
# hyperparameters can gain by chance. On noise, fitted ones gain about a nat each (Akaike), now and then some more.
NOISE_MARGIN = 0.005
CHANCE_GAIN = 4.0  # nats, odds of 50 to 1
LEAST_VARIANCE = 1e-5  # of noise on standardised targets; `Numerics.floor` of `nearexact.gp` is the same


def gaussian_log_likelihood(variance: float, n: int, mean_square: float | None = None) -> float:
    """Log likelihood of n residuals under Gaussian noise.

    `mean_square` is that of the residuals; without it the variance is taken to be equal to it, its best value.
    """
    ratio = 1.0 if mean_square is None else mean_square / variance
    return -0.5 * n * (math.log(2.0 * math.pi * variance) + ratio)


def noise_only_likelihood(y: Any, least_variance: float = LEAST_VARIANCE) -> float:
    """Log likelihood of targets, an array or a tensor [N], under noise of the best variance that is allowed.

    Of several targets [N, T], it is that of all together.
    """
    n = math.prod(y.shape)
    mean_square = (float(y @ y) if y.ndim == 1 else float((y**2).sum())) / n
    return gaussian_log_likelihood(max(mean_square, least_variance), n, mean_square)


def standardised_likelihood(n: int | None) -> float:
    """Log likelihood of n standardised targets under the constant predictor; nan if n is not known."""
    return math.nan if n is None else gaussian_log_likelihood(1.0, n)


def explains_nothing(elbo: float, noise_only: float, n: int, parameters: float | None = None) -> bool:
    """Whether a bound on the log marginal likelihood of n targets is no better than what noise alone reaches.

    `parameters` is how many the kernel has, where they were fitted to these targets and their number is known.
    """
    by_chance = 0.0 if parameters is None else parameters + CHANCE_GAIN
    return not elbo >= noise_only + max(NOISE_MARGIN * n, by_chance)
