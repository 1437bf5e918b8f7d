"""Draws of whole functions from a posterior, at as many rows as one likes: no [N, N] array is ever made.

A draw from the prior, by random features, becomes one from the posterior by a correction at the model's own points
(Wilson et al. 2020): f(x) = f₀(x) + k(x, Z)a, where a moves the prior's values at Z to values that are drawn from the
posterior. The correction is exact; the prior's covariance is right up to a random error of about 1/√FREQUENCIES.

Of a kernel without random features no function is drawn. Rows are then correlated through the inducing points of a
sparse GP alone, and what these do not explain is drawn for each row by itself: variances are right, and so is all of
the covariance that the points explain.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nearexact.gp.inducing import greedy_variance
from nearexact.gp.iterative_posterior import ModelSolver, Posterior
from nearexact.gp.linalg import solve_rows
from nearexact.gp.memory import chunk_rows, row_chunks
from nearexact.gp.posterior import ExactPosterior, SparsePosterior
from nearexact.gp.row_noise import scaled_rows
from nearexact.gp.sparse import SparseObjective
from nearexact.kernels.base import Kernel
from nearexact.kernels.composite import Composite
from nearexact.kernels.random_features import Features
from nearexact.validation import as_matrix

FREQUENCIES = 2048  # draws of random features
FEATURES_AT_ONCE = 2**19  # numbers, which fit into a cache
MOST_POINTS = 2000  # of the sparse GP that stands for an exact one where a kernel has no features
SOLVE_TOLERANCE = 1e-10  # of rᵀP⁻¹r, relative to its start, where the correction is by conjugate gradients

Draws = Callable[[Any], Tensor]  # rows X [N, D] to draws [N, S]


def draw_functions(posterior: Posterior, n_samples: int, seed: int) -> Draws:
    """So many draws of the latent function of one target."""
    random = np.random.default_rng(seed)
    points = posterior.Z if isinstance(posterior, SparsePosterior) else posterior.X
    prior = PriorDraws.of(posterior.kernel, points, n_samples, random)
    if prior is None:
        return IndependentResiduals(_sparse(posterior, seed), n_samples, random)
    return CorrectedDraws(posterior.kernel, points, prior, _correction(posterior, prior(points), random))


@dataclass(frozen=True, eq=False)
class PriorDraws:
    """Draws from the prior: for each part of a sum its features, and a normal weight for each of them and each draw."""

    parts: list[tuple[Features, Tensor]]  # weights [C·F, S]

    @staticmethod
    def of(kernel: Kernel, like: Tensor, n_samples: int, random: np.random.Generator) -> PriorDraws | None:
        """From a kernel of which random features are known, for rows like these."""
        parts = []
        for part in kernel.parts if isinstance(kernel, Composite) and kernel.operation == "+" else (kernel,):
            features = part.random_features(FREQUENCIES, random, like)
            if features is None:
                return None
            _, together, draws = features(like[:1]).shape
            weights = like.new_tensor(random.standard_normal((draws * together, n_samples)))
            parts.append((features, weights / math.sqrt(draws)))
        return PriorDraws(parts)

    def __call__(self, X: Tensor) -> Tensor:
        result = X.new_zeros(len(X), self.parts[0][1].shape[1])
        for features, weights in self.parts:
            for rows in row_chunks(len(X), max(FEATURES_AT_ONCE // len(weights), 1)):
                result[rows] += features(X[rows]).flatten(1) @ weights
        return result


@dataclass(frozen=True, eq=False)
class CorrectedDraws:
    """f₀(x) + k(x, Z)a."""

    kernel: Kernel
    points: Tensor  # Z [M, D]
    prior: PriorDraws
    correction: Tensor  # a [M, S]

    def __call__(self, X: Any) -> Tensor:
        inputs = as_matrix(X, "X", self.points.device, columns=self.points.shape[1])
        draws, centre = self.prior(inputs), self.points.mean(0)
        cross = self.kernel.against(self.kernel.features(self.points, centre))
        for rows in row_chunks(len(inputs), chunk_rows(len(self.points))):
            draws[rows] += cross.values(self.kernel.features(inputs[rows], centre)) @ self.correction
        return draws


class IndependentResiduals:
    """Draws at the inducing points of a sparse GP, and what these leave of the variance for each row by itself."""

    def __init__(self, posterior: SparsePosterior, n_samples: int, random: np.random.Generator) -> None:
        self.posterior, self.random = posterior, random
        self.whitened = _whitened(posterior, n_samples, random)  # [M, S]

    def __call__(self, X: Any) -> Tensor:
        kernel, Z, L = self.posterior.kernel, self.posterior.Z, self.posterior.L
        inputs = as_matrix(X, "X", Z.device, columns=Z.shape[1])
        draws, centre = inputs.new_empty(len(inputs), self.whitened.shape[1]), Z.mean(0)
        cross = kernel.against(kernel.features(Z, centre))
        for rows in row_chunks(len(inputs), chunk_rows(len(Z))):
            features = kernel.features(inputs[rows], centre)
            V = solve_rows(L, cross.values(features))
            draws[rows] = V @ self.whitened
            left = (kernel.diagonal(features) - V.square_().sum(1)).clamp_(min=0.0)
            normal = self.random.standard_normal((len(left), self.whitened.shape[1]))
            draws[rows] += left.sqrt()[:, None] * draws.new_tensor(normal)
        return draws


def _correction(posterior: Posterior, prior: Tensor, random: np.random.Generator) -> Tensor:
    """a for the prior's values at the model's points: [M, S] both."""
    if isinstance(posterior, SparsePosterior):  # K_ZZ⁻¹(u − f₀(Z)) = L⁻ᵀ(L⁻¹u − L⁻¹f₀(Z)), u from the posterior
        white = torch.linalg.solve_triangular(posterior.L, prior, upper=False)
        drawn = _whitened(posterior, prior.shape[1], random)
        correction: Tensor = torch.linalg.solve_triangular(posterior.L.T, drawn - white, upper=True)
        return correction
    # K̂⁻¹(y − f₀(X) − ε), ε noise
    noise = prior.new_tensor(random.standard_normal(prior.shape))
    if posterior.row_noise is None:
        observed = prior + math.sqrt(posterior.noise_variance) * noise
    else:
        observed = prior + scaled_rows(noise, posterior.row_noise.variances(posterior.noise_variance).sqrt())
    if isinstance(posterior, ExactPosterior):
        solved = torch.cholesky_solve(observed, posterior.L)
    else:
        solver = ModelSolver.of(posterior)
        scales = solver.factorisation.scales
        solved = scaled_rows(solver(scaled_rows(observed, scales), SOLVE_TOLERANCE).columns, scales)
    return posterior.weights[:, None] - solved


def _whitened(posterior: SparsePosterior, n_samples: int, random: np.random.Generator) -> Tensor:
    """L⁻¹u of values u at the inducing points: draws from N(weights, B⁻¹), [M, S]."""
    normal = posterior.L.new_tensor(random.standard_normal((len(posterior.L), n_samples)))
    spread: Tensor = torch.linalg.solve_triangular(posterior.L_B.T, normal, upper=True)  # of covariance B⁻¹
    return posterior.weights[:, None] + spread


def _sparse(posterior: Posterior, seed: int) -> SparsePosterior:
    """The sparse GP with the same θ."""
    if isinstance(posterior, SparsePosterior):
        return posterior
    kernel, s, X = posterior.kernel, posterior.noise_variance, posterior.X
    rows = greedy_variance(kernel, X, min(len(X), MOST_POINTS), seed=seed)
    Z = X[torch.from_numpy(rows).to(X.device)]
    objective = SparseObjective(kernel, s, X, posterior.y, Z, row_noise=posterior.row_noise)
    return objective.factorise(kernel, s).posterior()
