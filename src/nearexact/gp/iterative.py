"""The exact log marginal likelihood for any N whose N² fits the time: an estimate, its standard error, its gradient.

Conjugate gradients solve for y and for a few random probes at once, with a sparse GP as preconditioner P. The quadratic
form comes out as precisely as one likes. The log determinant is that of P, which is known, plus an estimate of what P
leaves unexplained: so the noise of the estimate vanishes as M grows, and M is a matter of cost, not of quality.
"""

# The derivation. K̂ = K + sI, P = Q + sI = VᵀV + sI with the V, G, B of sparse.py; p probes z = Vᵀε + √s ε′ ~ N(0, P).
#
#   v = K̂⁻¹y,  a = K̂⁻¹z,  b = P⁻¹z                                      [N], and [N] for each probe
#   log|K̂| ≈ log|P| + mean (zᵀb) e₁ᵀ log(T) e₁                          T: the Lanczos matrix of z's coefficients
#   ∂LML   ≈ ½ vᵀ∂K̂v − ½ [tr P⁻¹∂P + mean (aᵀ∂K̂b − bᵀ∂Pb)]             the terms in P are a control variate: their mean
#                                                                       is 0, and they vary as those in K̂ do
#   K̄      = ½vvᵀ − ¼ mean (abᵀ + baᵀ)                                   [N, N], handed to the kernel block by block
#   P̄      = −½ (P⁻¹ − mean bbᵀ)                                         [N, N], never formed
#   K̄_ZX   = L⁻ᵀ 2VP̄ = L⁻ᵀ(−B⁻¹V/s + mean (Vb)bᵀ)                       [M, N], since VP⁻¹ = B⁻¹V/s
#   K̄_ZZ   = −L⁻ᵀ VP̄Vᵀ L⁻¹ = ½ L⁻ᵀ(B⁻¹G/s − mean (Vb)(Vb)ᵀ) L⁻¹          [M, M]
#   ∂/∂s   = ½vᵀv − ½ [tr P⁻¹ + mean (aᵀb − bᵀb)],  tr P⁻¹ = (N − tr(B⁻¹G)/s)/s
#
# With the P of row_blocks.py, −½ [tr P⁻¹∂P − mean bᵀ∂Pb] is the derivative of mean log N(z | 0, P) with z as it is, and
# is computed block by block. There tr P⁻¹K̂ = N whatever θ is. So another control variate has the mean 0, for any c:
#
#   c mean (zᵀb) (e₁ᵀTe₁ − 1)  =  c mean (bᵀK̂b − zᵀb)                   taken off log|K̂|
#   c mean (bᵀ∂K̂b − bᵀ∂P P⁻¹K̂b)                                        taken off its derivative: a becomes a − cb,
#                                                                       and the last b in bᵀ∂Pb becomes b − cP⁻¹K̂b
#
# Of several targets each has its own v, and what comes from the determinant counts T times. With noise that differs
# from row to row all of this is of scaled rows (row_noise.py), where K̄ gets back the factors: v, a and b become Ωv, Ωa
# and Ωb. In ∂/∂s rows are weighted: there v_n² becomes c_n v_n², and tr P⁻¹ = (Σe_n − tr(B⁻¹G_e)/s)/s as in sparse.py.

from __future__ import annotations

import copy
import logging
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor

