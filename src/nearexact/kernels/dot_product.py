"""Kernels of an inner product: linear, and the arc-cosine kernels of infinitely wide one-layer networks.

Both start from ⟨x, z⟩ = Σ_d w_d x_d z_d + bias, one matrix product; their gradients are thin products again.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy.typing as npt
import torch
from torch import Tensor

from nearexact.kernels.base import Form, Kernel, Tensors

# Where the angle between two inputs is tiny its cosine has lost the angle's digits: such pairs are computed again from
# differences of unit vectors. Below NO_ANGLE the step kernel's slope 1/sin is left out: its contribution to a
# gradient is of the order of the angle itself, but the rounding errors that it would multiply are not.
NEARLY_PARALLEL = 1e-5
NO_ANGLE = 1e-7
PAIRS_AT_ONCE = 2**18


def inner_products(X: Tensor, Z: Tensor, weights: Tensor, bias: Tensor, out: Tensor | None) -> Tensor:
    """Σ_d weights_d x_nd z_md + bias: [N, M]."""
    augmented = torch.cat([Z * weights, bias.expand(len(Z), 1)], dim=1)
    return torch.mm(torch.cat([X, X.new_ones(len(X), 1)], dim=1), augmented.T, out=out)


def squared_norms(X: Tensor, weights: Tensor, bias: Tensor) -> Tensor:
    """Σ_d weights_d x_nd² + bias: [N]."""
    return X.square() @ weights + bias


class LinearForm:
    """Σ_d variances_d x_d z_d + bias_variance."""

    def cross(self, p: Tensors, X: Tensor, Z: Tensor, out: Tensor | None) -> Tensor:
        return inner_products(X, Z, p["variances"], p["bias_variance"], out)

    def cross_vjp(self, p: Tensors, X: Tensor, Z: Tensor, K_bar: Tensor, scratch: Tensor | None) -> Tensors:
        return {"variances": torch.linalg.vecdot(X, K_bar @ Z, dim=0), "bias_variance": K_bar.sum()}

    def diagonal(self, p: Tensors, X: Tensor) -> Tensor:
        return squared_norms(X, p["variances"], p["bias_variance"])

    def diagonal_vjp(self, p: Tensors, X: Tensor, weights: Tensor) -> Tensors:
        return {"variances": X.square().T @ weights, "bias_variance": weights.sum()}


@dataclass(frozen=True)
class ArcCosineForm:
    """variance/π · (|x| |z|)ⁿ J_n(φ), φ the angle between x and z under ⟨·, ·⟩, |x|² = ⟨x, x⟩ ≥ bias > 0."""

    order: int

    def cross(self, p: Tensors, X: Tensor, Z: Tensor, out: Tensor | None) -> Tensor:
        angle, a, b = self._angles(p, X, Z, out)
        J = _angular(self.order, angle)
        if self.order:
            J.mul_((a**self.order)[:, None]).mul_(b**self.order)
        return torch.mul(J, p["variance"] / math.pi, out=out)

    def cross_vjp(self, p: Tensors, X: Tensor, Z: Tensor, K_bar: Tensor, scratch: Tensor | None) -> Tensors:
        n = self.order
        angle, a, b = self._angles(p, X, Z, scratch)
        magnitude = K_bar.mul_(p["variance"] / math.pi)
        if n:
            magnitude.mul_((a**n)[:, None]).mul_(b**n)
        radial = _angular(n, angle).mul_(magnitude)  # K_bar ∘ K
        turning = _angular_slope(n, angle).mul_(magnitude)  # K_bar ∘ ∂k/∂cos φ
        # With S = ⟨x, z⟩: cos φ = S/(ab) and k ∝ (ab)ⁿ J(φ), so that for a weight w, with a² = ⟨x, x⟩, b² = ⟨z, z⟩,
        #   ∂k/∂w = k_cos/(ab) ∂S/∂w + ½(n k − k_cos cos φ)(∂a²/∂w /a² + ∂b²/∂w /b²)
        lengths = radial * n - turning * angle.cos()
        of_a, of_b = lengths.sum(1) / (2.0 * a.square()), lengths.sum(0) / (2.0 * b.square())
        of_S = turning.div_(a[:, None]).div_(b)
        weights_bar = torch.linalg.vecdot(X, of_S @ Z, dim=0) + X.square().T @ of_a + Z.square().T @ of_b
        return {
            "weight_variances": weights_bar,
            "bias_variance": of_S.sum() + of_a.sum() + of_b.sum(),
            "variance": radial.sum() / p["variance"],
        }

    def diagonal(self, p: Tensors, X: Tensor) -> Tensor:
        squared = squared_norms(X, p["weight_variances"], p["bias_variance"])
        return p["variance"] * self._at_zero_angle() * squared**self.order

    def diagonal_vjp(self, p: Tensors, X: Tensor, weights: Tensor) -> Tensors:
        n, squared = self.order, squared_norms(X, p["weight_variances"], p["bias_variance"])
        of_squared = weights * p["variance"] * (self._at_zero_angle() * n) * squared ** max(n - 1, 0)
        return {
            "weight_variances": X.square().T @ of_squared,
            "bias_variance": of_squared.sum(),
            "variance": (weights * squared**n).sum() * self._at_zero_angle(),
        }

    def _at_zero_angle(self) -> float:
        return 3.0 if self.order == 2 else 1.0  # J_n(0)/π

    def _angles(self, p: Tensors, X: Tensor, Z: Tensor, out: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Angles [N, M] between the rows of X and Z, and the lengths [N] and [M] of the rows."""
        weights, bias = p["weight_variances"], p["bias_variance"]
        a, b = squared_norms(X, weights, bias).sqrt(), squared_norms(Z, weights, bias).sqrt()
        cosine = inner_products(X, Z, weights, bias, out).div_(a[:, None]).div_(b).clamp_(-1.0, 1.0)
        rows, columns = (cosine.abs() > 1.0 - NEARLY_PARALLEL).nonzero(as_tuple=True)
        angle = cosine.acos_()
        if len(rows):
            A, B = (
                torch.cat([R * weights.sqrt(), bias.sqrt().expand(len(R), 1)], dim=1) / length[:, None]
                for R, length in ((X, a), (Z, b))
            )
            for start in range(0, len(rows), PAIRS_AT_ONCE):
                i, j = rows[start : start + PAIRS_AT_ONCE], columns[start : start + PAIRS_AT_ONCE]
                difference, total = (A[i] - B[j]).norm(dim=1), (A[i] + B[j]).norm(dim=1)
                angle[i, j] = 2.0 * torch.atan2(difference, total)  # Kahan: accurate at every angle
        return angle, a, b


