"""K_XX as GPyTorch's linear algebra wants it: products, derivatives, a preconditioner, and a record of each solve.

The matrix is stored where it fits, else computed anew for every product.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import linear_operator
import torch
from linear_operator.operators import AddedDiagLinearOperator, ConstantDiagLinearOperator, LinearOperator
from torch import Tensor

from nearexact.gp import greedy_variance
from nearexact.gp.flops import kernel_flops, kernel_gradient_flops, selection_flops
from nearexact.gp.kernel_product import KernelProduct
from nearexact.gp.linalg import solve_rows
from nearexact.gp.memory import chunk_rows, row_chunks
from nearexact.gp.safety import NumericalError, Repairs, jittered_cholesky
from nearexact.kernels import SquaredExponential
from nearexact.kernels.base import Kernel, Tensors

MOST_COLUMNS = 512  # right-hand sides that are solved for together
VECTORS_PER_COLUMN = 8  # that CG holds for each of them
BLOCK_ROWS = 1536  # of K where it is computed anew: enough for products with many vectors to run at full speed
MOST_LANDMARKS, ROWS_PER_LANDMARK = 2000, 16  # so that a product with K costs eight times the preconditioner
Preconditioner = Callable[[Tensor], Tensor]


@dataclass
class Products:
    """Products with K_XX at changing hyperparameters: from the matrix where it fits into memory, else computed anew."""

    X: Tensor
    kernel: Kernel
    memory: int
    most_landmarks: int = MOST_LANDMARKS
    K: Tensor | None = None  # [N, N]
    anew: KernelProduct | None = None  # where K is not stored
    flops: float = 0.0
    count: int = 0
    last_solve: Solve | None = None

    def __post_init__(self) -> None:
        self.centre = self.X.mean(0)
        self.features = self.kernel.features(self.X, self.centre)
        n, self.n_features = self.features.shape
        vector = 8 * n
        self.columns = max(1, min(MOST_COLUMNS, self.memory // (2 * VECTORS_PER_COLUMN * vector)))
        self.landmarks = min(n // ROWS_PER_LANDMARK, self.most_landmarks, self.memory // (4 * vector))
        besides = VECTORS_PER_COLUMN * self.columns + 2 * self.landmarks
        self.stored = vector * (n + besides) <= self.memory
        self.keops = importlib.util.find_spec("pykeops") is not None

    def prepare(self, kernel: Kernel) -> None:
        """Change the hyperparameters."""
        self.kernel, self.anew = kernel, None
        if self.stored:
            n = len(self.X)
            self.flops += kernel_flops(n, n, self.n_features)
            if self.K is None:
                self.K = self.X.new_empty(n, n)
            cross = kernel.against(self.features)
            for rows in row_chunks(n, chunk_rows(n)):
                cross.values(self.features[rows], out=self.K[rows])
            self.K.diagonal().copy_(kernel.diagonal(self.features))

    @contextmanager
    def off_the_record(self) -> Iterator[None]:
        """Work that is no training: it is not counted."""
        flops = self.flops
        yield
        self.flops = flops

    def times(self, rhs: Tensor) -> Tensor:
        """K_XX rhs."""
        n, columns = rhs.shape
        self.count += 1
        self.flops += 2.0 * n * n * columns
        if self.K is not None:
            return self.K @ rhs
        self.flops += kernel_flops(n, n, self.n_features)
        if self.keops and type(self.kernel) is SquaredExponential:
            return _keops_product(self.X, self.kernel, rhs)
        if self.anew is None:
            self.anew = KernelProduct(self.kernel, 0.0, self.X, BLOCK_ROWS)
        return self.anew(rhs)

    def preconditioner(self, noise_variance: float) -> Preconditioner | None:
        """r ↦ (Q + sI)⁻¹r, where Q is what greedily selected rows say of K at the present hyperparameters.

        Greedy selection by blocks affords more rows than the pivots that GPyTorch finds one by one. None where there is
        no room for more, or where it cannot be computed: then it is up to GPyTorch.
        """
        if self.landmarks <= linear_operator.settings.max_preconditioner_size.value():
            return None
        Z = self.features[greedy_variance(self.kernel, self.X, self.landmarks, seed=0)]
        try:
            L, _ = jittered_cholesky(self.kernel.gram(Z), Repairs(), what="K_ZZ")
            V = solve_rows(L, self.kernel.cross(self.features, Z))  # K_XZ L⁻ᵀ  [N, M]
            B = (V.T @ V).div_(noise_variance)
            B.diagonal().add_(1.0)
            L_B, _ = jittered_cholesky(B, Repairs(), what="I + VVᵀ/s", first_jitter=0.0)
        except NumericalError:
            return None
        V = solve_rows(L_B, V)
        return lambda r: torch.addmm(r, V, V.T @ r, alpha=-1.0 / noise_variance).div_(noise_variance)

    def derivative(self, left: Tensor, right: Tensor) -> Tensors:
        """Derivatives of Σ (left rightᵀ) ∘ K_XX by the kernel's parameters."""
        cross = self.kernel.against(self.features)
        for rows in row_chunks(len(self.X), chunk_rows(len(self.X))):
            cross.add_adjoint(self.features[rows], left[rows] @ right.T)
        n = len(self.X)
        self.flops += 2.0 * n**2 * left.shape[1] + kernel_gradient_flops(n, n, self.n_features)
        return cross.gradients()

    def count_preconditioner(self, columns: int, iterations: int) -> None:
        """Count what GPyTorch's preconditioner takes: pivots, a QR factorisation, and its use in each iteration."""
        n, rank = len(self.X), int(linear_operator.settings.max_preconditioner_size.value())
        if n >= linear_operator.settings.min_preconditioning_size.value():
            self.flops += selection_flops(n, rank, self.n_features) + 2.0 * n * rank**2
            self.flops += (iterations + 1) * columns * 4.0 * n * rank


