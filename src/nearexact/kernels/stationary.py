"""Kernels of a distance: squared exponential, Matérn 1/2, 3/2 and 5/2, and the periodic kernel.

All of them are functions of q, a multiple of the squared distance between features of the inputs. Distances come from
one augmented matrix product, and gradients need only thin products with the weights H = K_bar ∘ ∂k/∂q, so that no
array is ever larger than [N, M].
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy.typing as npt
import torch
from torch import Tensor

from nearexact.kernels.base import Form, Kernel, Tensors, quadratic_features

# The product form |x|² + |z|² − 2xz leaves an error of a few eps·(|x|² + |z|²) in a squared distance. Pairs closer than
# this fraction of |x|² + |z|² are treated by differences instead, which keeps the relative error below 1e-9. Kernels
# that are smooth at distance zero notice such errors only where the norms are large.
NEAR = 1e-6
LARGE_NORM = 1e5
PAIRS_AT_ONCE = 2**18


class Distances:
    """Weighted squared distances between rows with quadratic features A [N, 2D + 1] and B [M, 2D + 1].

    The weights (one over squared lengthscales) go to B's side, which is small.
    """

    def __init__(self, A: Tensor, B: Tensor) -> None:
        self.A, self.d = A, A.shape[1] // 2
        self.X, self.Z = inputs(A), inputs(B)  # [N, D], [M, D]
        self.Z_squared = B[:, : self.d]
        self.near: list[tuple[Tensor, Tensor]] = []  # rows of X and of Z that nearly coincide

    def scaled(self, weights: Tensor, out: Tensor | None, *, scale: float, singular: bool = False) -> Tensor:
        """scale·Σ_d weights_d (x_nd − z_md)²: [N, M]. `singular` is for kernels that are not smooth at 0."""
        weights = weights * scale
        norms = self.Z_squared @ weights  # scale·|z|²  [M]
        of_Z = torch.cat([weights.expand_as(self.Z), self.Z * (-2.0 * weights), norms[:, None]], dim=1)
        Q = torch.mm(self.A, of_Z.T, out=out)
        if singular or float(norms.abs().max()) > LARGE_NORM:  # near pairs have large norms only if both rows have
            bounds = (self.A[:, : self.d] @ weights)[:, None] + norms  # scale·(|x|² + |z|²)  [N, M]
            rows, columns = (Q.abs() <= bounds.abs_().mul_(NEAR)).nonzero(as_tuple=True)
            parts = torch.split(torch.stack([rows, columns], dim=1), PAIRS_AT_ONCE)
            self.near = [(part[:, 0], part[:, 1]) for part in parts]
            for n, m in self.near:
                Q[n, m] = self._squared_differences(n, m) @ weights
        return Q

    def weighted(self, H: Tensor) -> tuple[Tensor, Tensor]:
        """Σ_nm H_nm (x_nd − z_md)² for every d, [D], and Σ_nm H_nm, by one thin product with H. Overwrites H."""
        squares, total = self.Z.new_zeros(self.d), self.Z.new_zeros(())
        for n, m in self.near:
            weights = H[n, m]
            squares += weights @ self._squared_differences(n, m)
            total += weights.sum()
            H[n, m] = 0.0
        sums = self.A.T @ H  # Σ_n H_nm [x_n², x_n, 1]  [2D + 1, M]
        of_squares, of_X, of_1 = sums[: self.d], sums[self.d : -1], sums[-1]
        squares += (of_squares + self.Z.T * (self.Z.T * of_1 - 2.0 * of_X)).sum(1)
        return squares, total + of_1.sum()

    def _squared_differences(self, n: Tensor, m: Tensor) -> Tensor:
        return (self.X[n] - self.Z[m]).square_()  # [pairs, D]


def inputs(A: Tensor) -> Tensor:
    """The columns x of quadratic features: [N, D]."""
    return A[:, A.shape[1] // 2 : -1]


def constant_diagonal(p: Tensors, A: Tensor) -> Tensor:
    return p["variance"].repeat(len(A))


def constant_diagonal_vjp(p: Tensors, weights: Tensor) -> Tensors:
    return {name: torch.zeros_like(value) for name, value in p.items()} | {"variance": weights.sum()}


@dataclass(frozen=True)
class MaternForm:
    """variance · f(q), q = scale · Σ_d (x_d − z_d)²/l_d²; `shape` and `slope` are f and ∂f/∂q as functions of √q."""

    scale: float
    shape: Callable[[Tensor], Tensor]
    slope: Callable[[Tensor], Tensor]
    singular_at_zero: bool = False
    uses_differences: ClassVar[bool] = True

    def cross(self, p: Tensors, A: Tensor, B: Tensor, out: Tensor | None) -> Tensor:
        root = self._root(p, Distances(A, B), out)
        return torch.mul(self.shape(root), p["variance"], out=root)

    def cross_vjp(self, p: Tensors, A: Tensor, B: Tensor, K_bar: Tensor, scratch: Tensor | None) -> Tensors:
        distances = Distances(A, B)
        root = self._root(p, distances, scratch)
        variance_bar = torch.linalg.vecdot(self.shape(root).ravel(), K_bar.ravel())
        H = K_bar.mul_(self.slope(root)).mul_(p["variance"])  # K_bar ∘ ∂k/∂q
        squares, _ = distances.weighted(H)
        lengthscales_bar = -2.0 * self.scale * squares / p["lengthscales"] ** 3
        return {"lengthscales": lengthscales_bar, "variance": variance_bar}

    def diagonal(self, p: Tensors, A: Tensor) -> Tensor:
        return constant_diagonal(p, A)

    def diagonal_vjp(self, p: Tensors, A: Tensor, weights: Tensor) -> Tensors:
        return constant_diagonal_vjp(p, weights)

    def _root(self, p: Tensors, distances: Distances, out: Tensor | None) -> Tensor:
        weights = p["lengthscales"] ** -2.0
        return distances.scaled(weights, out, scale=self.scale, singular=self.singular_at_zero).clamp_(min=0.0).sqrt_()


# The variance multiplies the exponential instead of adding its logarithm to the exponent: that would save a pass over
# [N, M], but the rounding error of a larger exponent makes the ELBO four times noisier where K_ZZ is ill-conditioned.
def exponentials(distances: Distances, weights: Tensor, out: Tensor | None) -> Tensor:
    """exp(−½ Σ_d weights_d (x_nd − z_md)²): [N, M]."""
    return distances.scaled(weights, out, scale=-0.5).exp_()


class SquaredExponentialForm:
    """variance · exp(−½ Σ_d (x_d − z_d)²/l_d²)."""

    uses_differences: ClassVar[bool] = True

    def cross(self, p: Tensors, A: Tensor, B: Tensor, out: Tensor | None) -> Tensor:
        return exponentials(Distances(A, B), p["lengthscales"] ** -2.0, out).mul_(p["variance"])

    def cross_vjp(self, p: Tensors, A: Tensor, B: Tensor, K_bar: Tensor, scratch: Tensor | None) -> Tensors:
        distances = Distances(A, B)
        H = exponentials(distances, p["lengthscales"] ** -2.0, scratch).mul_(K_bar)  # K_bar ∘ K / variance
        squares, total = distances.weighted(H)
        return {"lengthscales": squares * p["variance"] / p["lengthscales"] ** 3, "variance": total}

    def diagonal(self, p: Tensors, A: Tensor) -> Tensor:
        return constant_diagonal(p, A)

    def diagonal_vjp(self, p: Tensors, A: Tensor, weights: Tensor) -> Tensors:
        return constant_diagonal_vjp(p, weights)


class PeriodicForm:
    """The squared exponential of points on circles: Σ_d sin²(π(x_d − z_d)/p_d) is a quarter of |φ(x) − φ(z)|²."""

    uses_differences: ClassVar[bool] = True

    def cross(self, p: Tensors, A: Tensor, B: Tensor, out: Tensor | None) -> Tensor:
        return exponentials(self._distances(p, A, B), self._weights(p), out).mul_(p["variance"])

    def cross_vjp(self, p: Tensors, A: Tensor, B: Tensor, K_bar: Tensor, scratch: Tensor | None) -> Tensors:
        distances = self._distances(p, A, B)
        H = exponentials(distances, self._weights(p), scratch).mul_(K_bar)  # K_bar ∘ K / variance
        points, others = distances.X, distances.Z  # [N, 2D], [M, 2D]
        period_bar = self._period_vjp(p, inputs(A), H @ others - H.sum(1, keepdim=True) * points)
        period_bar += self._period_vjp(p, inputs(B), H.T @ points - H.sum(0)[:, None] * others)
        squares, total = distances.weighted(H)
        cosines, sines = squares.chunk(2)
        return {
            "period": period_bar * p["variance"],
            "lengthscales": (cosines + sines) * p["variance"] / p["lengthscales"] ** 3,
            "variance": total,
        }

    def diagonal(self, p: Tensors, A: Tensor) -> Tensor:
        return constant_diagonal(p, A)

    def diagonal_vjp(self, p: Tensors, A: Tensor, weights: Tensor) -> Tensors:
        return constant_diagonal_vjp(p, weights)

    def _distances(self, p: Tensors, A: Tensor, B: Tensor) -> Distances:
        return Distances(*(quadratic_features(self._on_circles(p, inputs(features))) for features in (A, B)))

    def _on_circles(self, p: Tensors, X: Tensor) -> Tensor:
        angles = X * (2.0 * math.pi / p["period"])
        return torch.cat([angles.cos(), angles.sin()], dim=1)

    def _weights(self, p: Tensors) -> Tensor:
        return (p["lengthscales"] ** -2.0).repeat(2)

    def _period_vjp(self, p: Tensors, X: Tensor, points_bar: Tensor) -> Tensor:
        """From the adjoint of points (cos, sin) on circles, before the lengthscales, to that of the period."""
        cosines, sines = self._on_circles(p, X).chunk(2, dim=1)
        cosines_bar, sines_bar = points_bar.chunk(2, dim=1)
        angles_bar = (cosines * sines_bar - sines * cosines_bar) / p["lengthscales"].square()
        return -(X * angles_bar).sum(0) * (2.0 * math.pi / p["period"].square())


def _over_twice_root(value: Tensor, root: Tensor) -> Tensor:
    """value/(2·root), and 0 at distance zero, where the contribution to every gradient vanishes."""
    return torch.where(root > 0.0, value / (2.0 * root), 0.0)


MATERN12 = MaternForm(
    scale=1.0,
    shape=lambda s: torch.exp(-s),
    slope=lambda s: _over_twice_root(-torch.exp(-s), s),
    singular_at_zero=True,
)
MATERN32 = MaternForm(
    scale=3.0,
    shape=lambda s: torch.exp(-s).mul_(1.0 + s),
    slope=lambda s: torch.exp(-s).mul_(-0.5),
)
MATERN52 = MaternForm(
    scale=5.0,
    shape=lambda s: torch.exp(-s).mul_(1.0 + s + s * s / 3.0),
    slope=lambda s: torch.exp(-s).mul_(1.0 + s).div_(-6.0),
)


@dataclass(frozen=True, eq=False, repr=False)
class SquaredExponential(Kernel):
    """variance · exp(−½ r²), r² = Σ_d (x_d − z_d)²/lengthscales_d²: infinitely differentiable functions."""

    lengthscales: npt.ArrayLike = 1.0
    variance: npt.ArrayLike = 1.0

    def _form(self) -> Form:
        return SquaredExponentialForm()


@dataclass(frozen=True, eq=False, repr=False)
class Matern12(Kernel):
    """variance · exp(−r), r² = Σ_d (x_d − z_d)²/lengthscales_d²: continuous, rough functions."""

    lengthscales: npt.ArrayLike = 1.0
    variance: npt.ArrayLike = 1.0

    def _form(self) -> Form:
        return MATERN12


@dataclass(frozen=True, eq=False, repr=False)
class Matern32(Kernel):
    """variance · (1 + √3 r) exp(−√3 r), r² = Σ_d (x_d − z_d)²/lengthscales_d²: once differentiable functions."""

    lengthscales: npt.ArrayLike = 1.0
    variance: npt.ArrayLike = 1.0

    def _form(self) -> Form:
        return MATERN32


@dataclass(frozen=True, eq=False, repr=False)
class Matern52(Kernel):
    """variance · (1 + √5 r + 5/3 r²) exp(−√5 r), r² = Σ_d (x_d − z_d)²/lengthscales_d²: twice differentiable."""

    lengthscales: npt.ArrayLike = 1.0
    variance: npt.ArrayLike = 1.0

    def _form(self) -> Form:
        return MATERN52


@dataclass(frozen=True, eq=False, repr=False)
class Periodic(Kernel):
    """variance · exp(−2 Σ_d sin²(π(x_d − z_d)/period_d)/lengthscales_d²)."""

    period: npt.ArrayLike = 1.0
    lengthscales: npt.ArrayLike = 1.0
    variance: npt.ArrayLike = 1.0

    def _form(self) -> Form:
        return PeriodicForm()
