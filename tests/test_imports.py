"""What is imported when: the package's names on first use, and torch only where something is computed with it."""

from __future__ import annotations

import ast
import logging
import subprocess
import sys
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

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
    "nearexact.bench.methods.mean",
    "nearexact.bench.running.runner",  # a run of a method that does not use it
    "nearexact.bench.running.sweep",
    *(
        f"nearexact.bench.analysis.{name}"
        for name in (
            "areas", "checkpoints", "curves", "estimates", "families", "hyperparameters", "judging", "losses", "pareto",
            "points", "published", "results", "targets", "verdicts",
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


def imported_names(path: Path) -> Iterator[tuple[str, str]]:
    """What a module imports when it is imported itself, so not within functions, nor for types alone."""
    nodes: list[ast.AST] = list(ast.parse(path.read_text(encoding="utf-8")).body)
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((str(node.module), alias.name) for alias in node.names)
        elif not isinstance(node, ast.FunctionDef) and not ast.unparse(node).startswith("if TYPE_CHECKING"):
            nodes += ast.iter_child_nodes(node)


def test_no_modules_import_each_other() -> None:
    root = Path(nearexact.__file__).parent
    paths = {
        ".".join(path.relative_to(root.parent).with_suffix("").parts).removesuffix(".__init__"): path
        for path in root.rglob("*.py")
    }
    graph: dict[str, set[str]] = {}
    for name, path in paths.items():
        pairs = imported_names(path)
        modules = {f"{module}.{part}" if f"{module}.{part}" in paths else module for module, part in pairs}
        graph[name] = modules & paths.keys()
    assert set(TopologicalSorter(graph).static_order()) == paths.keys()  # CycleError names a cycle


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
