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

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from nearexact.kernels.base import Kernel
from nearexact.kernels.form import Cross, Form, Tensors, distances, inputs, quadratic_features, squares
from nearexact.kernels.random_features import Features, waves

# The product form |x|² + |z|² − 2xz leaves an error of a few eps·(|x|² + |z|²) in a squared distance. Pairs closer than
# the fraction NEAR of |x|² + |z|² are computed from differences instead, which keeps the relative error below 1e-9. For
# kernels that are smooth at distance zero the error matters only where norms are above LARGE_NORM.
NEAR = 1e-6
LARGE_NORM = 1e5
PAIRS_AT_ONCE = 2**18

Near = list[tuple[Tensor, Tensor]]  # rows of X and rows of Z of pairs that nearly coincide


class Distances:
    """q = scale·Σ_d weights_d (x_d − z_d)² between rows x with quadratic features A and fixed rows z with features B.

    The weights (one over squared lengthscales) go to the side of z, which is small. `singular` is for kernels that are
    not smooth at q = 0.
    """

    def __init__(self, B: Tensor, weights: Tensor, *, scale: float, singular: bool = False) -> None:
        self.d, self.Z, self.weights = B.shape[1] // 2, inputs(B), weights * scale
        self.norms = squares(B) @ self.weights  # scale·|z|²  [M]
        columns = [self.weights.expand_as(self.Z), self.Z * (-2.0 * self.weights), self.norms[:, None]]
        self.factor = torch.cat(columns, dim=1).T  # q = A @ factor  [2D + 1, M]
        # Whether near pairs are computed from differences. Rows that are near have similar norms: those of z tell.
        self.restores = singular or bool((self.norms.abs() > LARGE_NORM).any())
        self.sums = torch.zeros_like(self.factor)  # Σ_n H_nm [x_n², x_n, 1]  [2D + 1, M]
        self.near_squares, self.near_total = torch.zeros_like(weights), weights.new_zeros(())

    def values(self, A: Tensor, out: Tensor | None) -> tuple[Tensor, Near]:
        """q [N, M], and the pairs in it that were computed from differences."""
        Q = torch.mm(A, self.factor, out=out)
        if not self.restores:
            return Q, []
        bounds = (squares(A) @ self.weights)[:, None] + self.norms  # scale·(|x|² + |z|²)  [N, M]
        pairs = (Q.abs() <= bounds.abs_().mul_(NEAR)).nonzero()
        near = [(part[:, 0], part[:, 1]) for part in torch.split(pairs, PAIRS_AT_ONCE)]
        for n, m in near:
            Q[n, m] = self._squared_differences(A, n, m) @ self.weights
        return Q, near

    def add(self, A: Tensor, H: Tensor, near: Near, factor: float = 1.0) -> None:
        """Add factor·Σ_nm H_nm q_nm to what is differentiated, by one thin product with H. Overwrites H."""
        for n, m in near:
            weights = H[n, m] * factor
            self.near_squares += weights @ self._squared_differences(A, n, m)
            self.near_total += weights.sum()
            H[n, m] = 0.0
        self.sums.addmm_(A.T, H, alpha=factor)

    def weighted(self) -> tuple[Tensor, Tensor]:
        """Σ_nm H_nm (x_nd − z_md)² for every d, [D], and Σ_nm H_nm, over all that was added."""
        H_squares, H_inputs, H_total = self.sums[: self.d], self.sums[self.d : -1], self.sums[-1]
        weighted = (H_squares + self.Z.T * (self.Z.T * H_total - 2.0 * H_inputs)).sum(1)
        return weighted + self.near_squares, H_total.sum() + self.near_total

    def _squared_differences(self, A: Tensor, n: Tensor, m: Tensor) -> Tensor:
        return (inputs(A)[n] - self.Z[m]).square_()  # [pairs, D]


