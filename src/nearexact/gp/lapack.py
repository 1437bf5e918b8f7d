"""Cholesky factors and inverses of symmetric matrices, by SciPy's LAPACK where they are on the CPU.

SciPy's wheels bring OpenBLAS. torch's bring MKL, which on AMD's processors takes about twice as long for both; and what
torch adds, copies and changes of layout, takes longer than the work itself where rows are few.
"""

from __future__ import annotations

import torch
from scipy.linalg.lapack import dpotrf, dpotri
from torch import Tensor

from nearexact.gp.threads import scipy_on_threads

# Of a matrix, from which on several threads compute. They wait for each other hundreds of times, and OpenBLAS gives up
# its core each time: with fewer rows that takes up to a hundred times as long where other programs compute, too.
THREADED_ROWS = 1400


def cholesky(K: Tensor, out: Tensor | None = None) -> tuple[Tensor, bool]:
    """The lower factor L of K = LLᵀ, float64, and whether there is one; of K only the lower triangle is read.

    It is written into `out` if that is given. Entries that are not finite may go unnoticed: they reach its diagonal.
    """
    if K.device.type != "cpu":
        L, failures = torch.linalg.cholesky_ex(K)
        return L, int(failures) == 0
    L = K.clone(memory_format=torch.contiguous_format) if out is None else out.copy_(K)
    with scipy_on_threads(_threads(L)):
        # Rows are LAPACK's columns: what is below the diagonal here is above it there.
        _, failures = dpotrf(L.numpy().T, lower=0, clean=0, overwrite_a=1)
    return L.tril_(), failures == 0


def inverse(L: Tensor) -> Tensor:
    """(LLᵀ)⁻¹ from a factor that `cholesky` has made, which is overwritten; only its lower triangle is right."""
    if L.device.type != "cpu":
        return torch.cholesky_inverse(L)
    with scipy_on_threads(_threads(L)):
        dpotri(L.numpy().T, lower=0, overwrite_c=1)
    return L


def _threads(L: Tensor) -> int:
    return torch.get_num_threads() if len(L) >= THREADED_ROWS else 1
