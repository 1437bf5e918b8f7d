"""The derivative of a sparse GP's bound by the learnt noise variance s, from sums over the rows.

Where s is not all of a row's noise, the row counts by the share e_n that it is (row_noise.py): the derivation in
sparse.py has the same formula for both. These sums take one more product of size M²N.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from nearexact.gp.factorisation import Factorisation
from nearexact.gp.linalg import add_gram, add_product, dot, mirror_lower
from nearexact.gp.row_noise import scaled_rows

if TYPE_CHECKING:
    from nearexact.gp.sparse import SparseObjective


def noise_derivative(
    objective: SparseObjective, f: Factorisation, u: Tensor, B_inv_G: Tensor, weights: Tensor | None
) -> float:
    """∂/∂s for the last factorisation; u = B⁻¹b/s, and `weights` are those of the tight bound's residuals."""
    s, targets = f.noise_variance, f.targets
    residuals = f.residuals if weights is not None else None
    trace, G, b, yy, rows = float(B_inv_G.diagonal().sum()), f.G, f.b, f.yy, float(f.n)
    missing = targets * f.trace if weights is None or residuals is None else s * float(weights @ residuals)
    shares = None if objective.row_noise is None else objective.row_noise.shares(s)
    if shares is not None:
        assert f.diagonal is not None
        G, rows, weighted_y = weighted_gram(objective, f, shares), float(shares.sum()), scaled_rows(f.y, shares)
        trace = float(torch.cholesky_solve(G, f.L_B).diagonal().sum())
        yy, b = dot(weighted_y, f.y), torch.zeros_like(b)
        for chunk, V in objective.rows_of_V(f):
            add_product(b, V, weighted_y[chunk])
        if weights is not None and residuals is not None:
            missing = s * float((weights * shares) @ residuals)
        elif not f.trace_repaired:
            missing = targets * float(shares @ f.diagonal - G.diagonal().sum())
    explained = targets * trace + yy + missing + dot(u, G @ u) - 2.0 * dot(b, u)
    return 0.5 * (explained / s - targets * rows) / s


def weighted_gram(objective: SparseObjective, f: Factorisation, shares: Tensor) -> Tensor:
    """V diag(e) Vᵀ for the last factorisation: [M, M]."""
    G, roots = torch.zeros_like(f.G), shares.sqrt()
    for rows, V in objective.rows_of_V(f):
        add_gram(G, V * roots[rows, None])
    return mirror_lower(G)
