"""Where results come from: the code of a method, the versions of everything installed, commits, the machine."""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import os
import platform
import subprocess
import threading
from collections.abc import Iterable, Iterator
from importlib import import_module
from importlib.metadata import PackageNotFoundError, distributions, version
from pathlib import Path
from typing import Any

import psutil

from nearexact.bench import methods
from nearexact.bench.store import RunSpec

PACKAGES = ("nearexact", "torch", "numpy", "scipy", "scikit-learn", "gpytorch", "pandas")  # what results depend on most
GIT_SECONDS = 10.0
# Runs are started from several threads, and before Python 3.11.8 parsing in two of them fails (python/cpython#106905).
PARSING = threading.Lock()


def surroundings(spec: RunSpec) -> dict[str, Any]:
    """Where a run takes place, as run.json records it."""
    git = own_commit()
    return {
        "versions": versions(),
        "distributions": dict(sorted((part.metadata["Name"], part.version) for part in distributions())),
        "hardware": {
            "machine": platform.machine(),
            "system": f"{platform.system()} {platform.release()}",
            "processor": _processor(),
            "cores": os.cpu_count(),
            "memory_mb": psutil.virtual_memory().total / 1e6,
            "gpu": import_module("torch").cuda.get_device_name(spec.device) if spec.device.startswith("cuda") else None,
        },
        "threads": spec.threads,
        "git_commit": git.get("commit"),
        "git_dirty": git.get("dirty"),
        "code": code_of(spec.reference or spec.method),
    }


def own_commit() -> dict[str, Any]:
    """The commit of the tree that this package is in, and whether that is dirty; empty if it is no checkout."""
    return _git_state([Path(__file__)])


def versions() -> dict[str, str | None]:
    """Of Python and of the packages that results depend on most."""
    return {"python": platform.python_version(), **{name: _version(name) for name in PACKAGES}}


def code_of(reference: str) -> dict[str, Any] | None:
    """The code of a method that is not part of this package: its fingerprint, its files, and the commit of its tree.

    The files are those of `file.py:Class` and of its neighbours that it imports, directly or not, or all of the package
    that offers the method. None for methods of this package, whose code its version and commit tell.
    """
    files = _code_files(reference)
    if not files:
        return None
    folder = files[0].parent
    digest = hashlib.sha256()
    for path in files:
        content = path.read_bytes()
        digest.update(f"{os.path.relpath(path, folder)}\0{len(content)}\0".encode() + content)
    git = {f"git_{name}": value for name, value in _git_state(files).items()}
    return {"sha256": digest.hexdigest(), "files": [os.path.relpath(path, folder) for path in files], **git}


def _code_files(reference: str) -> list[Path]:
    """The method's own file first."""
    path = methods.plugin_file(reference)
    if path is not None:
        return [path.resolve(), *sorted(_neighbours(path.resolve()))]
    module = methods.package_of(reference)
    spec = importlib.util.find_spec(module.partition(".")[0]) if module else None
    if spec is None or spec.origin is None:
        return []
    return sorted(_python_files(Path(spec.origin)))


def _python_files(path: Path) -> Iterable[Path]:
    """A module's file or, of a package, all of them."""
    if path.is_dir():
        return path.rglob("*.py")
    return path.parent.rglob("*.py") if path.name == "__init__.py" else [path]


def _neighbours(path: Path) -> set[Path]:
    """Files next to this one that it imports, and those that they import."""
    folder, found, waiting = path.parent, set[Path](), [path]
    while waiting:
        for name in _imported_names(waiting.pop()):
            for candidate in (folder / f"{name}.py", folder / name):  # a folder is a package, with __init__.py or not
                if candidate.exists():
                    new = set(_python_files(candidate)) - found - {path}
                    found |= new
                    waiting += new
    return found


def _imported_names(path: Path) -> Iterator[str]:
    """First parts of the names of the modules that a file imports, anywhere in it."""
    try:
        with PARSING:
            tree = ast.parse(path.read_bytes())
    except SyntaxError:  # a neighbour that is never imported on the way
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield node.module.partition(".")[0]


def _git_state(files: list[Path]) -> dict[str, Any]:
    """Commit of the tree that files live in, and whether it, or they, differ from what is committed; empty if none.

    Files that are not in the tree at all, as those of a virtual environment in a project's folder, have no commit.
    """
    try:
        git = ["git", "-C", str(files[0].parent)]
        commit = _output([*git, "rev-parse", "HEAD"])
        if not _output([*git, "ls-files", "--cached", "--others", "--exclude-standard", "--", str(files[0])]):
            return {}
        changed = _output([*git, "status", "--porcelain", "--untracked-files=no"])
        untracked = _output([*git, "ls-files", "--others", "--", *map(str, files)])
    except (OSError, subprocess.SubprocessError):
        return {}
    return {"commit": commit, "dirty": bool(changed or untracked)}


def _output(command: list[str]) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=GIT_SECONDS).stdout.strip()


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor()
