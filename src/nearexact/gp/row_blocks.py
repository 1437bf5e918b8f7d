"""A sparse inverse factor of K̂ from rows in blocks, each given the rows before it that tell most (Vecchia 1988).

The density of N values is the product of the densities of blocks given all rows before them. Of these some hundreds say
nearly everything where a function is rough; so each block is taken given its own few, and the product is the density
of N(0, P) with P near to K̂. It takes N·|S|² operations, and so does its gradient.
"""

# The derivation. Block b with given rows S, r = (S, b), L = chol(K̂_r), and W the last columns of L⁻ᵀ, those of b:
#
#   P⁻¹      = Σ WWᵀ at rows r,  since  K̂_r⁻¹ − K̂_S⁻¹ = WWᵀ              zᵀP⁻¹z = Σ |Wᵀz_r|²
#   log|P|   = Σ log|K̂_b given S| = 2 Σ log diag L_bb  ≥  log|K̂|         (chain_rule.py)
#   z_b      = L_bb (ε_b − W_Sᵀ z_S)                                      a draw from N(0, P), block after block
#   log N(z | 0, P) = Σ log N(z_r | 0, K̂_r) − log N(z_S | 0, K̂_S)
#
# With g = WWᵀz_r and h = K̂_S⁻¹z_S, zero at b: K̂_r⁻¹z_r = g + h, and the adjoint of K̂_r is, summed over T columns of z,
#   ½ ((g + h)(g + h)ᵀ − hhᵀ − T·WWᵀ)  =  ½ (g(g + h)ᵀ + hgᵀ − T·WWᵀ)

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from nearexact.gp.block_columns import Check, by_columns, most_cores
from nearexact.gp.chain_rule import Ordered, block_rows, log_det_error, needed_memory
from nearexact.gp.flops import cholesky_flops, kernel_flops, kernel_gradient_flops
from nearexact.gp.lapack import cholesky
from nearexact.gp.linalg import as_columns, cholesky_log_det
from nearexact.gp.row_noise import RowNoise, noise_variances
from nearexact.gp.safety import NumericalError
from nearexact.kernels.base import Kernel, Tensors, add_to
from nearexact.kernels.form import with_diagonal

T = TypeVar("T")


class BlockFactor(NamedTuple):
    """What one block adds to P⁻¹ and log|P|."""

    rows: Tensor  # those given, then the block's own
    W: Tensor  # [rows, block]
    L: Tensor  # chol of the block given the others [block, block]
    error: float  # of its log determinant, by rounding


@dataclass
class _Density:
    """log N(z | 0, P) with its derivatives, of some blocks."""

    value: float
    gradients: Tensors
    by_noise: float

    def add(self, other: _Density) -> None:
        self.value += other.value
        self.by_noise += other.by_noise
        add_to(self.gradients, other.gradients)


