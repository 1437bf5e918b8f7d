"""Exact GP regression: log marginal likelihood, full gradient and posterior from one Cholesky factorisation, O(N³)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from nearexact.gp.bounds import LikelihoodBounds
from nearexact.gp.chunks import chunk_rows, row_chunks, solve_rows
from nearexact.gp.data import as_training_data
from nearexact.gp.linalg import (
    DEFAULT_NUMERICS,
    Numerics,
    Repairs,
    clamp_variances,
    jittered_cholesky,
    log_determinant,
    sample_gaussian,
)
from nearexact.gp.parameters import ParameterLayout
from nearexact.kernels.base import FloatArray, Kernel, Tensors, add_to, as_matrix


@dataclass(frozen=True, eq=False)
class ExactPosterior:
    """An exact GP at one θ: its log marginal likelihood and its predictions."""

    kernel: Kernel
    noise_variance: float
    X: Tensor  # [N, D]
    centre: Tensor  # from which features are measured [D]
    of_X: Tensor  # features of the inputs [N, F]
    y: Tensor  # [N]
    L: Tensor  # chol(K + sI)  [N, N]
    weights: Tensor  # α = (K + sI)⁻¹y  [N]
    jitter: float
    repairs: Repairs

    @property
    def inducing_points(self) -> Tensor:
        """All inputs [N, D], in the place of a sparse model's."""
        return self.X

    @cached_property
    def bounds(self) -> LikelihoodBounds:
        """The two parts of the log marginal likelihood, which need no bounds: log|K + sI| and yᵀ(K + sI)⁻¹y."""
        return LikelihoodBounds.exact(len(self.y), float(log_determinant(self.L)), float(self.y @ self.weights))

    @property
    def lml(self) -> float:
        """Log marginal likelihood."""
        return self.bounds.elbo

    def predict(self, X: Any) -> tuple[Tensor, Tensor]:
        """Mean and variance [N*] of the latent function at each row of X, in chunks."""
        inputs = as_matrix(X, "X", self.y.device, columns=len(self.centre))
        mean, variance = inputs.new_empty(len(inputs)), inputs.new_empty(len(inputs))
        for rows in row_chunks(len(inputs), chunk_rows(len(self.y))):
            features = self.kernel.features(inputs[rows], self.centre)
            K = self.kernel.cross(features, self.of_X)  # [rows, N]
            mean[rows] = K @ self.weights
            variance[rows] = self.kernel.diagonal(features) - solve_rows(self.L, K).square_().sum(1)
        return mean, clamp_variances(variance, self.repairs)

    def mean(self, X: Any) -> Tensor:
        """The mean [N*] alone: no solve is needed for it."""
        inputs = as_matrix(X, "X", self.y.device, columns=len(self.centre))
        mean = inputs.new_empty(len(inputs))
        for rows in row_chunks(len(inputs), chunk_rows(len(self.y))):
            mean[rows] = self.kernel.cross(self.kernel.features(inputs[rows], self.centre), self.of_X) @ self.weights
        return mean

    def joint(self, X: Any) -> tuple[Tensor, Tensor]:
        """Mean [N*] and full covariance [N*, N*] of the latent function at the rows of X."""
        features = self.kernel.features(as_matrix(X, "X", self.y.device, columns=len(self.centre)), self.centre)
        K = self.kernel.cross(features, self.of_X)  # [N*, N]
        mean = K @ self.weights
        V = solve_rows(self.L, K)
        covariance = self.kernel.gram(features).addmm_(V, V.T, alpha=-1.0)
        clamp_variances(covariance.diagonal(), self.repairs)
        return mean, covariance

    def sample(self, X: Any, n_samples: int, seed: int) -> Tensor:
        """Draws of the latent function at the rows of X: [n_samples, N*]."""
        return sample_gaussian(*self.joint(X), n_samples, seed, self.repairs)


class ExactObjective:
    """Negative log marginal likelihood and its gradient as a function of θ."""

    def __init__(
        self, kernel: Kernel, noise_variance: float, X: Any, y: Any, *, numerics: Numerics = DEFAULT_NUMERICS
    ) -> None:
        self.X, self.y = as_training_data(X, y)
        self.numerics = numerics
        self.layout = ParameterLayout(kernel, self.X.shape[1], numerics)
        kernel = self.layout.kernel
        self.theta0 = self.layout.pack(kernel, noise_variance)
        self.repairs = Repairs()
        self._centre = self.X.mean(0)
        self._features = kernel.features(self.X, self._centre)
        self._K: Tensor | None = None  # [N, N], reused by every evaluation

    def __call__(self, theta: FloatArray) -> tuple[float, FloatArray]:
        """−LML and its gradient at θ; NaN where θ is not finite."""
        return self.layout.negated(self.value_and_gradient, theta)

    def factorise(self, kernel: Kernel, noise_variance: float) -> ExactPosterior:
        """The model at these hyperparameters."""
        kernel = self.layout.check(kernel)
        if self._K is None:
            self._K = self.X.new_empty(len(self.X), len(self.X))
        K, cross = self._K, kernel.against(self._features)
        for rows in row_chunks(len(K), chunk_rows(len(K))):  # so that the kernel's temporaries stay small
            cross.values(self._features[rows], out=K[rows])
        K.diagonal().copy_(kernel.diagonal(self._features)).add_(noise_variance)
        L, jitter = jittered_cholesky(K, self.repairs, what="K + sI", first_jitter=0.0, numerics=self.numerics)
        return ExactPosterior(
            kernel=kernel,
            noise_variance=noise_variance,
            X=self.X,
            centre=self._centre,
            of_X=self._features,
            y=self.y,
            L=L,
            weights=torch.cholesky_solve(self.y[:, None], L)[:, 0],
            jitter=jitter,
            repairs=self.repairs,
        )

    def value_and_gradient(self, kernel: Kernel, noise_variance: float) -> tuple[float, Tensors, float]:
        """LML, and its derivatives by the kernel's parameters and by the noise variance: ½ tr((ααᵀ − K⁻¹) ∂K)."""
        model = self.factorise(kernel, noise_variance)
        alpha = model.weights
        K_inv = torch.cholesky_inverse(model.L, out=self._K)  # [N, N]
        gradients: Tensors = {}
        for rows in row_chunks(len(self.X), chunk_rows(len(self.X))):
            # Everything is symmetric: up to the diagonal block is enough, with what is left of it counted twice.
            left, right = slice(0, rows.start), slice(0, rows.stop)
            K_bar = torch.addr(K_inv[rows, right], alpha[rows], alpha[right], beta=-0.5, alpha=0.5)
            K_bar[:, left].mul_(2.0)
            add_to(gradients, kernel.cross_vjp(self._features[rows], self._features[right], K_bar))
        by_noise = 0.5 * float(alpha @ alpha - K_inv.diagonal().sum())
        return model.lml, gradients, by_noise
