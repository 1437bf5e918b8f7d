"""What is imported when: the package's names on first use, and torch only where something is computed with it."""

from __future__ import annotations

import logging
import subprocess
import sys

import pytest

import nearexact
from nearexact.certificate import Certificate
from nearexact.estimators import GPRegressor, SGPRegressor
from nearexact.persistence import load

WITHOUT_TORCH = (
    "nearexact",
    "nearexact.certificate",
    "nearexact.noise_only",
    "nearexact.pages",
    "nearexact.bench",
    "nearexact.bench.metrics",
    *(
        f"nearexact.bench.analysis.{name}"
        for name in (
            "areas", "checkpoints", "curves", "estimates", "families", "losses", "pareto", "points", "published",
            "results", "targets", "verdicts",
        )
    ),
    *(
        f"nearexact.bench.report.{name}"
        for name in (
            "axes", "chart_data", "figure_style", "figures", "method_styles", "page", "report_tables", "table_format"
        )
    ),
)  # fmt: skip


def run(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.strip()


def test_analysis_and_report_do_not_import_torch() -> None:
    """Module by module in one process: the first that imports torch is named."""
    lines = [
        "import importlib, sys",
        f"for name in {WITHOUT_TORCH!r}:",
        "    importlib.import_module(name)",
        "    if 'torch' in sys.modules: sys.exit(print(name))",
    ]
    assert run("\n".join(lines)) == ""


def test_public_names_are_there_on_first_use() -> None:
    assert run("from nearexact import *; print(GPRegressor.__name__, kernels.Linear.__name__)") == "GPRegressor Linear"
    assert run("import nearexact; print(nearexact.gp.sgpr_objective.__name__)") == "sgpr_objective"
    assert run("import nearexact; print('torch' in dir(nearexact), 'load' in dir(nearexact))") == "False True"
    assert nearexact.GPRegressor is GPRegressor
    assert nearexact.SGPRegressor is SGPRegressor
    assert nearexact.Certificate is Certificate
    assert nearexact.load is load
    assert set(nearexact.__all__) <= set(dir(nearexact))
    with pytest.raises(AttributeError, match="module 'nearexact' has no attribute 'regressor'"):
        nearexact.regressor  # noqa: B018
    with pytest.raises(ImportError, match="cannot import name 'regressor'"):
        from nearexact import regressor  # noqa: F401


def test_the_library_is_silent_unless_asked() -> None:
    assert any(isinstance(handler, logging.NullHandler) for handler in logging.getLogger("nearexact").handlers)
