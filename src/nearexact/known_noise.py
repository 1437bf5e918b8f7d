"""What users know about the noise of each row, checked: variances in their units, and weights.

A row of weight w has the noise variance s/w, where s is learnt; a known variance comes on top of that. Weights count
relative to their mean, which is the weight of a new observation, and a row of weight 0 is left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from nearexact.gp.row_noise import RowNoise
from nearexact.scaling import Scaling
from nearexact.typing import FloatArray, IndexArray


@dataclass(frozen=True, eq=False)
class KnownNoise:
    """Of the rows in use. Where nothing differs from row to row, `of` gives none of these."""

    variances: FloatArray  # in the units of the target, squared  [N]
    weights: FloatArray  # as they were passed, all positive  [N]
    unit: float  # the weight of a new observation
    used: IndexArray  # the rows that have a weight, of those that were passed  [N]

    @staticmethod
    def of(noise_variance: Any, sample_weight: Any, y: FloatArray, unit: float | None = None) -> KnownNoise | None:
        """What is known of the rows of y; the unit of the weights is their mean, unless an earlier fit has set it."""
        if noise_variance is None and sample_weight is None:
            return None
        if noise_variance is not None and y.ndim > 1:
            raise ValueError(
                f"noise_variance is for one target, got {y.shape[1]}: each is scaled on its own, so that they share no"
                " variance in one unit; pass sample_weight, or fit them one by one"
            )
        variances = np.zeros(len(y)) if noise_variance is None else _checked(noise_variance, "noise_variance", len(y))
        usual = np.full(len(y), 1.0 if unit is None else unit)
        weights = usual if sample_weight is None else _checked(sample_weight, "sample_weight", len(y))
        used = np.flatnonzero(weights)
        if not len(used):
            raise ValueError("sample_weight must be positive for some rows, got zero for all of them")
        variances, weights = variances[used], weights[used]
        unit = float(weights.max() * (weights / weights.max()).mean()) if unit is None else unit  # whose sum is finite
        if len(used) == len(y) and not variances.any() and (weights == unit).all():
            return None
        return KnownNoise(variances, weights, unit, used)

    def scaling(self, y: FloatArray) -> Scaling:
        """That of the targets in use, in which a row counts the less the noisier it is known to be."""
        quiet = self.variances <= np.median(self.variances)
        first = Scaling.of(y[quiet])
        z, counts = first.apply(y), self.weights / self.unit
        if self.variances.any():
            counts = counts / (1.0 + self.variances / first.scale**2)
        mean = np.average(z, axis=0, weights=counts)
        deviation = np.sqrt(np.average(np.square(z - mean), axis=0, weights=counts))
        if not (np.isfinite(deviation).all() and (deviation > 0.0).all()):  # constant, but for rows that hardly count
            return Scaling.of(y)
        return Scaling(first.undo(mean), first.scale * deviation)

    def standardised(self, scaling_y: Scaling, device: torch.device) -> RowNoise:
        """In the units of standardised targets."""
        known = self.variances / float(scaling_y.scale) ** 2 if self.variances.any() else self.variances
        return RowNoise(torch.tensor(self.unit / self.weights, device=device), torch.tensor(known, device=device))


def _checked(values: Any, name: str, n: int) -> FloatArray:
    """A vector of n finite numbers that are not negative."""
    if isinstance(values, torch.Tensor):
        values = values.detach().cpu()
    try:
        array = np.array(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name} must be numeric, got {type(values).__name__}: {error}") from error
    if array.shape != (n,):
        raise ValueError(f"{name} must have one number for each of {n} rows, got shape {array.shape}")
    if not np.isfinite(array).all():
        raise ValueError(f"{name} must be finite, got {int((~np.isfinite(array)).sum())} NaN or infinite values")
    if (array < 0.0).any():
        raise ValueError(f"{name} must not be negative, got {array.min():g} in row {int(array.argmin())}")
    return array
