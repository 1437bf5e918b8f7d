"""The constant predictor's likelihood, and the trap that it is: a model that explains everything as noise."""

from __future__ import annotations

import math

from torch import Tensor

from nearexact.gp.safety import DEFAULT_NUMERICS, Numerics

NOISE_MARGIN = 0.005  # nats per point by which a model must beat the constant predictor to count as one


def noise_only_likelihood(y: Tensor, numerics: Numerics = DEFAULT_NUMERICS) -> float:
    """Log likelihood of the model that takes everything for noise of the best variance."""
    mean_square = float(y @ y) / len(y)
    variance = max(mean_square, numerics.floor)
    return -0.5 * len(y) * (math.log(2.0 * math.pi * variance) + mean_square / variance)


def explains_nothing(elbo: float, noise_only: float, n: int) -> bool:
    """Whether a bound on the log marginal likelihood is no better than what noise alone reaches."""
    return not elbo >= noise_only + NOISE_MARGIN * n
