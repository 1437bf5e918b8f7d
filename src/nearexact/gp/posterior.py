"""Predictions at one θ: a sparse GP's from quantities of size M, an exact GP's from all rows."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from nearexact.gp.bounds import LikelihoodBounds
from nearexact.gp.linalg import cholesky_log_det, dot, sample_gaussian, solve_rows
from nearexact.gp.memory import chunk_rows, row_chunks
from nearexact.gp.row_noise import RowNoise, noise_variances
from nearexact.gp.safety import ROUNDING_SAFETY, Repairs, clamp_variances
from nearexact.kernels.base import Kernel
from nearexact.validation import as_matrix

NEGLIGIBLE_ERROR = 1e-4  # of a likelihood, in nats per row


@dataclass(frozen=True)
class RowSums:
    """Sums over the rows of the data that a sparse GP's bounds need, besides its factors: they are additive."""

    n: int  # rows
    yy: float  # yᵀy, this and all others of scaled rows where these have noise of their own
    trace: float  # tr(K − Q)
    log_residuals: float  # Σ log(1 + d_n/s)
    log_scales: float = 0.0  # Σ log ω_n²
    residual_error: float = 0.0  # by how much each d_n may be off


@dataclass(frozen=True, eq=False)
class SparsePosterior:
    """Predictions of a sparse GP from quantities of size M; the data are no longer needed."""

    kernel: Kernel
    noise_variance: float
    Z: Tensor  # [M, D]
    L: Tensor  # chol(K_ZZ + jitter·I)  [M, M]
    L_B: Tensor  # chol(I + VVᵀ/s)  [M, M]
    weights: Tensor  # B⁻¹b/s  [M], or [M, T] of several targets; means are then [N, T]
    repairs: Repairs
    sums: RowSums | None = None  # what it takes to add rows, where it is known

    @property
    def inducing_points(self) -> Tensor:
        """Z [M, D]."""
        return self.Z

    def predict(self, X: Any) -> tuple[Tensor, Tensor]:
        """Mean and variance [N] of the latent function at each row of X; in chunks, so N may be millions."""
        inputs = as_matrix(X, "X", self.Z.device, columns=self.Z.shape[1])
        mean, variance = new_means(inputs, self.weights), inputs.new_empty(len(inputs))
        centre = self.Z.mean(0)
        cross = self.kernel.against(self.kernel.features(self.Z, centre))
        for rows in row_chunks(len(inputs), chunk_rows(len(self.Z))):
            features = self.kernel.features(inputs[rows], centre)
            V = solve_rows(self.L, cross.values(features))
            mean[rows] = V @ self.weights
            U = solve_rows(self.L_B, V.clone())
            # k(x, x) − v*ᵀv* + v*ᵀB⁻¹v*
            variance[rows] = self.kernel.diagonal(features) - V.square_().sum(1) + U.square_().sum(1)
        return mean, clamp_variances(variance, self.repairs)

    def mean(self, X: Any) -> Tensor:
        """The mean [N] alone, with half the work."""
        inputs = as_matrix(X, "X", self.Z.device, columns=self.Z.shape[1])
        mean, centre = new_means(inputs, self.weights), self.Z.mean(0)
        cross = self.kernel.against(self.kernel.features(self.Z, centre))
        for rows in row_chunks(len(inputs), chunk_rows(len(self.Z))):
            mean[rows] = solve_rows(self.L, cross.values(self.kernel.features(inputs[rows], centre))) @ self.weights
        return mean

    def joint(self, X: Any) -> tuple[Tensor, Tensor]:
        """Mean [N] and full covariance [N, N] of the latent function at the rows of X."""
        centre = self.Z.mean(0)
        features = self.kernel.features(as_matrix(X, "X", self.Z.device, columns=self.Z.shape[1]), centre)
        V = solve_rows(self.L, self.kernel.cross(features, self.kernel.features(self.Z, centre)))
        U = solve_rows(self.L_B, V.clone())
        covariance = self.kernel.gram(features).addmm_(V, V.T, alpha=-1.0).addmm_(U, U.T)
        clamp_variances(covariance.diagonal(), self.repairs)
        return V @ self.weights, covariance

    def differentiable(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """The same as `predict`, of float64 rows X [N, D], by operations that torch differentiates by X."""
        V = torch.linalg.solve_triangular(self.L, self.kernel.differentiable(X, self.Z).T, upper=False)  # [M, N]
        U = torch.linalg.solve_triangular(self.L_B, V, upper=False)
        variance = self.kernel.differentiable_diagonal(X) - V.square().sum(0) + U.square().sum(0)
        return V.T @ self.weights, variance.clamp(min=0.0)

    def sample(self, X: Any, n_samples: int, seed: int) -> Tensor:
        """Draws of the latent function at the rows of X: [n_samples, N]."""
        return sample_gaussian(*self.joint(X), n_samples, seed, self.repairs)


@dataclass(frozen=True, eq=False)
class ExactPosterior:
    """An exact GP at one θ: its log marginal likelihood and its predictions."""

    kernel: Kernel
    noise_variance: float
    X: Tensor  # [N, D]
    centre: Tensor  # from which features are measured [D]
    features_X: Tensor  # features of the inputs [N, F]
    y: Tensor  # [N], or [N, T] of several targets; means are then [N*, T]
    L: Tensor  # chol(K + sI)  [N, N]
    weights: Tensor  # α = (K + sI)⁻¹y  [N], or [N, T]
    jitter: float
    repairs: Repairs
    row_noise: RowNoise | None = None  # what takes the place of sI

    @property
    def inducing_points(self) -> Tensor:
        """All inputs [N, D], in the place of a sparse model's."""
        return self.X

    @cached_property
    def bounds(self) -> LikelihoodBounds:
        """The two parts of the log marginal likelihood, log|K + sI| and yᵀ(K + sI)⁻¹y: exact but for rounding."""
        quadratic, targets = dot(self.y, self.weights), self.y[0].numel()
        error = self._rounding(quadratic / targets)
        error = error if error > NEGLIGIBLE_ERROR * len(self.y) else 0.0
        return LikelihoodBounds.exact(len(self.y), float(cholesky_log_det(self.L)), quadratic, targets, error)

    def _rounding(self, quadratic: float) -> float:
        """About how far the likelihood of a target may be off, in nats. Jitter is noise that θ does not know of."""
        jitter = self.jitter / self.least_noise
        return rounding_error(self.relative_rounding) + 0.5 * (len(self.y) * math.log1p(jitter) + quadratic * jitter)

    @cached_property
    def least_noise(self) -> float:
        """The noise variance of the row that has least: no eigenvalue of K + sI is below it."""
        return least_noise(self.row_noise, self.noise_variance)

    @cached_property
    def diagonal(self) -> Tensor:
        """k(x, x) of each row [N]."""
        return self.kernel.diagonal(self.features_X)

    @cached_property
    def relative_rounding(self) -> float:
        """Rounding errors relative to the least that an eigenvalue can be, summed over the diagonal."""
        return relative_rounding(self.diagonal, self.least_noise, torch.finfo(self.L.dtype).eps)

    @property
    def sure_lml(self) -> float:
        """The log marginal likelihood less what rounding may have added to it: what training maximises."""
        return self.lml - self.y[0].numel() * rounding_error(self.relative_rounding)

    @property
    def hidden_slope(self) -> float:
        """How steeply the likelihood may still rise as the signal grows, where rounding ends that: nats per e-fold."""
        return self.y[0].numel() * rounding_slope(self.relative_rounding) * self.relative_rounding

    @property
    def lml(self) -> float:
        """Log marginal likelihood."""
        return self.bounds.elbo

    def predict(self, X: Any) -> tuple[Tensor, Tensor]:
        """Mean and variance [N*] of the latent function at each row of X, in chunks."""
        inputs = as_matrix(X, "X", self.y.device, columns=len(self.centre))
        mean, variance = new_means(inputs, self.weights), inputs.new_empty(len(inputs))
        for rows in row_chunks(len(inputs), chunk_rows(len(self.y))):
            features = self.kernel.features(inputs[rows], self.centre)
            K = self.kernel.cross(features, self.features_X)  # [rows, N]
            mean[rows] = K @ self.weights
            variance[rows] = self.kernel.diagonal(features) - solve_rows(self.L, K).square_().sum(1)
        return mean, clamp_variances(variance, self.repairs)

    def mean(self, X: Any) -> Tensor:
        """The mean [N*] alone: no solve is needed for it."""
        inputs = as_matrix(X, "X", self.y.device, columns=len(self.centre))
        mean = new_means(inputs, self.weights)
        for rows in row_chunks(len(inputs), chunk_rows(len(self.y))):
            mean[rows] = (
                self.kernel.cross(self.kernel.features(inputs[rows], self.centre), self.features_X) @ self.weights
            )
        return mean

    def joint(self, X: Any) -> tuple[Tensor, Tensor]:
        """Mean [N*] and full covariance [N*, N*] of the latent function at the rows of X."""
        features = self.kernel.features(as_matrix(X, "X", self.y.device, columns=len(self.centre)), self.centre)
        K = self.kernel.cross(features, self.features_X)  # [N*, N]
        mean = K @ self.weights
        V = solve_rows(self.L, K)
        covariance = self.kernel.gram(features).addmm_(V, V.T, alpha=-1.0)
        clamp_variances(covariance.diagonal(), self.repairs)
        return mean, covariance

    def differentiable(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """The same as `predict`, of float64 rows X [N*, D], by operations that torch differentiates by X."""
        K = self.kernel.differentiable(X, self.X)  # [N*, N]
        V = torch.linalg.solve_triangular(self.L, K.T, upper=False)
        variance = self.kernel.differentiable_diagonal(X) - V.square().sum(0)
        return K @ self.weights, variance.clamp(min=0.0)

    def sample(self, X: Any, n_samples: int, seed: int) -> Tensor:
        """Draws of the latent function at the rows of X: [n_samples, N*]."""
        return sample_gaussian(*self.joint(X), n_samples, seed, self.repairs)


def least_noise(row_noise: RowNoise | None, noise_variance: float) -> float:
    """The noise variance of the row that has least."""
    noise = noise_variances(row_noise, noise_variance)
    return float(noise.min()) if isinstance(noise, Tensor) else noise


def relative_rounding(diagonal: Tensor, least_noise: float, eps: float) -> float:
    """Rounding errors of K + sI relative to the least that an eigenvalue can be, summed over the diagonal of K."""
    return float(diagonal.sum()) * eps / least_noise


def rounding_error(relative: float) -> float:
    """About how far a log marginal likelihood may be off, in nats, where rounding errors are so large.

    They count where the signal is 1e10 times the noise or more.
    """
    return ROUNDING_SAFETY * relative * (1.0 + relative)


def rounding_slope(relative: float) -> float:
    """The derivative of that."""
    return ROUNDING_SAFETY * (1.0 + 2.0 * relative)


def new_means(inputs: Tensor, weights: Tensor) -> Tensor:
    """Room for the mean of each row of the inputs, or for those of several targets."""
    return inputs.new_empty(len(inputs), *weights.shape[1:])
