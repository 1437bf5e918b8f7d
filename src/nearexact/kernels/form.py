"""What the mathematics of a kernel has to offer: a `Form`, and the `Cross` that it makes for fixed rows.

Also here: the features that all forms share, [x², x, 1] of each row x of inputs, and small operations on results.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

Tensors = dict[str, Tensor]  # by parameter name


class Cross(Protocol):
    """k(·, z) for M fixed rows z: values for chunks of rows x, and the gradient of a sum over all chunks."""

    def values(self, A: Tensor, out: Tensor | None = None) -> Tensor:
        """K [N, M] for rows x with features A [N, F], written into `out` if given."""

    def add_adjoint(
        self, A: Tensor, K_bar: Tensor, scratch: Tensor | None = None, *, holds_values: bool = False
    ) -> None:
        """Add Σ_nm K_bar[n, m] k(x_n, z_m) to what is differentiated. May overwrite K_bar and `scratch`, [N, M].

        `holds_values` says that `scratch` is what `values` returned for A, which may save computing it again.
        """

    def gradients(self) -> Tensors:
        """Derivatives of what has been added so far, by parameter name."""


class Form(Protocol):
    """The mathematics of a kernel: functions of parameters `p` (by name) and features. No state."""

    @property
    def temporaries(self) -> int:
        """How many [N, M] arrays its values and gradients make besides their arguments, at most at once."""

    def against(self, p: Tensors, B: Tensor) -> Cross:
        """k(·, z) for the rows z with features B [M, F]."""

    def diagonal(self, p: Tensors, A: Tensor) -> Tensor:
        """The values k(x_n, x_n), [N]."""

    def diagonal_vjp(self, p: Tensors, A: Tensor, weights: Tensor) -> Tensors:
        """Σ_n weights[n] ∂k(x_n, x_n)/∂p for each parameter."""


def add_to(total: Tensors, term: Tensors) -> None:
    """Add gradients by name."""
    for name, value in term.items():
        total[name] = total[name] + value if name in total else value


def with_diagonal(K: Tensor, diagonal: Tensor) -> Tensor:
    """K with this diagonal, in place."""
    K.diagonal().copy_(diagonal)
    return K


def quadratic_features(X: Tensor) -> Tensor:
    """[x², x, 1], [N, 2D + 1]: products with these give squared distances and inner products with any weights."""
    d = X.shape[1]
    features = X.new_empty(len(X), 2 * d + 1)
    torch.mul(X, X, out=features[:, :d])
    features[:, d:-1] = X
    features[:, -1] = 1.0
    return features


def squares(A: Tensor) -> Tensor:
    """The columns x² of quadratic features: [N, D]."""
    return A[:, : A.shape[1] // 2]


def inputs(A: Tensor) -> Tensor:
    """The columns x of quadratic features: [N, D]."""
    return A[:, A.shape[1] // 2 : -1]


def distances(X: Tensor, Z: Tensor) -> Tensor:
    """|x − z| from differences, [N, M]. Its derivative at distance zero, where there is none, is 0 and not NaN."""
    return torch.cdist(X, Z, compute_mode="donot_use_mm_for_euclid_dist")
