"""Bounds on yᵀK̂⁻¹y for the exact K̂ = K + sI, by conjugate gradients that never store K̂ (Artemev et al. 2021).

Any v with residual r = y − K̂v brackets the quadratic form, since Q + sI = P ⪯ K̂ (of scaled rows, where they have
noise of their own):

    2yᵀv − vᵀK̂v  ≤  yᵀK̂⁻¹y  ≤  2yᵀv − vᵀK̂v + rᵀP⁻¹r

P, of which a sparse GP has the factors at hand, is also the preconditioner.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from nearexact.gp.bounds import Interval, LikelihoodBounds
from nearexact.gp.factorisation import Factorisation
from nearexact.gp.kernel_product import KernelProduct
from nearexact.gp.linalg import as_columns, solve_rows, with_fours
from nearexact.gp.rounding import lost_share
from nearexact.gp.row_noise import scaled_rows
from nearexact.gp.sparse import SparseObjective

SETTLED_PER_POINT = 1e-4  # nats: a hundredth of the gap that certifies
SETTLED_SHARE = 1e-3  # of what the log determinant leaves open, which no iteration changes
STALLED_ITERATIONS, STALLED_GAIN = 20, 0.01  # no longer shrinking: less than this share in so many iterations


@dataclass(frozen=True, eq=False)
class Iteration:
    """Where the conjugate gradients stand."""

    number: int  # of products with K̂ so far
    solution: Tensor  # v, which the next iteration changes  [N], or [N, T]
    quadratic: Interval  # what this v alone proves
    bounds: LikelihoodBounds  # the best so far
    seconds: float  # since they started


class Preconditioner:
    """r ↦ P⁻¹r for P = Q + sI = VᵀV + sI, from the factors of a sparse GP (Woodbury)."""

    least_eigenvalue = 1.0  # of P⁻¹K̂, since P ⪯ K̂

    def __init__(self, objective: SparseObjective, f: Factorisation) -> None:
        self.objective, self.f = objective, f
        self.trace = float(f.G.diagonal().sum())  # tr Q

    @property
    def log_det(self) -> float:
        """log|P| of unscaled rows."""
        return self.f.log_det

    @property
    def rounding(self) -> float:
        """By how much rᵀP⁻¹r may be off, for each rᵀr."""
        return lost_share(self.trace, self.f.noise_variance) / self.f.noise_variance

    def __call__(self, r: Tensor, check: Callable[[], None] = lambda: None) -> tuple[Tensor, float]:
        """P⁻¹r [N] and rᵀP⁻¹r."""
        solved, quadratics = self.solve(r[:, None], check)
        return solved[:, 0], float(quadratics[0])

    def solve(self, R: Tensor, check: Callable[[], None] = lambda: None) -> tuple[Tensor, Tensor]:
        """P⁻¹R for several columns [N, C], and rᵀP⁻¹r of each [C]."""
        R_rows, half, quadratics = self._halfway(R, check)
        weights = solve_rows(self.f.L_B, half, transposed=True).div_(self.f.noise_variance)  # B⁻¹VR/s
        self._subtract(R_rows, weights, check)
        # (R − VᵀB⁻¹VR/s)/s
        return R_rows[: R.shape[1]].div_(self.f.noise_variance).T.contiguous(), quadratics

    def squares(self, R: Tensor, check: Callable[[], None] = lambda: None) -> Tensor:
        """rᵀP⁻¹r of several columns alone [C]."""
        return self._halfway(R, check)[2]

    def _halfway(self, R: Tensor, check: Callable[[], None]) -> tuple[Tensor, Tensor, Tensor]:
        """Rᵀ and (L_B⁻¹VR)ᵀ with some rows of zeros more, and rᵀP⁻¹r."""
        s = self.f.noise_variance
        # A few rows times V take less time than V times a few columns.
        R_rows = with_fours(R.T).clone(memory_format=torch.contiguous_format)  # [C, N]
        half = solve_rows(self.f.L_B, self._projected(R_rows, check))
        quadratics = (R_rows.square().sum(1) - half.square().sum(1) / s) / s
        return R_rows, half, quadratics[: R.shape[1]].clamp_(min=0.0)

    def draws(self, epsilon_Z: Tensor, epsilon_X: Tensor) -> Tensor:
        """Columns z = Vᵀε + √s ε′ ~ N(0, P) from standard normal ones [M, p] and [N, p]."""
        z = math.sqrt(self.f.noise_variance) * epsilon_X
        for rows, V in self.objective.rows_of_V(self.f):
            z[rows].addmm_(V, epsilon_Z)
        return z

    def _projected(self, R_rows: Tensor, check: Callable[[], None]) -> Tensor:
        """(VR)ᵀ [C, M]."""
        VR = R_rows.new_zeros(len(R_rows), len(self.f.b))
        for rows, V in self.objective.rows_of_V(self.f):
            check()
            VR.addmm_(R_rows[:, rows], V)
        return VR

    def _subtract(self, R_rows: Tensor, weights: Tensor, check: Callable[[], None]) -> None:
        """Rᵀ − weights·V, in place [C, N]."""
        for rows, V in self.objective.rows_of_V(self.f):
            check()
            R_rows[:, rows].addmm_(weights, V.T, alpha=-1.0)


class System(NamedTuple):
    """K̂v = y, and what solves it; both functions call a function now and then, which may raise an exception."""

    product: Callable[[Tensor, Callable[[], None]], Tensor]  # v ↦ K̂v, of one vector [N] or several [N, C]
    solve: Callable[[Tensor, Callable[[], None]], tuple[Tensor, Tensor]]  # as that of Preconditioner
    y: Tensor  # [N], or [N, T]
    rounding: float  # by how much rᵀP⁻¹r may be off, for each rᵀr


@runtime_checkable
class SweepsElsewhere(Protocol):
    """Sweeps over rows that are not here, which have their own products."""

    def system(self, objective: SparseObjective, f: Factorisation) -> System:
        """Those of the last factorisation."""


def system_of(objective: SparseObjective, f: Factorisation) -> System:
    """The system of a sparse GP's last factorisation, wherever the rows are."""
    if isinstance(objective.sweeps, SweepsElsewhere):
        return objective.sweeps.system(objective, f)
    product = KernelProduct(f.kernel, f.noise_variance, objective.X, scales=f.scales)
    precondition = Preconditioner(objective, f)
    return System(product, precondition.solve, f.y, precondition.rounding)


