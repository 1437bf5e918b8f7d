"""Random features: functions ψ of one input with E ψ(x)ψ(z) = k(x, z), from which whole functions are drawn.

Stationary kernels have random waves, whose frequencies follow the kernel's spectral density (Rahimi and Recht 2007);
arc-cosine kernels have random units of a network; a linear kernel has its inputs, which are not random at all.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

# Rows X [N, D] to features [N, C, F]: F draws, of each of which C values go together. With their products summed over
# C, the mean over the F draws is k(x, z) up to a random error that falls like 1/√F.
Features = Callable[[Tensor], Tensor]


def waves(frequencies: Tensor, variance: Tensor) -> Features:
    """Cosines and sines of these frequencies [F, D]: k(x, x) is then the variance, without any error."""

    def at(X: Tensor) -> Tensor:
        phases = X @ frequencies.T
        return torch.stack([phases.cos(), phases.sin()], dim=1).mul_(math.sqrt(float(variance)))

    return at


def product_of(parts: list[Features]) -> Features:
    """Features of a product of kernels: of independent draws, products of all with all."""

    def at(X: Tensor) -> Tensor:
        result = parts[0](X)
        for part in parts[1:]:
            result = (result[:, :, None] * part(X)[:, None]).flatten(1, 2)
        return result

    return at


def sum_of(parts: list[Features]) -> Features:
    """Features of a sum of kernels: those of all parts together."""

    def at(X: Tensor) -> Tensor:
        each = [part(X) for part in parts]
        draws = max(features.shape[2] for features in each)
        return torch.cat([features.expand(-1, -1, draws) for features in each], dim=1)

    return at
