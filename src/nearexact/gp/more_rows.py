"""More data for a fitted model, at the same θ: what a fit from scratch at this θ would give, without one.

A sparse GP keeps its inducing points. Its matrices are sums over the rows, so that the new ones are added and the
earlier ones are not needed. An exact GP is factorised again; one by conjugate gradients is solved again, from where it
was.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from nearexact.gp.bounds import LikelihoodBounds
from nearexact.gp.exact import ExactObjective, exact_memory
from nearexact.gp.iterative import Estimate, IterativeObjective
from nearexact.gp.iterative_model import HeldModel
from nearexact.gp.iterative_posterior import ModelSolver, Posterior
from nearexact.gp.linalg import dot
from nearexact.gp.neighbours import CALIBRATION_ROWS
from nearexact.gp.posterior import ExactPosterior, SparsePosterior
from nearexact.gp.row_noise import RowNoise
from nearexact.gp.sparse import SparseObjective
from nearexact.limits import memory_budget
from nearexact.typing import MemoryLimit


@dataclass(frozen=True, eq=False)
class AddedRows:
    """Inputs [N, D], targets [N] or [N, T], and what is known about their noise."""

    X: torch.Tensor
    y: torch.Tensor
    row_noise: RowNoise | None = None

    def followed_by(self, other: AddedRows) -> AddedRows:
        """These rows and then others."""
        X, y = torch.cat([self.X, other.X]), torch.cat([self.y, other.y])
        if self.row_noise is None and other.row_noise is None:
            return AddedRows(X, y)
        return AddedRows(X, y, self._noise().followed_by(other._noise()))

    def _noise(self) -> RowNoise:
        ones = torch.ones_like(self.X[:, 0])
        return RowNoise(ones, torch.zeros_like(ones)) if self.row_noise is None else self.row_noise


@dataclass(frozen=True, eq=False)
class Extended:
    """A model with more rows."""

    posterior: Posterior
    value: float  # what was maximised when θ was learnt: a bound, a likelihood, or the estimate of one
    bounds: LikelihoodBounds
    distance: float  # of the new rows from what the model expects of them: the sum of y_newᵀ(covariance)⁻¹y_new
    estimate: Estimate | None = None


@dataclass(frozen=True)
class AllAdded:
    """All values that were added since θ was learnt, and their distance from what the model expected of them."""

    distance: float = 0.0
    values: int = 0

    def and_more(self, distance: float, values: int) -> AllAdded:
        return AllAdded(self.distance + distance, self.values + values)


def extend(
    posterior: Posterior, rows: AddedRows, *, bound: str = "elbo", memory_limit: MemoryLimit = None, seed: int = 0
) -> Extended:
    """The model of its rows and of these; `bound` is the one that a sparse GP was trained with."""
    if isinstance(posterior, SparsePosterior):
        return _extend_sparse(posterior, rows, bound, memory_limit)
    everything = AddedRows(posterior.X, posterior.y, posterior.row_noise).followed_by(rows)
    before = dot(posterior.y, posterior.weights)  # yᵀK̂⁻¹y
    if isinstance(posterior, ExactPosterior):
        exact = _factorised(posterior, everything, memory_limit)
        return Extended(exact, exact.lml, exact.bounds, exact.bounds.quadratic.lower - before)
    kernel, s = posterior.kernel, posterior.noise_variance
    objective = IterativeObjective(
        kernel,
        s,
        everything.X,
        everything.y,
        posterior.Z,
        row_noise=everything.row_noise,
        seed=seed,
        memory_limit=memory_limit,
    )
    estimate = objective.estimate(kernel, s)
    held = HeldModel.estimated(objective.theta0, estimate, everything.X, everything.y, everything.row_noise)
    solver = ModelSolver(objective.sparse, kernel, s, objective.product)
    held = held.finished(solver, seed, CALIBRATION_ROWS[0])
    distance = held.bounds.quadratic.lower - before
    return Extended(held.posterior, estimate.value, held.bounds, distance, estimate)


def _extend_sparse(posterior: SparsePosterior, rows: AddedRows, bound: str, memory_limit: MemoryLimit) -> Extended:
    sums, kernel, s = posterior.sums, posterior.kernel, posterior.noise_variance
    if sums is None:
        raise ValueError("the model does not hold the sums that new rows are added to: fit it again")
    objective = SparseObjective(
        kernel, s, rows.X, rows.y, posterior.Z, bound=bound, row_noise=rows.row_noise, memory_limit=memory_limit
    )
    f = objective.factorise(kernel, s, residuals=True, L=posterior.L)
    B = posterior.L_B @ posterior.L_B.T  # I + G/s of the earlier rows
    b = s * (B @ posterior.weights)
    before = (sums.yy - dot(b, posterior.weights)) / s  # yᵀ(Q + sI)⁻¹y, as the weights are B⁻¹b/s
    B.diagonal().sub_(1.0)
    together = replace(
        f,
        n=f.n + sums.n,
        yy=f.yy + sums.yy,
        G=f.G + s * B,
        b=f.b + b,
        trace=f.trace + sums.trace,
        residual_error=max(f.residual_error, sums.residual_error),
        earlier=sums,
    )
    distance = together.bounds.quadratic.upper - before
    return Extended(together.posterior(), objective.value(together), together.bounds, distance)


def _factorised(posterior: ExactPosterior, rows: AddedRows, memory_limit: MemoryLimit) -> ExactPosterior:
    kernel, s, n = posterior.kernel, posterior.noise_variance, len(rows.X)
    needed, budget = exact_memory(kernel, n), memory_budget(memory_limit, rows.X.device)
    if needed > budget:
        raise ValueError(
            f"exact GP regression with {n} rows needs {needed / 1e9:.3g} GB, but the memory limit is"
            f" {budget / 1e9:.3g} GB: allow more, or fit a sparse GP"
        )
    return ExactObjective(kernel, s, rows.X, rows.y, row_noise=rows.row_noise).factorise(kernel, s)