class SquaredExponentialCross:
    """variance · exp(−½|x − z|²) with distances in lengthscales.

    The variance multiplies the exponential. To add its logarithm to the exponent would save a pass over [N, M], but
    the rounding error of a larger exponent makes the ELBO four times noisier where K_ZZ is ill-conditioned.
    """

    def __init__(self, p: Tensors, B: Tensor) -> None:
        self.p, self.variance = p, float(p["variance"])
        self.distances = Distances(B, p["lengthscales"] ** -2.0, scale=-0.5)

    def values(self, A: Tensor, out: Tensor | None = None) -> Tensor:
        K = self.distances.values(A, out)[0].exp_()
        return K if self.variance == 1.0 else K.mul_(self.variance)

    def add_adjoint(
        self, A: Tensor, K_bar: Tensor, scratch: Tensor | None = None, *, holds_values: bool = False
    ) -> None:
        if holds_values and scratch is not None and not self.distances.restores:
            self.distances.add(A, scratch.mul_(K_bar), [])  # K_bar ∘ ∂k/∂q = K_bar ∘ K
        else:
            Q, near = self.distances.values(A, scratch)
            self.distances.add(A, Q.exp_().mul_(K_bar), near, factor=self.variance)

    def gradients(self) -> Tensors:
        weighted, total = self.distances.weighted()
        return {"lengthscales": weighted / self.p["lengthscales"] ** 3, "variance": total / self.variance}


class SquaredExponentialForm:
    """variance · exp(−½ Σ_d (x_d − z_d)²/l_d²)."""

    temporaries: ClassVar[int] = 2

    def against(self, p: Tensors, B: Tensor) -> Cross:
        return SquaredExponentialCross(p, B)

    def diagonal(self, p: Tensors, A: Tensor) -> Tensor:
        return constant_diagonal(p, A)

    def diagonal_vjp(self, p: Tensors, A: Tensor, weights: Tensor) -> Tensors:
        return constant_diagonal_vjp(p, weights)


@dataclass(frozen=True)
class MaternForm:
    """variance · f(q), q = scale · Σ_d (x_d − z_d)²/l_d²; `shape` and `slope` are f and ∂f/∂q as functions of √q."""

    scale: float
    shape: Callable[[Tensor], Tensor]
    slope: Callable[[Tensor], Tensor]
    singular_at_zero: bool = False
    temporaries: ClassVar[int] = 8

    def against(self, p: Tensors, B: Tensor) -> Cross:
        return MaternCross(self, p, B)

    def diagonal(self, p: Tensors, A: Tensor) -> Tensor:
        return constant_diagonal(p, A)

    def diagonal_vjp(self, p: Tensors, A: Tensor, weights: Tensor) -> Tensors:
        return constant_diagonal_vjp(p, weights)


class MaternCross:
    """k(·, z) of a `MaternForm`."""

    def __init__(self, form: MaternForm, p: Tensors, B: Tensor) -> None:
        self.form, self.p, self.variance = form, p, float(p["variance"])
        weights = p["lengthscales"] ** -2.0
        self.distances = Distances(B, weights, scale=form.scale, singular=form.singular_at_zero)
        self.variance_bar = B.new_zeros(())

    def values(self, A: Tensor, out: Tensor | None = None) -> Tensor:
        root = self.distances.values(A, out)[0].clamp_(min=0.0).sqrt_()
        return torch.mul(self.form.shape(root), self.variance, out=root)

    def add_adjoint(
        self, A: Tensor, K_bar: Tensor, scratch: Tensor | None = None, *, holds_values: bool = False
    ) -> None:
        Q, near = self.distances.values(A, scratch)
        root = Q.clamp_(min=0.0).sqrt_()
        self.variance_bar += torch.linalg.vecdot(self.form.shape(root).ravel(), K_bar.ravel())
        self.distances.add(A, K_bar.mul_(self.form.slope(root)), near)

    def gradients(self) -> Tensors:
        weighted, _ = self.distances.weighted()
        factor = -2.0 * self.form.scale * self.variance  # ∂q/∂l_d = −2·scale·(x_d − z_d)²/l_d³
        return {"lengthscales": weighted * factor / self.p["lengthscales"] ** 3, "variance": self.variance_bar}


class PeriodicForm:
    """The squared exponential of φ(x), which maps each input to a point on a circle.

    Σ_d sin²(π(x_d − z_d)/period_d) is a quarter of |φ(x) − φ(z)|².
    """

    temporaries: ClassVar[int] = 2

    def against(self, p: Tensors, B: Tensor) -> Cross:
        return PeriodicCross(p, B)

    def diagonal(self, p: Tensors, A: Tensor) -> Tensor:
        return constant_diagonal(p, A)

    def diagonal_vjp(self, p: Tensors, A: Tensor, weights: Tensor) -> Tensors:
        return constant_diagonal_vjp(p, weights)


