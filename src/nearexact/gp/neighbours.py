"""Variances of the exact GP from nearest rows, extrapolated to all rows.

Given its 32, 64, 128 and 256 nearest rows alone, the variance at a new input is an upper bound on that given all rows,
and it falls with their number in a way that is much the same everywhere. How it goes on is learnt from a few training
rows: what the exact GP says of such a row from all others is 1/(K̂⁻¹)_ii, which conjugate gradients compute. The sparse
GP's variance helps where inducing points explain what nearest rows do not.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from nearexact.kernels.base import Kernel

SIZES = (32, 64, 128, 256)  # nearest rows
CALIBRATION_ROWS = (64, 32, 16)  # training rows that it is learnt from: fewer where time is short
RIDGE = 1e-3  # in units of a squared logarithm: keeps features that say the same from cancelling each other
LEAST_VARIANCE = 1e-12  # relative to k(x, x): what is below is rounding noise
POINTS_AT_ONCE = 64  # whose matrices [256, 256] are factorised together


@dataclass(frozen=True, eq=False)
class Extrapolation:
    """log variance = log variance given the nearest rows + features · weights, within what was seen."""

    weights: Tensor  # [F]
    least: float  # logarithm of the smallest share of the variance that was seen to remain; not above 0

    @staticmethod
    def none(like: Tensor) -> Extrapolation:
        """Leave the variance as it is: an upper bound."""
        return Extrapolation(like.new_zeros(len(SIZES)), 0.0)

    @staticmethod
    def from_tensor(numbers: Tensor) -> Extrapolation:
        """From what `as_tensor` gives."""
        return Extrapolation(numbers[:-1], float(numbers[-1]))

    def as_tensor(self) -> Tensor:
        """All of it [F + 1], as it is saved."""
        return torch.cat([self.weights, self.weights.new_tensor([self.least])])

    @staticmethod
    def learnt(near: Tensor, sparse: Tensor, exact: Tensor) -> Extrapolation:
        """From variances of the same points: given nearest rows [T, sizes], the sparse GP's and the exact one's [T]."""
        F, shares = features(near, sparse), exact.log() - near[:, -1].log()
        A = F.T @ F
        A.diagonal().add_(RIDGE * len(F))
        weights = torch.linalg.solve(A, F.T @ shares)
        return Extrapolation(weights, min(float(shares.min()), 0.0))

    def __call__(self, near: Tensor, sparse: Tensor) -> Tensor:
        """Variances [T], not above those given the nearest rows."""
        shares = (features(near, sparse) @ self.weights).clamp_(min=self.least, max=0.0)
        return near[:, -1] * shares.exp_()


def features(near: Tensor, sparse: Tensor) -> Tensor:
    """By how much the variance has fallen with each doubling, and how far the sparse GP's is below: [T, sizes]."""
    logs = near.log()
    below = (sparse.log() - logs[:, -1]).clamp_(max=0.0)
    return torch.cat([logs[:, 1:] - logs[:, :-1], below[:, None]], dim=1)


def nearest_variances(
    kernel: Kernel, noise: Tensor | float, features_X: Tensor, features_new: Tensor, nearest: Tensor
) -> Tensor:
    """Variances at new inputs given the first of their nearest rows of X: [T, sizes].

    `noise` is the variance of the rows' noise, for all or for each [N]. `nearest` [T, S] has rows in the order of their
    nearness.
    """
    k, k_S = kernel.diagonal(features_new), features_new.new_empty(nearest.shape)
    for to_rows, new, rows in zip(k_S, features_new, nearest, strict=True):
        to_rows.copy_(kernel.cross(features_X[rows], new[None, :])[:, 0])
    return variances_given(kernel, noise, features_X, nearest, k, k_S)


def variances_given(
    kernel: Kernel, noise: Tensor | float, features_X: Tensor, nearest: Tensor, k: Tensor, k_S: Tensor
) -> Tensor:
    """The same from k(x, x) [T] and k(x, nearest) [T, S], by operations that torch differentiates by these.

    One factorisation for each input serves all sizes, since the factor of the first rows is a part of that of all.
    """
    sizes = [min(size, nearest.shape[1]) for size in SIZES]
    variances = []
    for first in range(0, len(nearest), POINTS_AT_ONCE):
        points = slice(first, first + POINTS_AT_ONCE)
        matrices = torch.stack([kernel.gram(features_X[rows]) for rows in nearest[points]])  # [T, S, S]
        matrices.diagonal(dim1=1, dim2=2).add_(noise[nearest[points]] if isinstance(noise, Tensor) else noise)
        L, failures = torch.linalg.cholesky_ex(matrices)
        half = torch.linalg.solve_triangular(L, k_S[points, :, None], upper=False)[:, :, 0]  # [T, S]
        explained = half.square().cumsum(1)[:, [size - 1 for size in sizes]]
        explained[failures > 0] = 0.0  # then nothing is known: k(x, x) is still an upper bound
        variances.append(k[points, None] - explained)
    return torch.maximum(torch.cat(variances), LEAST_VARIANCE * k[:, None])


def nearest_rows(K: Tensor, diagonal: Tensor, noise: Tensor | float, without: Tensor | None = None) -> Tensor:
    """The rows that say most, alone, about each new input: [T, S], from K [T, N] and k(x, x) of the rows [N].

    Where the new inputs are rows themselves, `without` [T] says which, and these are left out.
    """
    told, rows = K.square().div_(diagonal + noise), K.shape[1]  # by how much each reduces the variance
    if without is not None:
        told[torch.arange(len(K), device=K.device), without] = -1.0
        rows -= 1
    return told.topk(min(SIZES[-1], rows), dim=1).indices
