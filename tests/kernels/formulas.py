"""Kernels that are nothing but a formula: some that the package does not have, and twins of those that it has."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy.typing as npt
import torch
from torch import Tensor

from nearexact.kernels import Kernel
from nearexact.kernels.base import Tensors


@dataclass(frozen=True)
class RationalQuadratic(Kernel):
    """A mixture of squared exponentials of many lengthscales. All differences are formed: [N, M, D]."""

    lengthscales: npt.ArrayLike = 1.0
    mixture: npt.ArrayLike = 1.0
    variance: npt.ArrayLike = 1.0
    shared: ClassVar[frozenset[str]] = Kernel.shared | {"mixture"}
    stationary: ClassVar[bool] = True

    def formula(self, p: Tensors, X: Tensor, Z: Tensor) -> Tensor:
        squares = ((X[:, None] - Z) / p["lengthscales"]).square().sum(-1)
        return p["variance"] * torch.exp(-p["mixture"] * torch.log1p(squares / (2.0 * p["mixture"])))


@dataclass(frozen=True)
class Gibbs(Kernel):
    """A squared exponential whose lengthscales grow with the distance from the origin (Gibbs 1997)."""

    lengthscales: npt.ArrayLike = 1.0
    growth: npt.ArrayLike = 1.0

    def formula(self, p: Tensors, X: Tensor, Z: Tensor) -> Tensor:
        scales_X = (p["lengthscales"] * (1.0 + p["growth"] * X.square()))[:, None]  # [N, 1, D]
        scales_Z = p["lengthscales"] * (1.0 + p["growth"] * Z.square())  # [M, D]
        total = scales_X.square() + scales_Z.square()
        factors = (2.0 * scales_X * scales_Z / total).sqrt() * torch.exp(-(X[:, None] - Z).square() / total)
        return factors.prod(-1)


@dataclass(frozen=True)
class TrendOverPlaces(Kernel):
    """A linear trend in the first input whose slope depends on the place, which is given by the others.

    The diagonal is not constant, no parameter is per input, and the formula has a branch on values and writes into an
    array that it made, neither of which torch can vectorise over rows.
    """

    slope: npt.ArrayLike = 1.0
    reach: npt.ArrayLike = 1.0
    shared: ClassVar[frozenset[str]] = frozenset({"slope", "reach"})

    def formula(self, p: Tensors, X: Tensor, Z: Tensor) -> Tensor:
        if not bool(torch.isfinite(X).all()):
            raise ValueError("X must be finite")
        distances = X.new_zeros(len(X), len(Z))
        for column in range(1, X.shape[1]):
            distances += (X[:, column, None] - Z[:, column]).square()
        return (1.0 + p["slope"] * torch.outer(X[:, 0], Z[:, 0])) * torch.exp(-distances / p["reach"].square())


def scaled_distances(p: Tensors, X: Tensor, Z: Tensor) -> Tensor:
    """|x − z| in lengthscales. torch's cdist has the gradient 0 at distance zero, where a square root has none."""
    mode = "donot_use_mm_for_euclid_dist"  # which would lose digits
    return torch.cdist(X / p["lengthscales"], Z / p["lengthscales"], compute_mode=mode)


@dataclass(frozen=True)
class SquaredExponentialTwin(Kernel):
    lengthscales: npt.ArrayLike = 1.0
    variance: npt.ArrayLike = 1.0
    stationary: ClassVar[bool] = True

    def formula(self, p: Tensors, X: Tensor, Z: Tensor) -> Tensor:
        return p["variance"] * torch.exp(-0.5 * ((X[:, None] - Z) / p["lengthscales"]).square().sum(-1))


@dataclass(frozen=True)
class Matern12Twin(Kernel):
    lengthscales: npt.ArrayLike = 1.0
    variance: npt.ArrayLike = 1.0

    def formula(self, p: Tensors, X: Tensor, Z: Tensor) -> Tensor:
        return p["variance"] * torch.exp(-scaled_distances(p, X, Z))


@dataclass(frozen=True)
class Matern32Twin(Kernel):
    lengthscales: npt.ArrayLike = 1.0
    variance: npt.ArrayLike = 1.0

    def formula(self, p: Tensors, X: Tensor, Z: Tensor) -> Tensor:
        r = math.sqrt(3.0) * scaled_distances(p, X, Z)
        return p["variance"] * (1.0 + r) * torch.exp(-r)


@dataclass(frozen=True)
class Matern52Twin(Kernel):
    lengthscales: npt.ArrayLike = 1.0
    variance: npt.ArrayLike = 1.0

    def formula(self, p: Tensors, X: Tensor, Z: Tensor) -> Tensor:
        r = math.sqrt(5.0) * scaled_distances(p, X, Z)
        return p["variance"] * (1.0 + r + r.square() / 3.0) * torch.exp(-r)


@dataclass(frozen=True)
class PeriodicTwin(Kernel):
    period: npt.ArrayLike = 1.0
    lengthscales: npt.ArrayLike = 1.0
    variance: npt.ArrayLike = 1.0

    def formula(self, p: Tensors, X: Tensor, Z: Tensor) -> Tensor:
        sines = torch.sin(math.pi * (X[:, None] - Z) / p["period"]) / p["lengthscales"]
        return p["variance"] * torch.exp(-2.0 * sines.square().sum(-1))


@dataclass(frozen=True)
class LinearTwin(Kernel):
    variances: npt.ArrayLike = 1.0
    bias_variance: npt.ArrayLike = 1.0

    def formula(self, p: Tensors, X: Tensor, Z: Tensor) -> Tensor:
        return (X * p["variances"]) @ Z.T + p["bias_variance"]


@dataclass(frozen=True)
class ArcCosineTwin(Kernel):
    """Away from parallel rows, where acos has no derivative."""

    order: int = 0
    weight_variances: npt.ArrayLike = 1.0
    bias_variance: npt.ArrayLike = 1.0
    variance: npt.ArrayLike = 1.0
    settings: ClassVar[tuple[str, ...]] = ("order",)

    def formula(self, p: Tensors, X: Tensor, Z: Tensor) -> Tensor:
        scales_X, scales_Z = ((U.square() @ p["weight_variances"] + p["bias_variance"]).sqrt() for U in (X, Z))
        lengths = torch.outer(scales_X, scales_Z)
        angle = torch.acos(((X * p["weight_variances"]) @ Z.T + p["bias_variance"]) / lengths)
        rest, sine, cosine = math.pi - angle, angle.sin(), angle.cos()
        J = [rest, sine + rest * cosine, 3.0 * sine * cosine + rest * (1.0 + 2.0 * cosine.square())][self.order]
        return p["variance"] / math.pi * lengths**self.order * J
