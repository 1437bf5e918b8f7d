"""Keeping two thread pools from fighting over the same cores."""

from __future__ import annotations

from contextlib import AbstractContextManager
from functools import cache
from typing import Any

import scipy.linalg  # noqa: F401  so that the libraries below are loaded when they are looked for
from threadpoolctl import ThreadpoolController


def numpy_on_one_thread() -> AbstractContextManager[Any]:
    """NumPy and SciPy compute on one thread inside this context; torch keeps all of its own.

    Their wheels bring an OpenBLAS whose idle threads keep spinning, and so do torch's: where calls to both alternate,
    as in every step of L-BFGS, each waits for the other. On two cores that made small problems eight times slower.
    """
    limited: AbstractContextManager[Any] = _openblas().limit(limits=1)
    return limited


@cache
def _openblas() -> ThreadpoolController:
    """Looked for once: it takes milliseconds, as long as several evaluations on few rows."""
    return ThreadpoolController().select(prefix="libscipy_openblas")
