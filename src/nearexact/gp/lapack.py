"""Cholesky factors and inverses of symmetric matrices, by SciPy's LAPACK where they are on the CPU.

SciPy's wheels bring OpenBLAS. torch's bring MKL, which on AMD's processors takes about twice as long for both; and what
torch adds, copies and changes of layout, takes longer than the work itself where rows are few.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from ctypes import CFUNCTYPE, POINTER, PYFUNCTYPE, byref, c_char_p, c_int, c_void_p, py_object, pythonapi

import torch
from scipy.linalg import cython_lapack
from torch import Tensor

from nearexact.gp.threads import scipy_on_threads

# Of a matrix, from which on several threads compute. They wait for each other hundreds of times, and OpenBLAS gives up
# its core each time: with fewer rows that takes up to a hundred times as long where other programs compute, too.
THREADED_ROWS = 1400


def cholesky(K: Tensor, out: Tensor | None = None) -> tuple[Tensor, bool]:
    """The lower factor L of K = LLᵀ and whether there is one; of K only the lower triangle is read.

    It is written into `out` if that is given, in the type of that: float64 or float32. Entries that are not finite may
    go unnoticed: they reach its diagonal.
    """
    if K.device.type != "cpu":
        L, failures = torch.linalg.cholesky_ex(K if out is None else K.to(out.dtype))
        return L, int(failures) == 0
    L = K.clone(memory_format=torch.contiguous_format) if out is None else out.copy_(K)
    failed = _in_place(_POTRF, L)
    return L.tril_(), failed == 0


def inverse(L: Tensor) -> Tensor:
    """(LLᵀ)⁻¹ from a factor that `cholesky` has made, which is overwritten; only its lower triangle is right."""
    if L.device.type != "cpu":
        return torch.cholesky_inverse(L)
    _in_place(_POTRI, L)
    return L


# uplo, n, a, lda, info
_Function = Callable[[bytes, object, int, object, object], None]


def _in_place(functions: Mapping[torch.dtype, _Function], A: Tensor) -> int:
    """Call a function of LAPACK on the lower triangle of a matrix; 0 if it has succeeded."""
    function = functions[A.dtype]
    if not len(A):
        return 0
    n, failed = c_int(len(A)), c_int(0)
    with scipy_on_threads(torch.get_num_threads() if len(A) >= THREADED_ROWS else 1):
        # Rows are LAPACK's columns: what is below the diagonal here is above it there.
        function(b"U", byref(n), A.data_ptr(), byref(n), byref(failed))
    return failed.value


def _function(name: str) -> _Function:
    """As SciPy gives it to compiled code: unlike its Python functions, it lets other threads compute meanwhile."""
    capsule = cython_lapack.__pyx_capi__[name]
    name_of = PYFUNCTYPE(c_char_p, py_object)(("PyCapsule_GetName", pythonapi))
    address_of = PYFUNCTYPE(c_void_p, py_object, c_char_p)(("PyCapsule_GetPointer", pythonapi))
    integer = POINTER(c_int)
    return CFUNCTYPE(None, c_char_p, integer, c_void_p, integer, integer)(address_of(capsule, name_of(capsule)))


_POTRF = {torch.float64: _function("dpotrf"), torch.float32: _function("spotrf")}
_POTRI = {torch.float64: _function("dpotri"), torch.float32: _function("spotri")}