class PeriodicCross:
    """k(·, z) of the `PeriodicForm`."""

    def __init__(self, p: Tensors, B: Tensor) -> None:
        self.p, self.variance, self.B = p, float(p["variance"]), B
        self.features_Z = self._on_circles(B)  # features of φ(z)  [M, 4D + 1]
        self.distances = Distances(self.features_Z, (p["lengthscales"] ** -2.0).repeat(2), scale=-0.5)
        self.period_bar = torch.zeros_like(p["period"])

    def values(self, A: Tensor, out: Tensor | None = None) -> Tensor:
        return self.distances.values(self._on_circles(A), out)[0].exp_().mul_(self.variance)

    def add_adjoint(
        self, A: Tensor, K_bar: Tensor, scratch: Tensor | None = None, *, holds_values: bool = False
    ) -> None:
        points = self._on_circles(A)
        Q, near = self.distances.values(points, scratch)
        H = Q.exp_().mul_(K_bar)  # K_bar ∘ K / variance
        x, z = inputs(points), inputs(self.features_Z)  # [N, 2D], [M, 2D]
        self.period_bar += self._period_vjp(A, x, H @ z - H.sum(1, keepdim=True) * x)
        self.period_bar += self._period_vjp(self.B, z, H.T @ x - H.sum(0)[:, None] * z)
        self.distances.add(points, H, near)

    def gradients(self) -> Tensors:
        weighted, total = self.distances.weighted()
        cosines, sines = weighted.chunk(2)
        return {
            "period": self.period_bar * self.variance,
            "lengthscales": (cosines + sines) * self.variance / self.p["lengthscales"] ** 3,
            "variance": total,
        }

    def _on_circles(self, A: Tensor) -> Tensor:
        """Quadratic features of φ(x), the points (cos, sin) of all inputs: [N, 4D + 1]."""
        angles = inputs(A) * (2.0 * math.pi / self.p["period"])
        return quadratic_features(torch.cat([angles.cos(), angles.sin()], dim=1))

    def _period_vjp(self, A: Tensor, points: Tensor, points_bar: Tensor) -> Tensor:
        """From the adjoint of points (cos, sin) on circles, before the lengthscales, to that of the period."""
        cosines, sines = points.chunk(2, dim=1)
        cosines_bar, sines_bar = points_bar.chunk(2, dim=1)
        angles_bar = (cosines * sines_bar - sines * cosines_bar) / self.p["lengthscales"].square()
        return -(inputs(A) * angles_bar).sum(0) * (2.0 * math.pi / self.p["period"].square())


def scaled_distances(p: Tensors, X: Tensor, Z: Tensor) -> Tensor:
    """|x − z| in lengthscales."""
    return distances(X / p["lengthscales"], Z / p["lengthscales"])


def matern_waves(p: Tensors, count: int, random: np.random.Generator, smoothness: float) -> Features:
    """Waves whose frequencies follow a t-distribution with 2·smoothness degrees of freedom; a normal one in the limit.

    That is the spectral density of a Matérn kernel, and of the squared exponential.
    """
    frequencies = random.standard_normal((count, len(p["lengthscales"])))
    if math.isfinite(smoothness):
        frequencies /= np.sqrt(random.chisquare(2.0 * smoothness, (count, 1)) / (2.0 * smoothness))
    return waves(p["lengthscales"].new_tensor(frequencies) / p["lengthscales"], p["variance"])


def constant_diagonal(p: Tensors, A: Tensor) -> Tensor:
    """k(x, x) of a stationary kernel: the variance, for every row."""
    return A.new_full((len(A),), float(p["variance"]))


def constant_diagonal_vjp(p: Tensors, weights: Tensor) -> Tensors:
    """Its gradient: only the variance matters."""
    return {name: torch.zeros_like(value) for name, value in p.items()} | {"variance": weights.sum()}


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