@dataclass(frozen=True, eq=False)
class RowBlocks:
    """Blocks of rows, and the rows that are given for each: chosen at one θ, used at others near it."""

    features: Tensor  # [N, F]
    row_noise: RowNoise | None
    blocks: Sequence[Tensor]
    known: Sequence[Tensor]
    at_most: int  # so many blocks are in memory at once
    memory: int  # bytes of all factors, and of that

    @staticmethod
    def chosen(
        kernel: Kernel,
        noise_variance: float,
        X: Tensor,
        given: int,
        *,
        row_noise: RowNoise | None = None,
        seed: int = 0,
        check: Check = lambda: None,
    ) -> RowBlocks:
        """For this θ, with at most so many rows given for each block."""
        ordered = Ordered.of(kernel, noise_variance, X, row_noise, block_rows(given), seed)
        blocks, at_most = ordered.blocks, most_cores(len(ordered.blocks))

        def known_of(number: int) -> Tensor:
            return ordered.known(number, given)

        known = _of_each(len(blocks), known_of, check, X.device, at_most)
        return RowBlocks(ordered.features, row_noise, blocks, known, at_most, blocks_memory(kernel, len(X), given))

    def factors(self, kernel: Kernel, noise_variance: float, check: Check = lambda: None) -> list[BlockFactor]:
        """Of each block."""
        noise = self._noise(noise_variance)

        def factor(number: int) -> BlockFactor:
            rows, s = self._rows(number), len(self.known[number])
            L = self._factor(kernel, noise, number)
            error = log_det_error(kernel.diagonal(self.features[rows]), noise[rows])
            return BlockFactor(rows, _last_of_inverse(L, s), L[s:, s:].clone(), error)

        return _of_each(len(self.blocks), factor, check, self.features.device, self.at_most)

    def _factor(self, kernel: Kernel, noise: Tensor, number: int) -> Tensor:
        """The Cholesky factor of a block with the rows that are given."""
        rows = self._rows(number)
        features = self.features[rows]
        return _cholesky(with_diagonal(kernel.cross(features, features), kernel.diagonal(features) + noise[rows]))

    def parts(
        self, kernel: Kernel, noise_variance: float, z: Tensor, check: Check = lambda: None
    ) -> tuple[float, float]:
        """log|P|, and the sum of zᵀP⁻¹z over columns of z: what a density is made of."""
        noise, columns = self._noise(noise_variance), as_columns(z)

        def of_block(number: int) -> tuple[float, float]:
            L, s = self._factor(kernel, noise, number), len(self.known[number])
            whitened = torch.linalg.solve_triangular(L, columns[self._rows(number)], upper=False)[s:]
            return float(cholesky_log_det(L[s:, s:])), float(whitened.square().sum())

        found = _of_each(len(self.blocks), of_block, check, self.features.device, self.at_most)
        return sum(log_det for log_det, _ in found), sum(quadratic for _, quadratic in found)

    def density(
        self,
        kernel: Kernel,
        noise_variance: float,
        z: Tensor,
        check: Check = lambda: None,
        *,
        weights: Tensor | None = None,
    ) -> tuple[float, Tensors, float]:
        """log N(z | 0, P), summed over columns of z, with derivatives by the kernel's parameters and by the noise.

        With `weights` [T] of the columns it is −½(N log 2π + log|P| + Σ weight·zᵀP⁻¹z).
        """
        noise, columns = self._noise(noise_variance), as_columns(z)
        determinants = columns.shape[1] if weights is None else 1
        shares = torch.ones_like(columns[0]) if weights is None else weights

        def work(numbers: Sequence[int], check: Check) -> _Density:
            total = _Density(0.0, {}, 0.0)
            for number in numbers:
                check()
                total.add(self._density(kernel, noise, columns, shares, determinants, number))
            return total

        count, device = len(self.blocks), self.features.device
        total, *others = by_columns(count, work, check, device=device, at_most=self.at_most)
        for other in others:
            total.add(other)
        return total.value, total.gradients, total.by_noise

    def _density(
        self, kernel: Kernel, noise: Tensor, z: Tensor, weights: Tensor, determinants: int, number: int
    ) -> _Density:
        rows, s, block = self._rows(number), len(self.known[number]), len(self.blocks[number])
        features = self.features[rows]
        cross, diagonal = kernel.against(features), kernel.diagonal(features)
        K = with_diagonal(cross.values(features), diagonal + noise[rows])
        L = _cholesky(K.clone())
        W, z_r = _last_of_inverse(L, s), z[rows]
        whitened = W.T @ z_r  # [block, T]
        log_det = 2.0 * float(L[s:, s:].diagonal().log().sum()) + block * math.log(2.0 * math.pi)
        value = -0.5 * (determinants * log_det + float(whitened.square().sum(0) @ weights))
        g, h = W @ whitened, torch.zeros_like(z_r)
        h[:s] = torch.cholesky_solve(z_r[:s], L[:s, :s])
        K_bar = torch.mm(W, W.T, out=L).mul_(-0.5 * determinants)
        weighted = g * weights
        K_bar.addmm_(weighted, (g + h).T, alpha=0.5).addmm_(h, weighted.T, alpha=0.5)
        by_row = K_bar.diagonal()
        by_noise = float((by_row if self.row_noise is None else by_row * self.row_noise.factors[rows]).sum())
        cross.add_adjoint(features, K_bar, with_diagonal(K, diagonal), holds_values=True)
        return _Density(value, cross.gradients(), by_noise)

    def factor_flops(self, features: int) -> float:
        """Of all factors."""
        return sum(cholesky_flops(r) + 1.0 * b * r**2 + kernel_flops(r, r, features) for r, b in self._sizes)

    def density_flops(self, features: int) -> float:
        """Of a density with its derivatives."""
        more = sum(3.0 * b * r**2 + kernel_gradient_flops(r, r, features) for r, b in self._sizes)
        return self.factor_flops(features) + more

    def solving_flops(self, columns: int) -> float:
        """Of P⁻¹ times so many columns."""
        return sum(4.0 * r * b * columns for r, b in self._sizes)

    @property
    def _sizes(self) -> list[tuple[int, int]]:
        """Of each block its rows with those given, and its own."""
        return [(len(known) + len(block), len(block)) for known, block in zip(self.known, self.blocks, strict=True)]

    def _rows(self, number: int) -> Tensor:
        return torch.cat([self.known[number], self.blocks[number]])

    def _noise(self, noise_variance: float) -> Tensor:
        noise = torch.as_tensor(noise_variances(self.row_noise, noise_variance), dtype=self.features.dtype)
        return noise.to(self.features.device).expand(len(self.features))


def density_memory(kernel: Kernel, n: int, given: int) -> int:
    """Bytes of as many blocks as there are cores."""
    return most_cores(-(-n // block_rows(given))) * needed_memory(kernel, given)


def blocks_memory(kernel: Kernel, n: int, given: int) -> int:
    """Bytes of all factors, and of what a density needs."""
    return 8 * n * (given + 2 * block_rows(given)) + density_memory(kernel, n, given)


def _of_each(count: int, function: Callable[[int], T], check: Check, device: torch.device, at_most: int) -> list[T]:
    """What a function returns for each number."""
    found: dict[int, T] = {}

    def work(numbers: Sequence[int], check: Check) -> None:
        for number in numbers:
            check()
            found[number] = function(number)

    by_columns(count, work, check, device=device, at_most=at_most)
    return [found[number] for number in range(count)]


def _last_of_inverse(L: Tensor, s: int) -> Tensor:
    """The columns of L⁻ᵀ from s on: [rows, block]."""
    W = L.new_empty(len(L), len(L) - s)
    one = torch.eye(len(L) - s, dtype=L.dtype, device=L.device)
    W[s:] = torch.linalg.solve_triangular(L[s:, s:].T, one, upper=True)
    W[:s] = torch.linalg.solve_triangular(L[:s, :s].T, L[s:, :s].T @ W[s:], upper=True).neg_()
    return W


def _cholesky(K: Tensor) -> Tensor:
    """The factor, in the memory of K."""
    L, is_factor = cholesky(K, out=K)
    if not is_factor:
        raise NumericalError("a block of K has no Cholesky factor")
    return L