from nearexact.gp.block_cg import BlockSolution, NotConvergedError
from nearexact.gp.block_columns import Check, by_columns, most_cores
from nearexact.gp.block_preconditioner import BlockPreconditioner
from nearexact.gp.bounds import Interval, LikelihoodBounds, likelihood
from nearexact.gp.column_solver import MOST_ITERATIONS, ColumnSolver
from nearexact.gp.factorisation import Factorisation
from nearexact.gp.flops import (
    feature_count,
    kernel_gradient_flops,
    solving_flops,
    sparse_flops,
    sparse_gradient_flops,
)
from nearexact.gp.linalg import as_columns, congruence, dot
from nearexact.gp.noise_derivative import weighted_gram
from nearexact.gp.parameters import ParameterLayout
from nearexact.gp.quadratic import Preconditioner
from nearexact.gp.rounding import check_digits
from nearexact.gp.row_blocks import RowBlocks
from nearexact.gp.row_noise import RowNoise, scaled_rows
from nearexact.gp.safety import NumericalError, Numerics, Repairs, numerics_for
from nearexact.gp.sparse import SparseObjective
from nearexact.gp.stored_kernel import TILE_ROWS, Storage, StoredKernel
from nearexact.kernels.base import Kernel, Tensors, add_to
from nearexact.limits import memory_budget
from nearexact.typing import FloatArray, MemoryLimit
from nearexact.validation import as_training_data

logger = logging.getLogger(__name__)

PROBES = 11  # with y twelve columns, of which products take less time than those of nine
TOLERANCE = 1e-4  # of rᵀP⁻¹r, relative to its start
# The same with blocks, times that: eigenvalues of P⁻¹K̂ may be small there, so that errors are larger than residuals
# tell. They must not be more than so much, relative to zᵀP⁻¹z.
BLOCK_SHARE, MOST_INACCURACY = 0.01, 1e-3
COLUMN_ARRAYS = 14  # [N, probes + 1] arrays that are alive at once, at most
BLOCK_ARRAYS = 4  # blocks of K or K̄ that are alive at once, at most, besides the kernel's own


@dataclass
class Timing:
    """Seconds of the last evaluation, and those of them that went into conjugate gradients."""

    seconds: float = 0.0
    solving: float = 0.0


@dataclass(frozen=True, eq=False)
class Estimate:
    """The exact log marginal likelihood at one θ: estimated, and between proved bounds."""

    value: float
    standard_error: float
    solution: Tensor  # v, nearly K̂⁻¹y  [N], or [N, T]
    residual_bound: float  # rᵀP⁻¹r of it, the largest of several targets
    bounds: LikelihoodBounds  # proved
    iterations: int  # of conjugate gradients
    factorisation: Factorisation  # of the sparse GP