@dataclass(frozen=True)
class SquaredExponential(Kernel):
    """variance · exp(−½ r²), r² = Σ_d (x_d − z_d)²/lengthscales_d²: infinitely differentiable functions."""

    lengthscales: npt.ArrayLike = 1.0
    variance: npt.ArrayLike = 1.0
    stationary: ClassVar[bool] = True

    def formula(self, p: Tensors, X: Tensor, Z: Tensor) -> Tensor:
        return p["variance"] * torch.exp(-0.5 * scaled_distances(p, X, Z).square())

    def random_features(self, count: int, random: np.random.Generator, like: Tensor) -> Features:
        return matern_waves(self._tensors(like), count, random, math.inf)

    def _form(self) -> Form:
        return SquaredExponentialForm()


@dataclass(frozen=True)
class Matern12(Kernel):
    """variance · exp(−r), r² = Σ_d (x_d − z_d)²/lengthscales_d²: continuous, rough functions."""

    lengthscales: npt.ArrayLike = 1.0
    variance: npt.ArrayLike = 1.0
    stationary: ClassVar[bool] = True

    def formula(self, p: Tensors, X: Tensor, Z: Tensor) -> Tensor:
        return p["variance"] * torch.exp(-scaled_distances(p, X, Z))

    def random_features(self, count: int, random: np.random.Generator, like: Tensor) -> Features:
        return matern_waves(self._tensors(like), count, random, 0.5)

    def _form(self) -> Form:
        return MATERN12


@dataclass(frozen=True)
class Matern32(Kernel):
    """variance · (1 + √3 r) exp(−√3 r), r² = Σ_d (x_d − z_d)²/lengthscales_d²: once differentiable functions."""

    lengthscales: npt.ArrayLike = 1.0
    variance: npt.ArrayLike = 1.0
    stationary: ClassVar[bool] = True

    def formula(self, p: Tensors, X: Tensor, Z: Tensor) -> Tensor:
        r = math.sqrt(3.0) * scaled_distances(p, X, Z)
        return p["variance"] * (1.0 + r) * torch.exp(-r)

    def random_features(self, count: int, random: np.random.Generator, like: Tensor) -> Features:
        return matern_waves(self._tensors(like), count, random, 1.5)

    def _form(self) -> Form:
        return MATERN32


@dataclass(frozen=True)
class Matern52(Kernel):
    """variance · (1 + √5 r + 5/3 r²) exp(−√5 r), r² = Σ_d (x_d − z_d)²/lengthscales_d²: twice differentiable."""

    lengthscales: npt.ArrayLike = 1.0
    variance: npt.ArrayLike = 1.0
    stationary: ClassVar[bool] = True

    def formula(self, p: Tensors, X: Tensor, Z: Tensor) -> Tensor:
        r = math.sqrt(5.0) * scaled_distances(p, X, Z)
        return p["variance"] * (1.0 + r + r.square() / 3.0) * torch.exp(-r)

    def random_features(self, count: int, random: np.random.Generator, like: Tensor) -> Features:
        return matern_waves(self._tensors(like), count, random, 2.5)

    def _form(self) -> Form:
        return MATERN52


@dataclass(frozen=True)
class Periodic(Kernel):
    """variance · exp(−2 Σ_d sin²(π(x_d − z_d)/period_d)/lengthscales_d²)."""

    period: npt.ArrayLike = 1.0
    lengthscales: npt.ArrayLike = 1.0
    variance: npt.ArrayLike = 1.0
    stationary: ClassVar[bool] = True

    def formula(self, p: Tensors, X: Tensor, Z: Tensor) -> Tensor:
        angles = [2.0 * math.pi / p["period"] * rows for rows in (X, Z)]
        x, z = (torch.cat([angle.cos(), angle.sin()], dim=1) / p["lengthscales"].repeat(2) for angle in angles)
        return p["variance"] * torch.exp(-0.5 * distances(x, z).square())

    def random_features(self, count: int, random: np.random.Generator, like: Tensor) -> Features:
        p = self._tensors(like)
        # exp((cos α − 1)/l²) = Σ_j P(j) cos jα, where P is the distribution of the difference of two Poisson variables.
        mean = np.broadcast_to(0.5 / self.parameters["lengthscales"] ** 2, (count, like.shape[1]))
        multiples = like.new_tensor((random.poisson(mean) - random.poisson(mean)).astype(np.float64))
        return waves(2.0 * math.pi * multiples / p["period"], p["variance"])

    def _form(self) -> Form:
        return PeriodicForm()
