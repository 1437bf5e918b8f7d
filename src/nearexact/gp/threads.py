"""Keeping two thread pools from fighting over the same cores."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from pathlib import Path
from typing import Any

import scipy.linalg  # noqa: F401  so that the libraries below are loaded when they are looked for
from threadpoolctl import LibController, ThreadpoolController


def numpy_on_one_thread() -> AbstractContextManager[Any]:
    """NumPy and SciPy compute on one thread inside this context; torch keeps all of its own.

    Their wheels bring an OpenBLAS whose idle threads keep spinning, and so do torch's: where calls to both alternate,
    as in every step of L-BFGS, each waits for the other. On two cores that made small problems eight times slower.
    """
    controller = _openblas()
    if all(library.num_threads == 1 for library in controller.lib_controllers):  # nothing to set, nothing to set back
        return nullcontext()
    limited: AbstractContextManager[Any] = controller.limit(limits=1)
    return limited


@contextmanager
def scipy_on_threads(threads: int) -> Iterator[None]:
    """SciPy computes on so many threads inside this context, for what is large enough."""
    before = [(library, library.num_threads) for library in _openblas_of_scipy()]
    changed = [(library, number) for library, number in before if number != threads]
    for library, _ in changed:
        library.set_num_threads(threads)
    try:
        yield
    finally:
        for library, number in changed:
            library.set_num_threads(number)


@cache
def _openblas() -> ThreadpoolController:
    """Looked for once: it takes milliseconds, as long as several evaluations on few rows."""
    return ThreadpoolController().select(internal_api="openblas")


@cache
def _openblas_of_scipy() -> list[LibController]:
    """SciPy's own, where its wheel brings one; else all, of which it uses one. None where it uses another library."""
    libraries = _openblas().lib_controllers
    own = [library for library in libraries if {"scipy.libs", "scipy"} & {*Path(library.filepath).parts}]
    return own or libraries
