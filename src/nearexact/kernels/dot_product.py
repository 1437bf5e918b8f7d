"""Kernels of an inner product: linear, and the arc-cosine kernels of infinitely wide one-layer networks.

Both start from ⟨x, z⟩ = Σ_d w_d x_d z_d + bias, one matrix product; their gradients are thin products again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from nearexact.kernels.base import Kernel
from nearexact.kernels.form import Cross, Form, Tensors, add_to, distances, squares
from nearexact.kernels.random_features import Features

# The cosine of a tiny angle is rounded to 1, and the angle is lost: pairs with a cosine within NEARLY_PARALLEL of ±1
# are computed again from differences of unit vectors. The slope 1/sin of order 0 is left out where the sine is below
# NO_ANGLE: its share of a gradient is as small as the angle, but the rounding errors that it multiplies are not.
NEARLY_PARALLEL = 1e-5
NO_ANGLE = 1e-7
PAIRS_AT_ONCE = 2**18


def inner_products(A: Tensor, B: Tensor, weights: Tensor, bias: Tensor, out: Tensor | None) -> Tensor:
    """Σ_d weights_d x_nd z_md + bias: [N, M]."""
    d = len(weights)
    return torch.mm(A[:, d:], (B[:, d:] * torch.cat([weights, bias[None]])).T, out=out)


def inner_product_gradients(A: Tensor, B: Tensor, H: Tensor) -> tuple[Tensor, Tensor]:
    """Σ_nm H_nm x_nd z_md for every d, [D], and Σ_nm H_nm, by one thin product with H."""
    d = A.shape[1] // 2
    sums = (A[:, d:].T @ H).mul_(B[:, d:].T).sum(1)  # [D + 1]
    return sums[:-1], sums[-1]


def squared_norms(A: Tensor, weights: Tensor, bias: Tensor) -> Tensor:
    """Σ_d weights_d x_nd² + bias: [N]."""
    return A[:, : len(weights)] @ weights + bias


class LinearForm:
    """Σ_d variances_d x_d z_d + bias_variance."""

    temporaries: ClassVar[int] = 0

    def against(self, p: Tensors, B: Tensor) -> Cross:
        return LinearCross(p, B)

    def diagonal(self, p: Tensors, A: Tensor) -> Tensor:
        return squared_norms(A, p["variances"], p["bias_variance"])

    def diagonal_vjp(self, p: Tensors, A: Tensor, weights: Tensor) -> Tensors:
        return {"variances": squares(A).T @ weights, "bias_variance": weights.sum()}


class LinearCross:
    """k(·, z) of the `LinearForm`."""

    def __init__(self, p: Tensors, B: Tensor) -> None:
        self.p, self.B = p, B
        self.totals: Tensors = {}

    def values(self, A: Tensor, out: Tensor | None = None) -> Tensor:
        return inner_products(A, self.B, self.p["variances"], self.p["bias_variance"], out)

    def add_adjoint(
        self, A: Tensor, K_bar: Tensor, scratch: Tensor | None = None, *, holds_values: bool = False
    ) -> None:
        variances_bar, bias_bar = inner_product_gradients(A, self.B, K_bar)
        add_to(self.totals, {"variances": variances_bar, "bias_variance": bias_bar})

    def gradients(self) -> Tensors:
        return self.totals


@dataclass(frozen=True)
class ArcCosineForm:
    """variance/π · (|x| |z|)ⁿ J_n(φ), φ the angle between x and z under ⟨·, ·⟩, |x|² = ⟨x, x⟩ ≥ bias > 0."""

    order: int
    temporaries: ClassVar[int] = 6

    def against(self, p: Tensors, B: Tensor) -> Cross:
        return ArcCosineCross(self.order, p, B)

    def diagonal(self, p: Tensors, A: Tensor) -> Tensor:
        squared = squared_norms(A, p["weight_variances"], p["bias_variance"])
        return p["variance"] * self._at_zero_angle() * squared**self.order

    def diagonal_vjp(self, p: Tensors, A: Tensor, weights: Tensor) -> Tensors:
        n, squared = self.order, squared_norms(A, p["weight_variances"], p["bias_variance"])
        squared_bar = weights * p["variance"] * (self._at_zero_angle() * n) * squared ** max(n - 1, 0)
        return {
            "weight_variances": squares(A).T @ squared_bar,
            "bias_variance": squared_bar.sum(),
            "variance": (weights * squared**n).sum() * self._at_zero_angle(),
        }

    def _at_zero_angle(self) -> float:
        return 3.0 if self.order == 2 else 1.0  # J_n(0)/π


class ArcCosineCross:
    """k(·, z) of an `ArcCosineForm`."""

    def __init__(self, order: int, p: Tensors, B: Tensor) -> None:
        self.order, self.p, self.B = order, p, B
        self.totals: Tensors = {}

    def values(self, A: Tensor, out: Tensor | None = None) -> Tensor:
        angle, a, b = self._angles(A, out)
        J = _angular(self.order, angle)
        if self.order:
            J.mul_((a**self.order)[:, None]).mul_(b**self.order)
        return torch.mul(J, self.p["variance"] / math.pi, out=out)

    def add_adjoint(
        self, A: Tensor, K_bar: Tensor, scratch: Tensor | None = None, *, holds_values: bool = False
    ) -> None:
        n = self.order
        angle, a, b = self._angles(A, scratch)
        magnitude = K_bar.mul_(self.p["variance"] / math.pi)
        if n:
            magnitude.mul_((a**n)[:, None]).mul_(b**n)
        radial = _angular(n, angle).mul_(magnitude)  # K_bar ∘ K
        turning = _angular_slope(n, angle).mul_(magnitude)  # K_bar ∘ ∂k/∂cos φ
        # With S = ⟨x, z⟩: cos φ = S/(ab) and k ∝ (ab)ⁿ J(φ), so that for a weight w, with a² = ⟨x, x⟩, b² = ⟨z, z⟩,
        #   ∂k/∂w = k_cos/(ab) ∂S/∂w + ½(n k − k_cos cos φ)(∂a²/∂w /a² + ∂b²/∂w /b²)
        lengths = radial * n - turning * angle.cos()
        a2_bar, b2_bar = lengths.sum(1) / (2.0 * a.square()), lengths.sum(0) / (2.0 * b.square())  # of a² and b²
        weights_bar, bias_bar = inner_product_gradients(A, self.B, turning.div_(a[:, None]).div_(b))
        term = {
            "weight_variances": weights_bar + squares(A).T @ a2_bar + squares(self.B).T @ b2_bar,
            "bias_variance": bias_bar + a2_bar.sum() + b2_bar.sum(),
            "variance": radial.sum() / self.p["variance"],
        }
        add_to(self.totals, term)

    def gradients(self) -> Tensors:
        return self.totals

    def _angles(self, A: Tensor, out: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Angles [N, M] between rows x and z, and their lengths [N] and [M]."""
        weights, bias, B = self.p["weight_variances"], self.p["bias_variance"], self.B
        a, b = squared_norms(A, weights, bias).sqrt(), squared_norms(B, weights, bias).sqrt()
        cosine = inner_products(A, B, weights, bias, out).div_(a[:, None]).div_(b).clamp_(-1.0, 1.0)
        pairs = (cosine.abs() > 1.0 - NEARLY_PARALLEL).nonzero()
        angle = cosine.acos_()
        if len(pairs):
            roots, d = torch.cat([weights, bias[None]]).sqrt(), len(weights)
            x, z = A[:, d:] * roots / a[:, None], B[:, d:] * roots / b[:, None]  # unit vectors
            for part in torch.split(pairs, PAIRS_AT_ONCE):
                n, m = part[:, 0], part[:, 1]
                difference, total = (x[n] - z[m]).norm(dim=1), (x[n] + z[m]).norm(dim=1)
                angle[n, m] = 2.0 * torch.atan2(difference, total)  # Kahan: accurate at every angle
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


