"""Where training starts, and the trap that a start may lead into: everything explained as noise."""

from __future__ import annotations

import math

import numpy as np
from torch import Tensor

from nearexact.gp.linalg import DEFAULT_NUMERICS, Numerics
from nearexact.gp.parameters import ParameterLayout
from nearexact.kernels.base import FloatArray

START_NOISE = 0.01  # variance, on standardised targets
NOISE_MARGIN = 0.005  # nats per point by which a model must beat the constant predictor to count as one


def with_less_influence(layout: ParameterLayout, theta: FloatArray) -> FloatArray:
    """θ with the inputs divided by √D: distances grow like that, and with many inputs no two rows look similar."""
    kernel, noise_variance = layout.unpack(theta)
    d = layout.n_inputs
    factors = {"lengthscales": math.sqrt(d), "weight_variances": 1.0 / d, "variances": 1.0 / d}
    changed = {
        name: np.maximum(value * factors.get(name.rpartition(".")[2], 1.0), layout.numerics.floor)
        for name, value in kernel.parameters.items()
    }
    return layout.pack(kernel.with_parameters(changed), noise_variance)


def noise_only_likelihood(y: Tensor, numerics: Numerics = DEFAULT_NUMERICS) -> float:
    """Log likelihood of the model that takes everything for noise of the best variance."""
    mean_square = float(y @ y) / len(y)
    variance = max(mean_square, numerics.floor)
    return -0.5 * len(y) * (math.log(2.0 * math.pi * variance) + mean_square / variance)


def explains_nothing(elbo: float, noise_only: float, n: int) -> bool:
    """Whether a bound on the log marginal likelihood is no better than what noise alone reaches."""
    return not elbo >= noise_only + NOISE_MARGIN * n