def _keops_product(X: Tensor, kernel: Kernel, rhs: Tensor) -> Tensor:
    """K_XX rhs of the squared exponential kernel, by KeOps: no block of the matrix is ever in memory."""
    from pykeops.torch import LazyTensor

    inputs = X / torch.tensor(kernel.parameters["lengthscales"], device=X.device)
    distances = ((LazyTensor(inputs[:, None, :]) - LazyTensor(inputs[None, :, :])) ** 2).sum(-1)
    product: Tensor = (-0.5 * distances).exp() @ rhs.contiguous()
    return product * float(kernel.parameters["variance"])


class KernelMatrix(LinearOperator):  # type: ignore[misc]
    """K_XX as GPyTorch wants it: its differentiable arguments are the kernel's parameters, in their order."""

    def __init__(self, *parameters: Tensor, products: Products) -> None:
        super().__init__(*parameters, products=products)
        self.parameter_values, self.products = parameters, products

    def _size(self) -> torch.Size:
        return torch.Size([len(self.products.X)] * 2)

    def _transpose_nonbatch(self) -> KernelMatrix:
        return self

    def _matmul(self, rhs: Tensor) -> Tensor:
        return self.products.times(rhs[:, None])[:, 0] if rhs.ndim == 1 else self.products.times(rhs)

    def _diagonal(self) -> Tensor:
        return self.products.kernel.diagonal(self.products.features)

    def _get_indices(self, row_index: Tensor, col_index: Tensor, *_: Any) -> Tensor:
        entries: Tensor = Entries.apply(self.products, row_index, col_index, *self.parameter_values)  # type: ignore[no-untyped-call]
        return entries

    def _bilinear_derivative(self, left_vecs: Tensor, right_vecs: Tensor) -> tuple[Tensor, ...]:
        return in_order(self.products.kernel, self.products.derivative(left_vecs, right_vecs))


