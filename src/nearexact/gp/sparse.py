"""Sparse GP regression (Titsias 2009, 2025): a bound on the likelihood, and its full gradient.

The data are read in chunks of rows, twice for a gradient (sweeps.py): the first sweep reduces them to matrices of size
M, the second hands the adjoint of K_XZ to the kernel chunk by chunk. No autodiff graph and no [N, N] array is ever
made; the only [N, M] array is V = L⁻¹K_ZX, and it is computed again instead of kept where memory does not allow it, or
not needed at all where K_ZZ is conditioned so well that sums over K_XZ do. The tight bound (Titsias 2025) weighs each
row by its own residual variance, so it takes V for every row, and one more product of size M²N.

Everything over the data is kept by rows of X, so that a chunk is contiguous: `V` in the code is Vᵀ, [rows, M].
"""

# The derivation, one line for each quantity. N rows, M inducing points Z, noise variance s; a bar is an adjoint, that
# is the derivative of the bound by the quantity.
#
#   L     = chol(K_ZZ + jitter·I)                                    [M, M]
#   V     = L⁻¹ K_ZX                                                 [M, N]
#   Q     = VᵀV, the part of K that Z explains                       [N, N], never formed
#   G     = V Vᵀ,  b = V y                                           [M, M], [M]: all that leaves the first sweep
#   t     = Σ_n k(x_n, x_n) − tr G,  the trace of K − Q              and d_n its terms
#   B     = I + G/s,  w = B⁻¹b,  u = w/s                             [M, M], [M], [M]
#   ELBO  = −½ [N log 2πs + log|B| + yᵀy/s − bᵀw/s² + t/s]           log|Q + sI| = N log s + log|B|, by Sylvester;
#                                                                    yᵀ(Q + sI)⁻¹y = yᵀy/s − bᵀw/s², by Woodbury
#   tight = the same with Σ_n log(1 + d_n/s) in the place of t/s
#
#   2Ḡ    = (I − B⁻¹ − uuᵀ)/s                                        [M, M]  `G_bar2`
#   b̄     = u/s                                                      [M]
#   K̄_ZX  = L⁻ᵀ(2Ḡ V + b̄ yᵀ)                                         [M, N], a chunk at a time, in the second sweep
#   W     = (G − B⁻¹G)/s + uuᵀ                                       [M, M]; equal to 2Ḡ G + b̄ bᵀ, but cancels less
#   K̄_ZZ  = −½ L⁻ᵀ W L⁻¹                                             [M, M]
#   ∂/∂s  = ½ [(tr B⁻¹G + yᵀy + t + uᵀGu − 2bᵀu)/s − N]/s
#   ∂/∂k(x_n, x_n) = −½/s
#
# In the tight bound 1/s becomes δ_n = 1/(s + d_n) for each row n: I/s in 2Ḡ V becomes V diag(δ), G/s in W becomes
# V diag(δ) Vᵀ, and ∂/∂k(x_n, x_n) = −½δ_n. A trace or residual that was repaired is the constant 0: its terms drop out.
#
# Several targets y [N, T] share V and all that follows from it: b, w and u have a column for each, terms in them are
# sums over the columns, and all others count T times. Noise that differs from row to row scales the rows by ω_n
# (row_noise.py): V, y and k(x_n, x_n) are then those of scaled rows. K̄_ZX and ∂/∂k(x_n, x_n) get back the factors ω_n
# and ω_n²; ∂/∂s has the same form with sums over rows that are weighted by the share e_n of s in a row's noise:
#
#   ∂/∂s  = ½ [(tr B⁻¹G_e + y_eᵀy + t_e + uᵀG_e u − 2b_eᵀu)/s − Σe_n]/s,   G_e = V diag(e) Vᵀ, and so on

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from nearexact.gp.factorisation import Factorisation
from nearexact.gp.linalg import add_self_outer, as_columns, congruence, mean_condition, mirror_lower, solve_rows
from nearexact.gp.memory import MemoryPlan
from nearexact.gp.noise_derivative import noise_derivative
from nearexact.gp.parameters import ParameterLayout
from nearexact.gp.row_noise import RowNoise
from nearexact.gp.rows import LocalRows, as_rows, local
from nearexact.gp.safety import Numerics, Repairs, jittered_cholesky, numerics_for, repair_trace, residual_error
from nearexact.gp.sweeps import adjoint_factors, local_sweeps
from nearexact.kernels.base import Kernel, Tensors, with_diagonal
from nearexact.limits import memory_budget
from nearexact.typing import FloatArray
from nearexact.validation import as_matrix

BOUNDS = ("elbo", "tight")  # that can be maximised


