"""How far float64 arithmetic may be off, for bounds that have to hold in it: values of a kernel, and long sums."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from nearexact.gp.safety import NumericalError
from nearexact.kernels.base import Kernel, with_diagonal

EPS = torch.finfo(torch.float64).eps
SPREAD_ROWS = 192  # of the data, that are looked at
FARTHEST_ROWS = 64  # where errors of distances and of inner products are largest
SAFETY = 4.0  # what a sample shows is not the worst
DISPLACEMENT = 8.0 * EPS  # of inputs, relative to their size and distance from the centre, as if they were rounded


MOST_LOST = 0.01  # of what a preconditioner does where it matters most


def lost_share(trace: float, noise_variance: float) -> float:
    """How much of P⁻¹ rounding errors may take, for P = Q + sI of which tr Q is at most `trace`, relative to I/s.

    Woodbury's formula goes through B = I + G/s, whose eigenvalues are between 1 and 1 + tr Q/s: of the smallest ones
    eps times the largest is lost.
    """
    return SAFETY * EPS * (1.0 + trace / noise_variance)


def check_digits(trace: float, noise_variance: float) -> None:
    """NumericalError where so much is lost that P is no preconditioner any more, and rᵀP⁻¹r no bound."""
    if not lost_share(trace, noise_variance) <= MOST_LOST:
        raise NumericalError(
            f"the signal variance is {trace / noise_variance:.1e} times the noise variance, added up over all rows: too"
            " much for a sparse GP in 64 bits to precondition with"
        )


def sum_rounding(terms: int) -> float:
    """Error of a sum, relative to the sum of absolute values.

    The errors of single additions are as good as independent, so that they grow with the root of the number of terms
    (Higham and Mary 2019). Block by block, as products with a kernel matrix are summed, 2√n is also the worst case.
    """
    return (16.0 + 4.0 * math.sqrt(terms)) * EPS


class KernelRounding:
    """Errors of computed values k(x, z), relative to √(k(x, x) k(z, z)), for rows x of the data.

    Every value is computed in two ways: as k(x, z) with inputs measured from one centre, and as k(z, x) with inputs
    measured from another one and z displaced by a few eps. They differ by rounding errors and nothing else, which
    tells how large these are. A kernel for which both ways are the same still rounds: each of its inputs counts for an
    eps.
    """

    def __init__(self, kernel: Kernel, X: Tensor) -> None:
        self.kernel = kernel
        rows = _sample(X)
        self.centre = X.mean(0)
        self.other_centre = self.centre + 0.4 * (rows[0] - self.centre)
        self.least = (X.shape[1] + 8.0) * EPS
        signs = torch.ones_like(self.centre)
        signs[1::2] = -1.0  # where effects of displacements to one side would cancel, these do not
        self.displacements = (DISPLACEMENT * signs.abs(), DISPLACEMENT * signs)
        features = kernel.features(rows, self.centre)
        K, diagonal = kernel.cross(features, features), kernel.diagonal(features)
        self.among_data = float(self.of(rows, rows, with_diagonal(K, diagonal), diagonal, diagonal).max())

    def of(self, X: Tensor, X_new: Tensor, K: Tensor, k_X: Tensor, k_new: Tensor) -> Tensor:
        """The largest error in each column of K = k(X, X_new), given k(x, x) of both: [C]."""
        features, worst = self.kernel.features(X, self.other_centre), torch.zeros_like(k_new)
        distances = X_new.abs() + (X_new - self.centre).abs()
        for displacement in self.displacements:
            displaced = self.kernel.features(X_new + displacement * distances, self.other_centre)
            errors = self.kernel.cross(displaced, features).T.sub(K).abs_().div_(k_X.sqrt()[:, None])
            worst = torch.maximum(worst, errors.amax(0) / k_new.sqrt())
        return SAFETY * worst + self.least


def _sample(X: Tensor) -> Tensor:
    """Rows spread over the data, and rows far out."""
    distances = (X - X.mean(0)).abs().amax(1)
    farthest = distances.topk(min(FARTHEST_ROWS, len(X))).indices
    spread = torch.linspace(0, len(X) - 1, min(SPREAD_ROWS, len(X)), device=X.device).long()
    return X[torch.cat([spread, farthest])]
