"""Approximate solutions of K̂w = b by what a fitted model has at hand; bounds hold for any, but need good ones.

A sparse GP's factors of P = Q + sI precondition conjugate gradients, and give functions that explain a residual. An
exact GP's Cholesky factor solves at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import torch
from torch import Tensor

from nearexact.gp.iterative_posterior import IterativePosterior
from nearexact.gp.posterior import ExactPosterior, SparsePosterior
from nearexact.gp.prediction_bounds import Check, ExactSystem, Explanation
from nearexact.gp.rounding import sum_rounding
from nearexact.gp.row_noise import scaled_rows

SAME_DATA = 1e-3  # relative difference, on another machine, up to which data are the same


class Solver(Protocol):
    """What the bounds need of a model. One with a solution for y, but no factor of K̂, would be a sparse one with it."""

    has_factor: bool  # whether `precondition` solves but for rounding

    def weights(self) -> Tensor | None:
        """K̂⁻¹y [N], if the model has it; of scaled rows, as everything here."""

    def precondition(self, R: Tensor, check: Check) -> Tensor:
        """Nearly K̂⁻¹R: a symmetric positive definite matrix times R [N, C]."""

    def explain(self, R: Tensor, X_new: Tensor | None, check: Check) -> Explanation | None:
        """Functions near to the columns of R at X, if the model has any; X_new has the row of each column."""


class CholeskySolver:
    """By the factor of K̂ that an exact GP has."""

    has_factor = True

    def __init__(self, posterior: ExactPosterior) -> None:
        self.posterior = posterior
        noise = posterior.row_noise
        self._inverse_scales = None if noise is None else 1.0 / noise.scales(posterior.noise_variance)

    def weights(self) -> Tensor:
        return scaled_rows(self.posterior.weights, self._inverse_scales)

    def precondition(self, R: Tensor, check: Check) -> Tensor:
        check()
        solved = torch.cholesky_solve(scaled_rows(R, self._inverse_scales), self.posterior.L)
        return scaled_rows(solved, self._inverse_scales)

    def explain(self, R: Tensor, X_new: Tensor | None, check: Check) -> None:
        """Residuals are as small as rounding errors: there is nothing to explain."""


class SparseSolver:
    """By P⁻¹ = (I − K_XZ C K_ZX)/s with C = L⁻ᵀB⁻¹L⁻¹/s, from a sparse GP's factors: V is not needed."""

    has_factor = False

    def __init__(self, posterior: SparsePosterior, system: ExactSystem, memory: int) -> None:
        self.posterior, self.system = posterior, system
        kernel, (n, m) = posterior.kernel, (len(system.X), len(posterior.Z))
        features_Z = kernel.features(posterior.Z, system.centre)
        self._cross, k_Z = kernel.against(features_Z), kernel.diagonal(features_Z)
        self._sizes = k_Z.sqrt()
        # What LLᵀ has on its diagonal above k(z, z), less what may be rounding.
        rows = posterior.L.square().sum(1)
        self._jitter = max(float((rows - k_Z - sum_rounding(m) * rows).min()), 0.0)
        self._kept: list[Tensor] | None = [] if 8 * n * m <= memory else None  # blocks of K_XZ

    def weights(self) -> Tensor | None:
        """It has none of size N."""
        return None

    def precondition(self, R: Tensor, check: Check) -> Tensor:
        return (R - self._at_X(self._coefficients(R, check), check)).div_(self.posterior.noise_variance)

    def explain(self, R: Tensor, X_new: Tensor | None, check: Check) -> Explanation:
        """The functions that ridge regression on K_XZ finds: they make |r − f(X)|²/s + |f|² as small as it gets."""
        c, L, tau = self._coefficients(R, check), self.posterior.L, self.system.rounding
        sizes, norm = self._sizes @ c.abs(), torch.linalg.vector_norm
        # cᵀK_ZZ c = |Lᵀc|² − jitter·|c|², but for the rounding errors of L, which the jitter was there to outweigh.
        length = norm(L.T @ c, dim=0) + sum_rounding(len(c)) * float(norm(L)) * norm(c, dim=0)
        excess = (4.0 * tau * sizes.square() - self._jitter * norm(c, dim=0).square()).clamp_(min=0.0)
        at_new = torch.zeros_like(sizes)
        if X_new is not None:
            features = self.posterior.kernel.features(X_new, self.system.centre)
            at_new = (self._cross.values(features) * c.T).sum(1)
        return Explanation(at_new, self._at_X(c, check), length.square() + excess, sizes)

    def fits(self, y: Tensor) -> bool:
        """Whether the model was made from the data of the system, with its y, by what it knows of Vy and of V Vᵀ."""
        p, s = self.posterior, self.posterior.noise_variance
        ones = torch.ones_like(p.Z[:, :1])
        u = p.L.T @ ones  # so that VᵀU = K_XZ 1 needs no solve
        G_u = torch.linalg.solve_triangular(p.L, self._onto_Z(self._at_X(ones, _unchecked), _unchecked), upper=False)
        b = torch.linalg.solve_triangular(p.L, self._onto_Z(y[:, None], _unchecked), upper=False)
        pairs = ((s * (p.L_B @ (p.L_B.T @ u) - u), G_u), (s * (p.L_B @ (p.L_B.T @ p.weights[:, None])), b))
        norm = torch.linalg.vector_norm
        return all(float(norm(known - found)) <= SAME_DATA * float(norm(known) + s) for known, found in pairs)

    def _coefficients(self, R: Tensor, check: Check) -> Tensor:
        """C K_ZX R  [M, C]."""
        p = self.posterior
        VR = torch.linalg.solve_triangular(p.L, self._onto_Z(R, check), upper=False)
        z = torch.cholesky_solve(VR, p.L_B).div_(p.noise_variance)
        c: Tensor = torch.linalg.solve_triangular(p.L.T, z, upper=True)
        return c

    def _onto_Z(self, R: Tensor, check: Check) -> Tensor:
        """K_ZX R  [M, C]."""
        total = R.new_zeros(len(self.posterior.Z), R.shape[1])
        for rows, K_XZ in self._blocks(check):
            total.addmm_(K_XZ.T, R[rows])
        return total

    def _at_X(self, c: Tensor, check: Check) -> Tensor:
        """K_XZ c  [N, C]."""
        values = c.new_empty(len(self.system.X), c.shape[1])
        for rows, K_XZ in self._blocks(check):
            torch.mm(K_XZ, c, out=values[rows])
        return values

    def _blocks(self, check: Check) -> Iterator[tuple[slice, Tensor]]:
        """Rows and their block of K_XZ, from memory if there is room for it."""
        start = 0
        for i, features_X in enumerate(self.system.product.features):
            check()
            rows = slice(start, start + len(features_X))
            if self._kept is None:
                block = self._block(features_X, rows)
            else:
                if i == len(self._kept):
                    self._kept.append(self._block(features_X, rows))
                block = self._kept[i]
            yield rows, block
            start = rows.stop

    def _block(self, features_X: Tensor, rows: slice) -> Tensor:
        scales = self.system.scales
        return scaled_rows(self._cross.values(features_X), None if scales is None else scales[rows])


class SolvedSparseSolver(SparseSolver):
    """The same for an exact GP by conjugate gradients, which has a solution for y."""

    def __init__(self, posterior: IterativePosterior, system: ExactSystem, memory: int) -> None:
        super().__init__(posterior.sparse, system, memory)
        self._weights = posterior.weights if system.scales is None else posterior.weights / system.scales

    def weights(self) -> Tensor:
        return self._weights


def _unchecked() -> None:
    """For what must be done in any case."""
