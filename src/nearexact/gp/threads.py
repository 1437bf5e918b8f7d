"""Keeping two thread pools from fighting over the same cores."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from threadpoolctl import ThreadpoolController


def numpy_on_one_thread() -> AbstractContextManager[Any]:
    """NumPy and SciPy compute on one thread inside this context; torch keeps all of its own.

    Their wheels bring an OpenBLAS whose idle threads keep spinning, and so do torch's: where calls to both alternate,
    as in every step of L-BFGS, each waits for the other. On two cores that made small problems eight times slower.
    """
    limited: AbstractContextManager[Any] = ThreadpoolController().select(prefix="libscipy_openblas").limit(limits=1)
    return limited