@dataclass(frozen=True)
class Linear(Kernel):
    """Σ_d variances_d x_d z_d + bias_variance: Bayesian linear regression."""

    variances: npt.ArrayLike = 1.0
    bias_variance: npt.ArrayLike = 1.0

    def formula(self, p: Tensors, X: Tensor, Z: Tensor) -> Tensor:
        return (X * p["variances"]) @ Z.T + p["bias_variance"]

    def random_features(self, count: int, random: np.random.Generator, like: Tensor) -> Features:
        p = self._tensors(like)
        return lambda X: torch.cat([X * p["variances"].sqrt(), p["bias_variance"].sqrt().expand(len(X), 1)], 1)[
            :, :, None
        ]

    def _form(self) -> Form:
        return LinearForm()


@dataclass(frozen=True)
class ArcCosine(Kernel):
    """variance/π · (|x| |z|)ⁿ J_n(φ) with ⟨x, z⟩ = Σ_d weight_variances_d x_d z_d + bias_variance.

    The limit of a wide one-layer network with step (order 0), ReLU (order 1) or squared ReLU (order 2) units. x and z
    are measured from `origin`, a number or one per input: near it the functions change fastest.
    """

    order: int = 0
    weight_variances: npt.ArrayLike = 1.0
    bias_variance: npt.ArrayLike = 1.0
    variance: npt.ArrayLike = 1.0
    origin: float | Sequence[float] = 0.0
    settings: ClassVar[tuple[str, ...]] = ("order", "origin")

    def __post_init__(self) -> None:
        if self.order not in (0, 1, 2):
            raise ValueError(f"order must be 0, 1 or 2, got {self.order!r}")
        try:
            origin = np.array(self.origin, dtype=np.float64)
        except (TypeError, ValueError) as error:
            raise ValueError(f"origin must be a number or one per input, got {self.origin!r}") from error
        if origin.ndim > 1 or origin.size == 0 or not np.isfinite(origin).all():
            raise ValueError(f"origin must be a finite number or one per input, got {self.origin!r}")
        object.__setattr__(self, "origin", tuple(origin.tolist()) if origin.ndim else float(origin))
        super().__post_init__()

    def __repr__(self) -> str:
        return super().__repr__().replace("origin=0.0, ", "")  # the default is not shown

    def for_inputs(self, n_inputs: int) -> Self:
        if isinstance(self.origin, tuple) and len(self.origin) != n_inputs:
            raise ValueError(f"origin has {len(self.origin)} values, but the inputs have {n_inputs} columns")
        return super().for_inputs(n_inputs)

    def measured(self, X: Tensor, centre: Tensor) -> Tensor:
        return X if self.origin == 0.0 else X - X.new_tensor(self.origin)

    def random_features(self, count: int, random: np.random.Generator, like: Tensor) -> Features:
        p = self._tensors(like)
        units = like.new_tensor(random.standard_normal((count, like.shape[1] + 1)))

        def at(X: Tensor) -> Tensor:  # the variance of these units is k(x, z) (Cho and Saul 2009)
            activity = self._with_bias(p, self.measured(X, X)) @ units.T
            active = (activity > 0.0).to(X.dtype)
            return (active * activity**self.order)[:, None].mul_(math.sqrt(2.0 * float(p["variance"])))

        return at

    def _with_bias(self, p: Tensors, X: Tensor) -> Tensor:
        """Rows between which ⟨·, ·⟩ is the usual inner product: [N, D + 1]."""
        roots = torch.cat([p["weight_variances"], p["bias_variance"][None]]).sqrt()
        return torch.nn.functional.pad(X, (0, 1), value=1.0) * roots

    def formula(self, p: Tensors, X: Tensor, Z: Tensor) -> Tensor:
        x, z = self._with_bias(p, X), self._with_bias(p, Z)
        a, b = x.norm(dim=1, keepdim=True), z.norm(dim=1, keepdim=True)
        angle = 2.0 * torch.atan2(distances(x / a, z / b), distances(x / a, -z / b))  # Kahan: accurate at every angle
        lengths: Tensor = (a @ b.T) ** self.order
        return p["variance"] / math.pi * lengths * _angular(self.order, angle)

    def _form(self) -> Form:
        return ArcCosineForm(self.order)
