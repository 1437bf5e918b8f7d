"""Predictions of the exact GP at one θ from all rows, without a factor of K + sI.

The mean is kᵀv with v = K̂⁻¹y, which conjugate gradients have computed; how far it can be from the exact one is proved
by the residual. Variances come from nearest rows and are extrapolated to all rows (neighbours.py). Joint covariances
are computed by conjugate gradients, for as many rows as one cares to wait for.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from nearexact.gp.block_cg import BlockSolution
from nearexact.gp.block_preconditioner import BlockPreconditioner
from nearexact.gp.bounds import Interval
from nearexact.gp.budget import TimeIsUpError
from nearexact.gp.chain_rule import block_rows
from nearexact.gp.column_solver import ColumnSolver
from nearexact.gp.factorisation import Factorisation
from nearexact.gp.iterative_cost import FEW_ITERATIONS, FEWEST_BLOCKS, GIVEN, iterations_by_noise
from nearexact.gp.linalg import as_columns, sample_gaussian
from nearexact.gp.memory import chunk_rows, row_chunks
from nearexact.gp.neighbours import CALIBRATION_ROWS, Extrapolation, nearest_rows, nearest_variances, variances_given
from nearexact.gp.posterior import ExactPosterior, SparsePosterior, new_means
from nearexact.gp.quadratic import Preconditioner
from nearexact.gp.row_blocks import RowBlocks, blocks_memory
from nearexact.gp.row_noise import RowNoise, noise_variances, scaled_rows
from nearexact.gp.safety import Repairs, clamp_variances
from nearexact.gp.sparse import SparseObjective
from nearexact.gp.stored_kernel import StoredKernel
from nearexact.kernels.base import Kernel
from nearexact.validation import as_matrix

COVARIANCE_TOLERANCE = 1e-10  # of rᵀP⁻¹r, relative to its start, for each column of a joint covariance
VARIANCE_TOLERANCE = 1e-3  # the same for the variances that are extrapolated from
COLUMNS_AT_ONCE = 256
TRIED_COLUMNS, TRIED_TOLERANCE = 2, 1e-4  # random ones that show, besides y, whether 32 bits are enough for K
# Root mean square of y − K̂v, in standard deviations of the noise, up to which v may be used though time was up: means
# at training rows are off by no more.
USABLE_RESIDUAL = 0.5


@dataclass(frozen=True, eq=False)
class IterativePosterior:
    """An exact GP at one θ by the solution of K̂v = y."""

    kernel: Kernel
    noise_variance: float
    X: Tensor  # [N, D]
    y: Tensor  # [N], or [N, T] of several targets; means are then [N*, T]
    weights: Tensor  # v, nearly K̂⁻¹y  [N], or [N, T]
    residual_bound: float  # rᵀP⁻¹r, the largest of several targets: |kᵀv − exact mean|² is at most this times k(x, x)
    Z: Tensor  # inducing points of the preconditioner [M, D]
    L: Tensor  # chol(K_ZZ + jitter·I)  [M, M]
    L_B: Tensor  # chol(I + VVᵀ/s)  [M, M]
    extrapolation: Tensor  # of variances to all rows: weights, then the least logarithm  [F + 1]
    repairs: Repairs
    row_noise: RowNoise | None = None  # what takes the place of sI

    @staticmethod
    def of(
        f: Factorisation,
        X: Tensor,
        y: Tensor,
        weights: Tensor,
        residual_bound: float,
        variances: Extrapolation,
        row_noise: RowNoise | None = None,
    ) -> IterativePosterior:
        """With the factors of a sparse GP."""
        return IterativePosterior(
            kernel=f.kernel,
            noise_variance=f.noise_variance,
            X=X,
            y=y,
            weights=weights,
            residual_bound=residual_bound,
            Z=f.Z,
            L=f.L,
            L_B=f.L_B,
            extrapolation=variances.as_tensor(),
            repairs=Repairs(),
            row_noise=row_noise,
        )

    def with_extrapolation(self, variances: Extrapolation) -> IterativePosterior:
        """The same with other variances."""
        return replace(self, extrapolation=variances.as_tensor())

    @property
    def inducing_points(self) -> Tensor:
        """Z [M, D]."""
        return self.Z

    @property
    def mean_error(self) -> float:
        """What the mean may be off at most, anywhere near the data, in standard deviations of the noise."""
        largest = float(self.kernel.diagonal(self._features_X).max())
        return math.sqrt(self.residual_bound * largest / self.noise_variance)

    @cached_property
    def _centre(self) -> Tensor:
        return self.X.mean(0)

    @cached_property
    def _features_X(self) -> Tensor:
        return self.kernel.features(self.X, self._centre)

    @cached_property
    def sparse(self) -> SparsePosterior:
        """The sparse GP with the same θ and inducing points. Its mean is not used."""
        return SparsePosterior(
            self.kernel, self.noise_variance, self.Z, self.L, self.L_B, torch.zeros_like(self.L[0]), self.repairs
        )

    def predict(self, X: Any) -> tuple[Tensor, Tensor]:
        """Mean and variance [N*] of the latent function at each row of X, in chunks."""
        inputs = as_matrix(X, "X", self.y.device, columns=self.X.shape[1])
        mean, variance = new_means(inputs, self.weights), inputs.new_empty(len(inputs))
        noise = noise_variances(self.row_noise, self.noise_variance)
        diagonal, cross = self.kernel.diagonal(self._features_X), self.kernel.against(self._features_X)
        extrapolation = Extrapolation.from_tensor(self.extrapolation)
        for rows in row_chunks(len(inputs), chunk_rows(len(self.y))):
            features = self.kernel.features(inputs[rows], self._centre)
            K = cross.values(features)  # [rows, N]
            mean[rows] = K @ self.weights
            nearest = nearest_rows(K, diagonal, noise)
            near = nearest_variances(self.kernel, noise, self._features_X, features, nearest)
            variance[rows] = extrapolation(near, _positive(self.sparse.predict(inputs[rows])[1], near))
        return mean, clamp_variances(variance, self.repairs)

    def mean(self, X: Any) -> Tensor:
        """The mean [N*] alone."""
        inputs = as_matrix(X, "X", self.y.device, columns=self.X.shape[1])
        mean, cross = new_means(inputs, self.weights), self.kernel.against(self._features_X)
        for rows in row_chunks(len(inputs), chunk_rows(len(self.y))):
            mean[rows] = cross.values(self.kernel.features(inputs[rows], self._centre)) @ self.weights
        return mean

    def joint(self, X: Any, memory_limit: int | None = None) -> tuple[Tensor, Tensor]:
        """Mean [N*] and full covariance [N*, N*] of the latent function at the rows of X.

        The covariance is that of the exact GP but for what conjugate gradients leave, which can only enlarge it.
        """
        inputs = as_matrix(X, "X", self.y.device, columns=self.X.shape[1])
        features = self.kernel.features(inputs, self._centre)
        K = self.kernel.cross(self._features_X, features)  # [N, N*]
        mean, solve = K.T @ self.weights, ModelSolver.of(self, memory_limit)
        K = scaled_rows(K, solve.factorisation.scales)
        explained = torch.empty(len(inputs), len(inputs), dtype=K.dtype, device=K.device)
        for part in row_chunks(len(inputs), COLUMNS_AT_ONCE):
            solution = solve(K[:, part].contiguous(), COVARIANCE_TOLERANCE)
            W, R = solution.columns, solution.residuals
            explained[part] = W.T @ K  # WᵀK + RᵀW is second-order accurate, and not more than KᵀK̂⁻¹K ...
            explained[part, part] += R.T @ W  # ... where it matters: elsewhere the columns' own accuracy is enough
        covariance = self.kernel.gram(features).sub_(0.5 * (explained + explained.T))
        clamp_variances(covariance.diagonal(), self.repairs)
        return mean, covariance

    def differentiable(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """The same as `predict`, of float64 rows X [N*, D], by operations that torch differentiates by X.

        Which rows are nearest is taken as given: where that changes, the variance is not differentiable.
        """
        kernel, noise = self.kernel, noise_variances(self.row_noise, self.noise_variance)
        if isinstance(noise, Tensor):
            noise = noise.to(self.X.device)  # which may have been moved since
        K, k = kernel.differentiable(X, self.X), kernel.differentiable_diagonal(X)
        nearest = nearest_rows(K.detach(), kernel.diagonal(self._features_X), noise)
        near = variances_given(kernel, noise, self._features_X, nearest, k, K.gather(1, nearest))
        sparse = _positive(self.sparse.differentiable(X)[1], near)
        return K @ self.weights, Extrapolation.from_tensor(self.extrapolation)(near, sparse).clamp(min=0.0)

    def sample(self, X: Any, n_samples: int, seed: int) -> Tensor:
        """Draws of the latent function at the rows of X: [n_samples, N*]."""
        return sample_gaussian(*self.joint(X), n_samples, seed, self.repairs)


@dataclass(frozen=True, eq=False)
class Finished:
    """What conjugate gradients give in the end."""

    weights: Tensor  # v  [N], or [N, T]
    residual_bound: float  # rᵀP⁻¹r of them, the largest of several targets
    quadratic: Interval  # yᵀK̂⁻¹y
    variances: Extrapolation
    iterations: int


class ModelSolver(ColumnSolver):
    """The same for the model of a sparse objective at one θ, with what a posterior is made of."""

    def __init__(
        self,
        objective: SparseObjective,
        kernel: Kernel,
        noise_variance: float,
        product: StoredKernel,
        check: Callable[[], None] = lambda: None,
        *,
        blocks: RowBlocks | None = None,
        in_full: bool = False,
    ) -> None:
        self.objective = objective
        self.factorisation = f = objective.factorise(kernel, noise_variance, residuals=True)
        by_blocks = None if blocks is None else BlockPreconditioner(blocks, f, check)
        super().__init__(product, Preconditioner(objective, f), check, blocks=by_blocks, in_full=in_full)

    @staticmethod
    def of(posterior: IterativePosterior, memory_limit: int | None = None) -> ModelSolver:
        """For a posterior that has been saved, or whose training is over."""
        kernel, s = posterior.kernel, posterior.noise_variance
        data = posterior.X, posterior.y, posterior.Z
        objective = SparseObjective(kernel, s, *data, row_noise=posterior.row_noise, memory_limit=memory_limit)
        n, spare = len(posterior.X), objective.spare_memory
        room = blocks_memory(kernel, n, GIVEN)
        may_block = n >= FEWEST_BLOCKS * block_rows(GIVEN) and room < spare
        solver = ModelSolver(objective, kernel, s, StoredKernel(posterior.X, spare - room if may_block else spare))
        f = solver.factorisation
        assert f.residuals is not None
        if may_block and iterations_by_noise(float(f.residuals.nanmean()), s) > FEW_ITERATIONS:
            chosen = RowBlocks.chosen(kernel, s, posterior.X, GIVEN, row_noise=posterior.row_noise)
            solver.blocks = BlockPreconditioner(chosen, f)
        return solver

    @property
    def log_det(self) -> Interval:
        """Where log|K̂| lies, as far as both preconditioners prove it."""
        proved = self.factorisation.bounds.log_det
        return proved if self.blocks is None else proved.meet(Interval(upper=self.blocks.most_log_det))

    def finish(self, weights: Tensor | None, error: float, seed: int, rows: int = CALIBRATION_ROWS[0]) -> Finished:
        """Weights nearer to K̂⁻¹y, so that the mean is off by at most `error` deviations of the noise; and variances.

        Both in one pass of conjugate gradients: a product with K takes hardly longer with one more column. `rows` are
        the training rows from which variances are extrapolated; without any they stay upper bounds. If `check` raises
        TimeIsUpError, weights that are near enough already are taken, without variances.
        """
        f, n = self.factorisation, len(self.objective.X)
        chosen = self._calibration_rows(rows, seed)
        units = torch.zeros(n, len(chosen), dtype=f.y.dtype, device=f.y.device)
        units[chosen, torch.arange(len(chosen), device=units.device)] = 1.0
        y, targets = as_columns(f.y), f.targets
        if weights is None:
            v, residuals = torch.zeros_like(y), y
            others = torch.randn(n, TRIED_COLUMNS, dtype=y.dtype, generator=torch.Generator().manual_seed(seed))
            if not self.is_precise(torch.cat([y, others.to(y.device)], dim=1), TRIED_TOLERANCE):
                self.use_full()
        else:
            v = as_columns(weights if f.scales is None else scaled_rows(weights, 1.0 / f.scales))
            residuals = y - self.product.in_full(v, self.check)
        bounds = self.precondition.solve(residuals, self.check)[1]  # [T]
        bounds = bounds + self.precondition.rounding * residuals.square().sum(0)
        aim = error**2 * f.noise_variance / float(f.kernel.diagonal(f.features_Z).max())
        tolerances = torch.full_like(y[0, :1], VARIANCE_TOLERANCE).repeat(targets + len(chosen))
        tolerances[:targets] = torch.where(bounds > 0.0, aim / bounds, 1.0)
        solution = self._as_far_as_time_allows(torch.cat([residuals, units], dim=1), tolerances)
        v, residuals = v + solution.columns[:, :targets], solution.residuals[:, :targets]
        bounds = solution.residual_bounds[:targets]
        least = float((y * v).sum() + (residuals * v).sum())
        return Finished(
            scaled_rows(v, f.scales).reshape(f.y.shape),
            float(bounds.max()),
            Interval(least, least + float(bounds.sum())),
            self._extrapolation(chosen, solution),
            solution.iterations,
        )

    def _as_far_as_time_allows(self, B: Tensor, tolerances: Tensor) -> BlockSolution:
        """K̂⁻¹B; of the targets alone, and only nearly, if time is up before that."""
        latest: list[BlockSolution] = []

        def keep(solution: BlockSolution) -> None:
            latest[:] = [solution]

        try:
            return self(B, tolerances, on_iteration=keep)
        except TimeIsUpError:
            if not latest:
                raise
        f = self.factorisation
        columns = latest[0].columns[:, : f.targets].contiguous()
        residuals = B[:, : f.targets] - self.product.in_full(columns)
        if float(residuals.square().mean(0).max()) > USABLE_RESIDUAL**2 * f.noise_variance:
            raise TimeIsUpError
        bounds = self.precondition.solve(residuals)[1]
        return replace(latest[0], columns=columns, residuals=residuals, residual_bounds=bounds)

    def _calibration_rows(self, rows: int, seed: int) -> Tensor:
        """Training rows whose exact variances, given all the others, show how variances go on."""
        generator, n = torch.Generator().manual_seed(seed), len(self.objective.X)
        return torch.randperm(n, generator=generator)[:rows].to(self.objective.X.device)

    def _extrapolation(self, chosen: Tensor, solution: BlockSolution) -> Extrapolation:
        """How variances given nearest rows go on to all rows, learnt from (K̂⁻¹)_ii of these training rows.

        They are not, and variances stay upper bounds, where the solution is of the targets alone.
        """
        objective, f = self.objective, self.factorisation
        W, R = solution.columns[:, f.targets :], solution.residuals[:, f.targets :]
        if not W.shape[1]:
            return Extrapolation.none(f.y)
        inverse = (W[chosen].diagonal() + (W * R).sum(0)).clamp_(min=0.0)  # of scaled rows
        if f.scales is not None:
            inverse.mul_(f.scales[chosen].square())
        noise = noise_variances(objective.row_noise, f.noise_variance)
        own_noise = noise[chosen] if isinstance(noise, Tensor) else noise
        exact = 1.0 / inverse - own_noise  # given all other rows
        features_X = f.kernel.features(objective.X, objective.X.mean(0))
        diagonal = f.kernel.diagonal(features_X)
        K = f.kernel.cross(features_X[chosen], features_X)
        nearest = nearest_rows(K, diagonal, noise, without=chosen)
        near = nearest_variances(f.kernel, noise, features_X, features_X[chosen], nearest)
        V = torch.linalg.solve_triangular(
            f.L, f.cross.values(f.kernel.features(objective.X[chosen], objective.Z.mean(0))).T, upper=False
        )
        h = torch.linalg.solve_triangular(f.L_B, V, upper=False).square().sum(0)  # vᵀB⁻¹v, below the row's noise
        own = h * own_noise / (own_noise - h).clamp_(min=1e-12 * own_noise)  # without the row itself
        sparse = _positive(diagonal[chosen] - V.square().sum(0) + own, near)
        usable = torch.isfinite(exact) & (exact > 0.0)
        if int(usable.sum()) < len(chosen) // 4:
            return Extrapolation.none(exact)
        return Extrapolation.learnt(near[usable], sparse[usable], exact[usable])


def _positive(sparse: Tensor, near: Tensor) -> Tensor:
    """The sparse GP's variances, kept away from 0, whose logarithm says nothing."""
    return torch.maximum(sparse, 1e-6 * near[:, -1])


Posterior = SparsePosterior | ExactPosterior | IterativePosterior