class Entries(torch.autograd.Function):
    """Single entries of K_XX, which the preconditioner of GPyTorch is made of: some rows against some columns."""

    @staticmethod
    def forward(ctx: Any, products: Products, row_index: Tensor, col_index: Tensor, *_: Tensor) -> Tensor:
        rows, row_of = torch.unique(row_index, return_inverse=True)
        columns, column_of = torch.unique(col_index, return_inverse=True)
        ctx.kernel, ctx.sides = products.kernel, (products.features[rows], products.features[columns])
        ctx.places = row_of, column_of
        K = products.kernel.cross(*ctx.sides)
        same = rows[:, None] == columns
        K[same] = products.kernel.diagonal(ctx.sides[0])[same.any(1)]  # free of rounding noise
        return K[row_of, column_of]

    @staticmethod
    def backward(ctx: Any, *bars: Tensor) -> tuple[Tensor | None, ...]:
        rows, columns = ctx.sides
        K_bar = rows.new_zeros(len(rows), len(columns)).index_put_(ctx.places, bars[0], accumulate=True)
        return None, None, None, *in_order(ctx.kernel, ctx.kernel.cross_vjp(rows, columns, K_bar))


def in_order(kernel: Kernel, gradients: Tensors) -> tuple[Tensor, ...]:
    """Derivatives by the kernel's parameters in the order of these."""
    return tuple(gradients[name] for name in kernel.parameters)


class Covariance(AddedDiagLinearOperator):  # type: ignore[misc]
    """K_XX + sI that tells how its solves went."""

    def _solve(
        self, rhs: Tensor, preconditioner: Callable[[Tensor], Tensor] | None = None, num_tridiag: int | None = 0
    ) -> Any:
        products: Products = self._linear_op.products
        before = products.count
        result = super()._solve(rhs, preconditioner, num_tridiag=num_tridiag)
        if num_tridiag:  # while training
            iterations = products.count - before - 1  # without the product for the first residual
            products.count_preconditioner(rhs.shape[-1], iterations)
            products.last_solve = Solve(
                products, products.kernel, float(self._diag_tensor._diag[0]), rhs, result[0], iterations
            )
        return result


@dataclass(frozen=True, eq=False)
class Solve:
    """The last solve of training, for the record."""

    products: Products
    kernel: Kernel
    noise_variance: float
    rhs: Tensor  # the probe vectors, then y  [N, probes + 1]
    solution: Tensor  # [N, probes + 1]
    iterations: int

    def record(self) -> dict[str, Any]:
        """For the trace; the residuals take a product and are computed if the point is recorded."""
        return {
            "cg_iterations": self.iterations,
            "cg_residual": lambda: float(self.residuals[-1]),
            "cg_residual_mean": lambda: float(self.residuals.mean()),
        }

    @cached_property
    def residuals(self) -> Tensor:
        """Norms of what is left of each right-hand side, relative to its own."""
        with self.products.off_the_record(), torch.no_grad():
            if self.products.kernel is not self.kernel:
                self.products.prepare(self.kernel)
            differences = self.rhs - self.products.times(self.solution) - self.noise_variance * self.solution
        norms: Tensor = differences.norm(dim=0) / self.rhs.norm(dim=0)
        return norms


def covariance(
    products: Products,
    kernel: Kernel,
    leaves: list[Tensor],
    *,
    preconditioner: Preconditioner | None = None,
    new: bool = True,
) -> Covariance:
    """K_XX + sI at these hyperparameters: the kernel's, then the noise variance. By default GPyTorch preconditions."""
    if new:
        products.prepare(kernel)
    *parameters, noise = leaves
    noise_matrix = ConstantDiagLinearOperator(noise, diag_shape=len(products.X))
    override = None if preconditioner is None else (lambda _: (preconditioner, None, None))
    return Covariance(KernelMatrix(*parameters, products=products), noise_matrix, preconditioner_override=override)