class SparseObjective:
    """−ELBO, or the negative tight bound, and its gradient as a function of θ, for fixed data and inducing points.

    X and y are arrays, or X is `Rows` that have their targets, here or elsewhere. Buffers are kept from one evaluation
    to the next. Not for use by two threads at once.
    """

    def __init__(
        self,
        kernel: Kernel,
        noise_variance: float,
        X: Any,
        y: Any,
        Z: Any,
        *,
        bound: str = "elbo",
        row_noise: RowNoise | None = None,
        memory_limit: int | float | str | None = None,
        numerics: Numerics | None = None,
    ) -> None:
        self.tight = is_tight(bound)
        self.data = as_rows(X, y, row_noise)
        if self.tight and not isinstance(self.data, LocalRows):
            raise ValueError('bound="tight" is for rows that are here: take the ELBO for those that are elsewhere')
        self.Z = as_matrix(Z, "Z", self.data.device, columns=self.data.inputs).clone()
        if len(self.Z) == 0:
            raise ValueError("Z must have at least one row, got none")
        self.numerics = numerics = numerics or numerics_for(noise_variance)
        self.layout = ParameterLayout(kernel, self.data.inputs, numerics)
        kernel = self.layout.kernel
        self.theta0 = self.layout.pack(kernel, noise_variance)
        self.repairs = Repairs()
        centre = self.Z.mean(0)
        self._features_Z = kernel.features(self.Z, centre)
        budget = memory_budget(memory_limit, self.data.device)
        n_features = self._features_Z.shape[1]
        plan = MemoryPlan.within(budget, kernel, self.data.here, len(self.Z), n_features)
        self.spare_memory = budget - plan.memory  # bytes
        self.sweeps = self.data.sweeps(kernel, self.Z, centre, plan, numerics)

    @property
    def X(self) -> Tensor:
        """Inputs that are here [N, D]."""
        return local(self.data).X

    @property
    def y(self) -> Tensor:
        """Targets that are here: [N], or [N, T]."""
        return local(self.data).y

    @property
    def row_noise(self) -> RowNoise | None:
        """Where it differs from row to row."""
        return self.data.row_noise

    @property
    def plan(self) -> MemoryPlan:
        """What the sweeps keep of rows that are here."""
        return self.sweeps.plan

    def __call__(self, theta: FloatArray) -> tuple[float, FloatArray]:
        """The negative bound and its gradient at θ; NaN where the trace is beyond repair or θ is not finite."""
        return self.layout.negated(self.value_and_gradient, theta)

    def value(self, f: Factorisation) -> float:
        """The bound that is maximised."""
        return f.tight_bound if self.tight else f.elbo

    def factorise(
        self, kernel: Kernel, noise_variance: float, *, residuals: bool = False, L: Tensor | None = None
    ) -> Factorisation:
        """First sweep: everything about the model at these hyperparameters but its gradient.

        The tight bound is in it if it is what is maximised, or if the `residuals` that it needs are asked for; that
        may take one triangular solve more for each chunk. `L` is the factor of K_ZZ, where it is at hand.
        """
        kernel = self.layout.check(kernel)
        features_Z = self._features_Z
        cross = kernel.against(features_Z)
        jitter = 0.0
        if L is None:
            K_ZZ = with_diagonal(cross.values(features_Z), kernel.diagonal(features_Z))
            L, jitter = jittered_cholesky(K_ZZ, self.repairs, what="K_ZZ", numerics=self.numerics)
            del K_ZZ
        condition = mean_condition(L, self.numerics.merge_condition)
        rows = self.sweeps.at(kernel, noise_variance)
        # Without q(x, x) the trace is a difference of sums, which is too coarse where the signal dwarfs the noise.
        direct = (
            condition <= self.numerics.direct_condition
            and not self.tight
            and self.row_noise is None
            and rows.mean_diagonal <= self.numerics.direct_signal_to_noise * noise_variance
        )
        residuals = residuals or self.tight
        if direct:
            sums = rows.first_sweep(cross, L, direct=True, residuals=residuals)
            G, b = congruence(L, mirror_lower(sums.G)), _solved(L, sums.b)
            trace, repaired, error = sums.diagonal_sum - float(G.diagonal().sum()), False, 0.0
            direct = trace > 0.0  # else only q(x, x) can tell rounding noise from failure
        if not direct:
            sums = rows.first_sweep(cross, L, direct=False, residuals=residuals)
            G, b = mirror_lower(sums.G), sums.b
            trace, repaired = repair_trace(sums.trace, sums.largest_ratio, self.repairs, self.numerics)
            largest = sums.diagonal_sum / sums.n if sums.diagonal is None else float(sums.diagonal.max())
            error = residual_error(sums.largest_ratio, largest)
        self.repairs.add_residuals(sums.repairs)
        f = Factorisation(
            kernel=kernel,
            noise_variance=noise_variance,
            Z=self.Z,
            features_Z=features_Z,
            cross=cross,
            L=L,
            jitter=jitter,
            direct=direct,
            merges=condition <= self.numerics.merge_condition and not self.tight,
            n=sums.n,
            y=sums.y,
            yy=sums.yy,
            G=G,
            b=b,
            trace=trace,
            trace_repaired=repaired,
            residuals=sums.residuals,
            log_residuals=sums.log_residuals,
            repairs=self.repairs,
            numerics=self.numerics,
            scales=sums.scales,
            diagonal=sums.diagonal,
            residual_error=error,
        )
        self.sweeps.swept(f)
        return f

    def rows_of_V(self, f: Factorisation) -> Iterator[tuple[slice, Tensor]]:
        """V of the last factorisation, chunk by chunk [rows, M]; see LocalSweeps."""
        return local_sweeps(self.sweeps).rows_of_V(f)

    def whole_V(self, f: Factorisation) -> Tensor:
        """V of the last factorisation [N, M], where there is room for it. Not to be changed."""
        return local_sweeps(self.sweeps).whole_V(f)

    def value_and_gradient(self, kernel: Kernel, noise_variance: float) -> tuple[float, Tensors, float]:
        """The bound, and its derivatives by the kernel's parameters and by the noise variance."""
        f = self.factorise(kernel, noise_variance)
        value = self.value(f)
        if not math.isfinite(value):
            return value, {n: torch.full(v.shape, math.nan) for n, v in kernel.parameters.items()}, math.nan
        s, targets, u = f.noise_variance, f.targets, f.w / f.noise_variance  # u = B⁻¹b/s  [M], or [M, T]
        # Minus twice the derivative of the bound by k(x_n, x_n), which is also the part in V of that by q(x_n, x_n). A
        # repaired trace, or residual, is the constant 0: its terms drop out.
        weights: Tensor | None = None  # [N]; None where all are `uniform`
        uniform = 0.0 if f.trace_repaired else targets / s
        if self.tight:
            assert f.residuals is not None
            weights, uniform = torch.where(f.residuals > 0.0, targets / (s + f.residuals), 0.0), 0.0
        B_inv_G = torch.cholesky_solve(f.G, f.L_B)  # [M, M]
        by_noise = noise_derivative(self, f, u, B_inv_G, weights)

        # Second sweep. Twice the adjoint of G is Ḡ2 = (I − B⁻¹ − uuᵀ)/s, that of b is b̄ = u/s, hence
        # K̄_ZX = L⁻ᵀ(Ḡ2 V + b̄ yᵀ). In the tight bound the I/s in Ḡ2 becomes Δ = diag(weights) on the other side of V.
        G_bar2 = add_self_outer(torch.cholesky_inverse(f.L_B).mul_(-targets), u, alpha=-1.0).div_(s)
        G_bar2.diagonal().add_(uniform)
        VDV = self.second_sweep(f, G_bar2, as_columns(f.y), as_columns(u).T.contiguous() / s, weights)  # VΔVᵀ  [M, M]
        del G_bar2

        # K̄_ZZ = −½ L⁻ᵀ W L⁻¹. Written as Ḡ2 G + b̄bᵀ, W would cancel badly where K_ZZ is ill-conditioned.
        W = (uniform * f.G if VDV is None else VDV).sub_(B_inv_G, alpha=targets / s)
        add_self_outer(W, u)  # (G − B⁻¹G)/s + uuᵀ
        del B_inv_G
        K_ZZ_bar = congruence(f.L, 0.5 * (W + W.T), transposed=True).mul_(-0.5)
        f.cross.add_adjoint(f.features_Z, K_ZZ_bar)
        gradients = f.cross.gradients()
        self.sweeps.add_gradients(gradients, f, uniform, weights)
        return value, gradients, by_noise

    def second_sweep(
        self, f: Factorisation, G_bar2: Tensor, targets: Tensor, bars: Tensor, weights: Tensor | None = None
    ) -> Tensor | None:
        """Hand K̄_ZX = L⁻ᵀ(Ḡ2 V + bars targetsᵀ) to the kernel; V is lost with that.

        Targets are [N, C] and their bars [C, M]: here y and b̄. Where rows have weights, VΔVᵀ comes back.
        """
        return self.sweeps.second_sweep(f, *adjoint_factors(f, G_bar2, bars), targets, weights)


def _solved(L: Tensor, b: Tensor) -> Tensor:
    """L⁻¹b for a vector [M], or for several columns [M, T]."""
    return solve_rows(L, b[None, :])[0] if b.ndim == 1 else torch.linalg.solve_triangular(L, b, upper=False)


def is_tight(bound: str) -> bool:
    """Whether the tight bound is meant, or the ELBO; a ValueError if neither is."""
    if bound not in BOUNDS:
        raise ValueError(f'bound must be "elbo" or "tight", got {bound!r}')
    return bound == "tight"
