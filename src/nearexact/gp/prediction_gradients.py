"""Derivatives of predictions by the inputs, row by row."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from nearexact.gp.iterative_posterior import Posterior
from nearexact.gp.memory import row_chunks
from nearexact.gp.posterior import SparsePosterior

PAIRS_AT_ONCE = 2**21  # of new rows and points, of which each may take as many numbers as there are inputs


@dataclass(frozen=True, eq=False)
class PredictionGradients:
    """What is predicted for each row of X, and its derivatives by the inputs of this row."""

    variance: Tensor  # of the latent function [N]
    mean_by_x: Tensor  # [N, D], or [N, T, D] of several targets
    variance_by_x: Tensor  # [N, D]


def prediction_gradients(posterior: Posterior, X: Tensor) -> PredictionGradients:
    """Derivatives at the rows of X [N, D]. Each prediction depends on its own row, so that those of sums are enough."""
    X = X.to(posterior.weights.device)
    variance, by_variance = X.new_empty(len(X)), torch.empty_like(X)
    by_mean = X.new_empty(len(X), *posterior.weights.shape[1:], X.shape[1])
    points = len(posterior.inducing_points) if isinstance(posterior, SparsePosterior) else len(posterior.weights)
    for rows in row_chunks(len(X), max(PAIRS_AT_ONCE // (points * X.shape[1]), 1)):
        inputs = X[rows].detach().requires_grad_()
        with torch.enable_grad():
            mean, variances = posterior.differentiable(inputs)
        variance[rows] = variances.detach()
        means = [mean] if mean.ndim == 1 else list(mean.T)
        *by_means, by_variance[rows] = (
            torch.autograd.grad(part.sum(), inputs, retain_graph=True, materialize_grads=True)[0]
            for part in (*means, variances)
        )
        by_mean[rows] = torch.stack(by_means, 1).reshape(by_mean[rows].shape)
    return PredictionGradients(variance, by_mean, by_variance)
