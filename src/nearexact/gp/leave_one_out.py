"""What an exact GP says of each row given all others, without computing another factor."""

from __future__ import annotations

import math

from torch import Tensor

from nearexact.gp.lapack import inverse
from nearexact.gp.linalg import as_columns
from nearexact.gp.posterior import ExactPosterior


def left_out_densities(model: ExactPosterior) -> Tensor:
    """The log density of each row's target given all other rows, summed over targets [N].

    All that is in K̂⁻¹ (Rasmussen and Williams 2006, section 5.4.2): the variance is 1/(K̂⁻¹)ᵢᵢ, the error αᵢ/(K̂⁻¹)ᵢᵢ.
    """
    variances = 1.0 / inverse(model.L.clone()).diagonal()
    errors = as_columns(model.weights) * variances[:, None]
    squares = errors.square() / variances[:, None]
    densities: Tensor = -0.5 * (squares + (2.0 * math.pi * variances).log()[:, None]).sum(1)
    return densities
