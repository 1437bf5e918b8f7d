"""Approximate Gaussian process regression that says how near to the exact Gaussian process it is."""

from __future__ import annotations

import logging
from importlib import import_module
from typing import TYPE_CHECKING, Any

from nearexact.busy_machines import wait_patiently

if TYPE_CHECKING:
    from nearexact import gp, kernels
    from nearexact.certificate import Certificate
    from nearexact.certifying_predictions import CertifiedPredictions
    from nearexact.estimators import GPRegressor, SGPRegressor
    from nearexact.persistence import load

__all__ = ["Certificate", "CertifiedPredictions", "GPRegressor", "SGPRegressor", "gp", "kernels", "load"]

logging.getLogger(__name__).addHandler(logging.NullHandler())  # silent unless the user wants to see it

wait_patiently()  # before anything imports torch

# Imported when they are first used: torch takes seconds to import, and a report of a benchmark does not need it.
_HOMES = {
    "Certificate": "nearexact.certificate",
    "CertifiedPredictions": "nearexact.certifying_predictions",
    "GPRegressor": "nearexact.estimators",
    "SGPRegressor": "nearexact.estimators",
    "load": "nearexact.persistence",
}
_MODULES = ("certificate", "estimators", "gp", "kernels", "persistence")


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"{__name__}.{name}")
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