def _angular(order: int, angle: Tensor) -> Tensor:
    """J_n(φ) of Cho and Saul (2009)."""
    if order == 0:
        return math.pi - angle
    sine, cosine = angle.sin(), angle.cos()
    if order == 1:
        return sine + (math.pi - angle) * cosine
    return 3.0 * sine * cosine + (math.pi - angle) * (1.0 + 2.0 * cosine.square())


def _angular_slope(order: int, angle: Tensor) -> Tensor:
    """∂J_n/∂cos φ: 1/sin φ, then J_0, then 4 J_1."""
    if order == 0:
        sine = angle.sin()
        return torch.where(sine > NO_ANGLE, 1.0 / sine, 0.0)
    return _angular(order - 1, angle).mul_(1.0 if order == 1 else 4.0)


@dataclass(frozen=True, eq=False, repr=False)
class Linear(Kernel):
    """Σ_d variances_d x_d z_d + bias_variance: Bayesian linear regression."""

    variances: npt.ArrayLike = 1.0
    bias_variance: npt.ArrayLike = 1.0

    def _form(self) -> Form:
        return LinearForm()


@dataclass(frozen=True, eq=False, repr=False)
class ArcCosine(Kernel):
    """variance/π · (|x| |z|)ⁿ J_n(φ) with ⟨x, z⟩ = Σ_d weight_variances_d x_d z_d + bias_variance.

    The limit of a wide one-layer network with step (order 0), ReLU (order 1) or squared ReLU (order 2) units.
    """

    order: int = 0
    weight_variances: npt.ArrayLike = 1.0
    bias_variance: npt.ArrayLike = 1.0
    variance: npt.ArrayLike = 1.0
    settings: ClassVar[tuple[str, ...]] = ("order",)

    def __post_init__(self) -> None:
        if self.order not in (0, 1, 2):
            raise ValueError(f"order must be 0, 1 or 2, got {self.order!r}")
        super().__post_init__()

    def _form(self) -> Form:
        return ArcCosineForm(self.order)