def quadratic_of(objective: SparseObjective, f: Factorisation, v: Tensor, check: Callable[[], None]) -> Interval:
    """Where yᵀK̂⁻¹y lies, from weights v that nearly solve K̂v = y."""
    product, solve, y, rounding = system_of(objective, f)
    v = as_columns(v if f.scales is None else scaled_rows(v, 1.0 / f.scales))
    r = as_columns(y) - product(v, check)
    return _quadratic(as_columns(y), v, r, solve(r, check)[1], rounding)


def conjugate_gradients(
    objective: SparseObjective,
    f: Factorisation,
    *,
    bounds: LikelihoodBounds | None = None,
    tolerance: float | None = None,
    check: Callable[[], None] = lambda: None,
    clock: Callable[[], float] = time.perf_counter,
) -> Iterator[Iteration]:
    """The bounds of a sparse GP's last factorisation, tightened by conjugate gradients on K̂v = y from v = 0.

    Others than its own `bounds` may be known already. The iterations end when what the quadratic form leaves open is
    below `tolerance` (nats; by default when closing it would hardly change the gap), or when it no longer shrinks. The
    best of each side is kept, so that more iterations never give looser bounds. `check` is called often; an exception
    that it raises ends the iterations.
    """
    started = clock()
    bounds = f.bounds if bounds is None else bounds
    if tolerance is None:
        tolerance = max(SETTLED_PER_POINT * f.n, SETTLED_SHARE * bounds.trace_gap)
    product, solve, y, rounding = system_of(objective, f)
    Y = as_columns(y)
    v, r = torch.zeros_like(Y), Y.clone()  # a column for each target: they share products, not steps
    directions, rho = solve(r, check)  # P⁻¹r and rᵀP⁻¹r
    gaps: deque[float] = deque([bounds.residual_gap], maxlen=STALLED_ITERATIONS + 1)
    number = 0
    while bounds.residual_gap > tolerance:
        if len(gaps) > STALLED_ITERATIONS and gaps[-1] > (1.0 - STALLED_GAIN) * gaps[0]:
            return
        one = directions.shape[1] == 1  # for which the product takes less time as that with a vector
        products = product(directions[:, 0], check)[:, None] if one else product(directions, check)
        curvatures = (directions * products).sum(0)
        steps = torch.where(curvatures > 0.0, rho / curvatures, 0.0)
        steps = torch.where(steps.isfinite(), steps, 0.0)
        if not bool((steps > 0.0).any()):  # nothing is left but rounding noise
            return
        v.addcmul_(directions, steps)
        r.addcmul_(products, steps, value=-1.0)
        solved, next_rho = solve(r, check)
        number += 1
        quadratic = _quadratic(Y, v, r, next_rho, rounding)
        bounds = bounds.meet(quadratic=quadratic)
        gaps.append(bounds.residual_gap)
        yield Iteration(number, v.view_as(y), quadratic, bounds, clock() - started)
        shares = torch.where(rho > 0.0, next_rho / rho, 0.0)
        directions, rho = solved.addcmul_(directions, shares), next_rho


def _quadratic(Y: Tensor, v: Tensor, r: Tensor, bounds: Tensor, rounding: float) -> Interval:
    """Bounds on yᵀK̂⁻¹y, summed over targets, with r = y − K̂v and rᵀP⁻¹r of each [T]."""
    least = float((Y * v).sum()) + float((r * v).sum())  # 2yᵀv − vᵀK̂v, as K̂v = y − r
    return Interval(least, least + float(bounds.sum()) + rounding * float(r.square().sum()))
