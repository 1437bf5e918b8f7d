"""Bounds on log|K̂| from two moments of what a sparse GP leaves unexplained: far tighter than Hadamard's inequality.

With P = Q + sI and E = K − Q ⪰ 0, log|K̂| − log|P| = Σ log(1 + μ_i) over the eigenvalues μ_i ≥ 0 of P^(-½) E P^(-½). The
moments Σμ = tr(P⁻¹E) and Σμ² = tr(P⁻¹EP⁻¹E) need every entry of E once, block by block, in about 3N²M floating point
operations. Between two points where it agrees with log(1 + μ), a parabola lies on one side of it, since the third
derivative is positive: so two moments bound the sum from both sides (Gauss-Radau quadrature; docs/certificate.md).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

from nearexact.gp.bounds import Interval
from nearexact.gp.factorisation import Factorisation
from nearexact.gp.kernel_product import KernelProduct
from nearexact.gp.linalg import solve_rows
from nearexact.gp.sparse import SparseObjective

NOTHING = 1e-100  # a sum so small has no square
BLOCK_ROWS = 1024  # of E, and as many columns: enough for products with V at full speed


@dataclass(frozen=True)
class Moments:
    """Σμ and Σμ² of n numbers that are not negative."""

    n: int
    first: float
    second: float

    def sum_of_logs(self) -> Interval:
        """Bounds on Σ log(1 + μ)."""
        if not (self.first > NOTHING and math.isfinite(self.first + self.second)):
            return Interval(0.0)
        second = max(self.second, self.first**2 / self.n)  # Cauchy and Schwarz, against rounding
        largest = math.sqrt(second)  # no μ is larger: its square is a part of Σμ²
        if largest * (1.0 - 1e-9) <= self.first / self.n:  # all of it is one μ
            return Interval(self._radau(second, 0.0), self.n * math.log1p(self.first / self.n))
        return Interval(self._radau(second, 0.0), self._radau(second, largest))

    def _radau(self, second: float, node: float) -> float:
        """n·E[p(μ)] for the parabola p that touches log(1 + μ) at some x and meets it at the node.

        p(μ) − log(1 + μ) has the sign of (node − μ)(μ − x)²: the node 0 makes a lower bound, one above every μ an upper
        one.
        """
        mean = self.first / self.n
        offset, variance = mean - node, max(second / self.n - mean**2, 0.0)
        share = offset**2 / (offset**2 + variance)  # of x, such that node and x have both moments
        x = node + (offset**2 + variance) / offset
        return self.n * (share * math.log1p(x) + (1.0 - share) * math.log1p(node))


def fits(objective: SparseObjective) -> bool:
    """Whether all rows are here, and there is memory for V and for another array of its size."""
    if not objective.data.here:
        return False
    return objective.plan.keeps_v and objective.spare_memory >= 8 * len(objective.X) * len(objective.Z)


def unexplained(
    objective: SparseObjective,
    f: Factorisation,
    *,
    check: Callable[[], None] = lambda: None,
    on_share: Callable[[float], None] = lambda share: None,
    rows: int = BLOCK_ROWS,
) -> Moments:
    """tr(P⁻¹E) and tr(P⁻¹EP⁻¹E) for a sparse GP's last factorisation.

    P⁻¹ = (I − UUᵀ)/s with U = VᵀL_B⁻ᵀ/√s, so that with F = EU they are (tr E − tr UᵀF)/s and
    (|E|² − 2|F|² + |UᵀF|²)/s². `check` is called between rows of blocks, `on_share` with the share that is done.
    """
    s, n = f.noise_variance, f.n
    V = objective.whole_V(f)  # [N, M]
    kernel = KernelProduct(f.kernel, s, objective.X, rows)
    blocks = kernel.blocks()
    scales = None if f.scales is None else torch.split(f.scales, rows)
    F = torch.zeros_like(V)  # EV, then EU
    parts, products = torch.split(V, rows), torch.split(F, rows)
    trace = squares = 0.0
    for j in range(len(parts)):
        check()
        on_share(j * (j + 1) / (len(parts) * (len(parts) + 1)))
        for i in range(j + 1):
            block = blocks(i, j)
            if scales is not None:
                block.mul_(scales[i][:, None]).mul_(scales[j])
            E = block.addmm_(parts[i], parts[j].T, beta=kernel.scale, alpha=-1.0)
            products[i].addmm_(E, parts[j])
            square = float(torch.linalg.vector_norm(E)) ** 2
            if i == j:
                trace += float(E.diagonal().sum())
                squares += square
            else:
                products[j].addmm_(E.T, parts[i])
                squares += 2.0 * square
    check()
    solve_rows(f.L_B, F)
    UF = solve_rows(f.L_B, (V.T @ F).T.contiguous())  # FᵀU, but for the factors 1/√s
    first = (trace - float(UF.diagonal().sum()) / s) / s
    second = (squares - 2.0 * float(F.square_().sum()) / s + float(UF.square_().sum()) / s**2) / s**2
    return Moments(n, first, second)
