"""Where training starts, and the trap that a start may lead into: everything explained as noise."""

from __future__ import annotations

import math

import numpy as np

from nearexact.gp.parameters import ParameterLayout
from nearexact.typing import FloatArray

START_NOISE = 0.01  # variance, on standardised targets


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