class IterativeObjective:
    """The negative estimate and its gradient as a function of θ, for fixed data, inducing points and probes.

    With `blocks` these precondition in the place of the sparse GP, which still proves the bounds. `tolerance` is what
    conjugate gradients reduce rᵀP⁻¹r to, relative to its start; with blocks a hundredth of it is. With `in_full` K is
    kept in 64 bits, as it is whenever 32 have proved too few. `check` is called often; an exception that it raises ends
    an evaluation. Conjugate gradients that do not converge raise NotConvergedError: cut off too early, they would make
    the estimate too high. Not for use by two threads at once.
    """

    def __init__(
        self,
        kernel: Kernel,
        noise_variance: float,
        X: Any,
        y: Any,
        Z: Any,
        *,
        row_noise: RowNoise | None = None,
        probes: int = PROBES,
        tolerance: float = TOLERANCE,
        blocks: RowBlocks | None = None,
        seed: int = 0,
        most_iterations: int = MOST_ITERATIONS,
        in_full: bool = False,
        memory_limit: MemoryLimit = None,
        check: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.perf_counter,
        numerics: Numerics | None = None,
    ) -> None:
        if probes < 2:
            raise ValueError(f"a standard error needs at least 2 probes, got {probes}")
        # V is needed for every product with P⁻¹, so that sums that do without it save nothing.
        with_V = replace(numerics or numerics_for(noise_variance), direct_condition=0.0)
        X, y = as_training_data(X, y)
        needed = solving_memory(kernel, len(X), probes + y[0].numel() - 1) + (0 if blocks is None else blocks.memory)
        budget = memory_budget(memory_limit, X.device)
        if needed >= budget:
            raise ValueError(
                f"conjugate gradients with {len(X)} rows need {needed / 1e6:.3g} MB besides the sparse GP, but the"
                f" memory limit is {budget / 1e6:.3g} MB"
            )
        self.sparse = SparseObjective(
            kernel, noise_variance, X, y, Z, row_noise=row_noise, memory_limit=budget - needed, numerics=with_V
        )
        self.layout: ParameterLayout = self.sparse.layout
        self.theta0 = self.sparse.theta0
        self.X, self.y = self.sparse.X, self.sparse.y
        self.tolerance, self.most_iterations, self.check = tolerance, most_iterations, check
        self.blocks = blocks
        self.product = StoredKernel(self.X, self.sparse.spare_memory)
        self.flops, self.timing, self.clock = 0.0, Timing(), clock
        self._n_features = feature_count(self.layout.kernel, self.X)
        self.in_full = in_full
        self._draw(probes, seed)

    @property
    def repairs(self) -> Repairs:
        """What had to be mended so far."""
        return self.sparse.repairs

    def with_new_probes(self, seed: int) -> Self:
        """The same objective with other probes; data and memory are shared."""
        other = copy.copy(self)
        other._draw(self._epsilon_X.shape[1], seed)
        return other

    def __call__(self, theta: FloatArray) -> tuple[float, FloatArray]:
        """The negative estimate and its gradient at θ; NaN where θ is not finite."""
        return self.layout.negated(self.value_and_gradient, theta)

    def value_and_gradient(self, kernel: Kernel, noise_variance: float) -> tuple[float, Tensors, float]:
        """The estimate, and its derivatives by the kernel's parameters and by the noise variance."""
        estimate, gradients, by_noise = self.evaluate(kernel, noise_variance)
        return estimate.value, gradients, by_noise

    def estimate(self, kernel: Kernel, noise_variance: float) -> Estimate:
        """The estimate alone."""
        return self._solve(kernel, noise_variance)[0]

    def evaluate(self, kernel: Kernel, noise_variance: float) -> tuple[Estimate, Tensors, float]:
        """The estimate, and its derivatives by the kernel's parameters and by the noise variance."""
        started = self.clock()
        estimate, probes, A, B, c = self._solve(kernel, noise_variance)
        f, v = estimate.factorisation, estimate.solution
        B_rows = scaled_rows(B, f.scales)
        A = A - c * B_rows if c else A
        gradients = self._exact_part(f.kernel, v, A, B_rows)
        self.check()
        if self.blocks is None:
            own, by_noise = self._sparse_part(f, B)
        else:
            own, by_noise = self._blocks_part(self.blocks, f, probes, B, c)
        add_to(gradients, own)
        by_noise += self._exact_part_by_noise(f, v, A, B_rows)
        self.flops += kernel_gradient_flops(f.n, f.n, self._n_features)
        self.timing.seconds = self.clock() - started
        return estimate, gradients, by_noise

    # ---- inside ----------------------------------------------------------------------------------------------------

    def _draw(self, probes: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        epsilon_Z, epsilon_X = (
            torch.randn(len(rows), probes, dtype=torch.float64, generator=generator)
            for rows in (self.sparse.Z, self.sparse.X)
        )
        self._epsilon_Z, self._epsilon_X = epsilon_Z.to(self.X.device), epsilon_X.to(self.X.device)  # ε and ε′

    def _solve(self, kernel: Kernel, noise_variance: float) -> tuple[Estimate, Tensor, Tensor, Tensor, float]:
        """The estimate, columns [N, p], and c.

        The columns are probes z and b = P⁻¹z of scaled rows, and a = K̂⁻¹z of unscaled ones between.
        """
        s = noise_variance
        self.check()
        f = self.sparse.factorise(kernel, s, residuals=True)
        if not math.isfinite(f.elbo):
            raise NumericalError("tr(K − Q) is negative by more than rounding: look for a kernel that is not one")
        precondition = Preconditioner(self.sparse, f)
        check_digits(precondition.trace, s)
        blocks = None if self.blocks is None else BlockPreconditioner(self.blocks, f, self.check)
        P = blocks or precondition
        if blocks is None:
            probes = precondition.draws(self._epsilon_Z, self._epsilon_X)
        else:
            probes = blocks.draws(self._epsilon_X)
        started = self.clock()
        y, count = as_columns(f.y), f.targets
        solution = self._conjugate_gradients(precondition, blocks, torch.cat([y, probes], dim=1))
        self.timing.solving = self.clock() - started
        B, weights = P.solve(probes, self.check)  # P⁻¹z and zᵀP⁻¹z
        steps = zip(solution.alphas.T[count:], solution.betas.T[count:], strict=True)
        spectra = [Spectrum.of(alphas, betas, P.least_eigenvalue) for alphas, betas in steps]
        c = 0.0 if blocks is None else share_of_excess(spectra)
        logs = weights * torch.stack([spectrum.log - c * spectrum.excess for spectrum in spectra])
        v = solution.columns[:, :count].contiguous().view_as(f.y)
        r = solution.residuals[:, :count].contiguous().view_as(f.y)
        least = dot(f.y, v) + dot(r, v)  # 2yᵀv − vᵀK̂v, as K̂v = y − r
        residual_bounds, proved = solution.residual_bounds[:count], Interval()
        if blocks is not None:
            _check_accuracy(solution, weights, spectra)
            R = as_columns(r)
            residual_bounds = precondition.squares(R, self.check) + precondition.rounding * R.square().sum(0)
            proved = Interval(upper=blocks.most_log_det)
        quadratic = Interval(least, least + float(residual_bounds.sum()))
        bounds = f.bounds.meet(quadratic=quadratic, log_det=proved)
        # What is proved about log|K̂| holds for the estimate, too.
        log_det = min(max(P.log_det + float(logs.mean()), bounds.log_det.lower), bounds.log_det.upper)
        value = likelihood(f.n, log_det, least, count)
        estimate = Estimate(
            value=value,
            standard_error=0.5 * count * float(logs.std()) / math.sqrt(len(logs)),
            solution=scaled_rows(v, f.scales),
            residual_bound=float(residual_bounds.max()),
            bounds=bounds,
            iterations=solution.iterations,
            factorisation=f,
        )
        n, m, columns = f.n, len(f.Z), probes.shape[1] + count
        if self.blocks is not None:
            per_iteration = self.blocks.solving_flops(columns)
            self.flops += self.blocks.factor_flops(self._n_features) + solution.iterations * per_iteration
        self.flops += sparse_flops(n, m, self._n_features) + solving_flops(
            n,
            m,
            self._n_features,
            columns=columns,
            iterations=solution.iterations,
            stored=self.product.storage is not Storage.NONE,
        )
        return estimate, probes, scaled_rows(solution.columns[:, count:], f.scales), B, c

    def _exact_part_by_noise(self, f: Factorisation, v: Tensor, A: Tensor, B: Tensor) -> float:
        """½vᵀv − ½ mean aᵀb of unscaled rows, each with the factor of its noise."""
        by_row = 0.5 * as_columns(v).square().sum(1) - 0.5 * f.targets / A.shape[1] * (A * B).sum(1)
        row_noise = self.sparse.row_noise
        return float(by_row.sum() if row_noise is None else by_row @ row_noise.factors)

    def _blocks_part(
        self, blocks: RowBlocks, f: Factorisation, probes: Tensor, B: Tensor, c: float
    ) -> tuple[Tensors, float]:
        """−½[tr P⁻¹∂P − mean bᵀ∂P(b − cP⁻¹K̂b)]: by the kernel's parameters and by s.

        With u = z − cK̂b this is ∂(−½log|P| − ½ mean zᵀP⁻¹u), and 4zᵀP⁻¹u = (z + u)ᵀP⁻¹(z + u) − (z − u)ᵀP⁻¹(z − u).
        """
        u = probes - c * self.product(B, self.check)
        columns, p = torch.cat([probes + u, probes - u], dim=1), probes.shape[1]
        if f.scales is not None:
            columns = scaled_rows(columns, 1.0 / f.scales)
        weights = torch.full_like(columns[0], 0.25 / p)
        weights[p:] *= -1.0
        _, gradients, by_noise = blocks.density(f.kernel, f.noise_variance, columns, self.check, weights=weights)
        self.flops += blocks.density_flops(self._n_features)
        return {name: f.targets * gradient for name, gradient in gradients.items()}, f.targets * by_noise

    def _sparse_part(self, f: Factorisation, B: Tensor) -> tuple[Tensors, float]:
        """The same for the P of the sparse GP, from b of scaled rows."""
        s, targets, p = f.noise_variance, f.targets, B.shape[1]
        VB = self._times_V(f, B)
        B_inv_G = torch.cholesky_solve(f.G, f.L_B)  # [M, M]
        G_bar2 = torch.cholesky_inverse(f.L_B).div_(-s / targets)  # −B⁻¹/s
        by_noise = self._sparse_part_by_noise(f, scaled_rows(B, f.scales), B_inv_G)
        self.sparse.second_sweep(f, G_bar2, B, VB / (p / targets))
        W = (B_inv_G / s).addmm_(VB.T, VB, alpha=-1.0 / p)  # B⁻¹G/s − mean (Vb)(Vb)ᵀ  [M, M]
        f.cross.add_adjoint(f.features_Z, congruence(f.L, 0.5 * (W + W.T), transposed=True).mul_(0.5 * targets))
        self.flops += sparse_gradient_flops(f.n, len(f.Z), self._n_features)
        return f.cross.gradients(), by_noise

    def _sparse_part_by_noise(self, f: Factorisation, B: Tensor, B_inv_G: Tensor) -> float:
        """−½[tr P⁻¹ − mean bᵀb] of unscaled rows, each with the factor of its noise."""
        s, row_noise, rows = f.noise_variance, self.sparse.row_noise, float(f.n)
        squares = B.square().sum(1)
        if row_noise is None:
            probes = float(squares.sum())
        else:
            shares, probes = row_noise.shares(s), float(squares @ row_noise.factors)
            if shares is not None:
                B_inv_G = torch.cholesky_solve(weighted_gram(self.sparse, f, shares), f.L_B)
                rows = float(shares.sum())
        trace = (rows - float(B_inv_G.diagonal().sum()) / s) / s
        return -0.5 * f.targets * (trace - probes / B.shape[1])

    def _conjugate_gradients(
        self, precondition: Preconditioner, blocks: BlockPreconditioner | None, targets: Tensor
    ) -> BlockSolution:
        """K̂⁻¹ targets; with K in 64 bits where 32 are too few."""
        solver = ColumnSolver(self.product, precondition, self.check, blocks=blocks, in_full=self.in_full)
        tolerance = self.tolerance if blocks is None else BLOCK_SHARE * self.tolerance
        solution = solver.in_enough_digits(targets, tolerance, self.most_iterations)
        self.in_full = solver.in_full  # the next θ will hardly differ
        return solution

    def _times_V(self, f: Factorisation, columns: Tensor) -> Tensor:
        """V·columns, transposed: [C, M]."""
        product = columns.new_zeros(columns.shape[1], len(f.Z))
        for rows, V in self.sparse.rows_of_V(f):
            product.addmm_(columns[rows].T, V)
        return product

    def _exact_part(self, kernel: Kernel, v: Tensor, A: Tensor, B: Tensor) -> Tensors:
        """Derivatives of ½vᵀKv − ½ mean aᵀKb by the kernel's parameters."""
        columns = as_columns(v)
        share = -0.25 * columns.shape[1] / A.shape[1]
        left = torch.cat([0.5 * columns, A * share, B * share], dim=1)  # K̄ = left·rightᵀ  [N, 2p + T]
        right = torch.cat([columns, B, A], dim=1)
        rows = self.product.rows
        parts = [torch.split(x, rows) for x in (kernel.features(self.X, self.X.mean(0)), left, right)]

        def work(block_columns: Sequence[int], check: Check) -> Tensors:
            scratch, gradients = self.X.new_empty(rows**2), Tensors()
            for j in block_columns:
                check()
                cross = kernel.against(parts[0][j])
                for i in range(j + 1):  # all is symmetric: what is on one side of the diagonal counts twice
                    K_bar = (parts[1][i] @ parts[2][j].T).mul_(1.0 if i == j else 2.0)
                    K = scratch[: K_bar.numel()].view_as(K_bar)
                    cross.add_adjoint(parts[0][i], K_bar, K, holds_values=self.product.copy_kept(i, j, K))
                add_to(gradients, cross.gradients())
            return gradients

        gradients, *others = by_columns(len(parts[0]), work, self.check, device=self.X.device)
        for other in others:
            add_to(gradients, other)
        return gradients


def solving_memory(kernel: Kernel, n: int, probes: int = PROBES) -> int:
    """Bytes that conjugate gradients and the exact part of a gradient take, besides what the sparse GP does."""
    cores = most_cores(math.ceil(n / TILE_ROWS))
    blocks = cores * (BLOCK_ARRAYS + kernel.temporaries) * TILE_ROWS**2
    return 8 * ((COLUMN_ARRAYS + cores - 1) * (probes + 1) * n + blocks)


@dataclass(frozen=True, eq=False)
class Spectrum:
    """Eigenvalues of P⁻¹K̂ as one column of conjugate gradients sees them, by its Lanczos matrix T."""

    values: Tensor
    shares: Tensor  # of the column's zᵀP⁻¹z

    @staticmethod
    def of(alphas: Tensor, betas: Tensor, least: float) -> Spectrum:
        """From the coefficients; no eigenvalue counts as less."""
        taken = int((alphas > 0.0).sum())
        if taken == 0:
            return Spectrum(alphas.new_ones(1), alphas.new_ones(1))
        alphas, betas = alphas[:taken], betas[:taken]
        diagonal = 1.0 / alphas
        diagonal[1:] += betas[:-1] / alphas[:-1]
        beside = betas[:-1].sqrt() / alphas[:-1]
        T = torch.diag(diagonal) + torch.diag(beside, 1) + torch.diag(beside, -1)
        values, vectors = torch.linalg.eigh(T)
        return Spectrum(values.clamp_(min=least), vectors[0].square())

    @property
    def log(self) -> Tensor:
        """e₁ᵀ log(T) e₁."""
        return self.shares @ self.values.log()

    @property
    def excess(self) -> Tensor:
        """e₁ᵀ(T − I)e₁."""
        return self.shares @ (self.values - 1.0)


def _check_accuracy(solution: BlockSolution, squares: Tensor, spectra: Sequence[Spectrum]) -> None:
    """NotConvergedError where solutions of probes with these zᵀP⁻¹z may be further off than their residuals say.

    In the norm of K̂ errors are up to rᵀP⁻¹r/λ, with the least eigenvalue λ of P⁻¹K̂; and logarithms of eigenvalues that
    are as small may not have been seen.
    """
    least = min(float(spectrum.values.min()) for spectrum in spectra)
    worst = float((solution.residual_bounds[-len(squares) :] / squares).max())
    if not worst <= MOST_INACCURACY * least:
        raise NotConvergedError(f"blocks leave eigenvalues of P⁻¹K̂ as small as {least:.2g}", solution)


def share_of_excess(spectra: Sequence[Spectrum]) -> float:
    """The c with which log λ − c(λ − 1) varies least: what is subtracted has the mean 0, where tr P⁻¹K̂ = N."""
    values, shares = (torch.cat(parts) for parts in zip(*((s.values, s.shares) for s in spectra), strict=True))
    excess = values - 1.0
    square = float(shares @ excess.square())
    return float(shares @ (excess * values.log())) / square if square > 0.0 else 0.0
