"""Methods by name: those built in, those that installed packages offer, and `file.py:Class`.

A package offers a method by an entry point in the group `nearexact.methods`.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from nearexact.bench.protocol import Method

GROUP = "nearexact.methods"


def _in(module: str, attribute: str, **options: Any) -> Callable[..., Method]:
    """A method of this package. Its module, and what that imports, is only imported when the method is made."""

    def make(**more: Any) -> Method:
        method: Method = getattr(import_module(f"{__name__}.{module}"), attribute)(**options, **more)
        return method

    return make


BUILT_IN: Mapping[str, Callable[..., Method]] = {
    "sgpr": _in("sgpr", "SGPR"),
    "sgpr-paper": _in("sgpr", "SGPR", procedure="paper"),
    "sgpr-tight": _in("sgpr", "SGPR", bound="tight"),
    "gpr": _in("gpr", "GPR"),
    "gpr-iterative": _in("gpr_iterative", "IterativeGPR"),
    "nearexact": _in("auto", "NearExact"),
    "itergp": _in("itergp", "IterGP"),
    "itergp-paper": _in("itergp_paper", "PaperIterGP"),
    "svgp": _in("svgp", "SVGP"),
    "fitc": _in("fitc", "FITC"),
    "linear": _in("linear", "Linear"),
    "mean": _in("mean", "Mean"),
}


def names() -> list[str]:
    """All methods that can be run without naming a file."""
    return [*BUILT_IN, *(point.name for point in entry_points(group=GROUP) if point.name not in BUILT_IN)]


def create(name: str, options: Mapping[str, Any] | None = None) -> Method:
    """The method of that name, made with the options."""
    factory = _find(name)
    try:
        method = factory(**(options or {}))
    except Exception as error:  # whatever a plug-in's constructor does
        raise ValueError(f"the method {name!r} does not take the options {dict(options or {})}: {error}") from error
    if not callable(getattr(method, "run", None)):
        raise ValueError(f"a method must have run(task, report), but {name!r} has none")
    return method


def _find(name: str) -> Callable[..., Method]:
    if name in BUILT_IN:
        return BUILT_IN[name]
    for point in entry_points(group=GROUP):
        if point.name == name:
            try:
                factory: Callable[..., Method] = point.load()
            except Exception as error:  # whatever is wrong in that package
                raise ValueError(f"the method {name!r} ({point.value}) cannot be imported: {error}") from error
            return factory
    path, separator, attribute = name.rpartition(":")
    if separator and path.endswith(".py"):
        return _from_file(Path(path), attribute)
    raise ValueError(f"there is no method {name!r}; there are {', '.join(names())}, or file.py:Class")


def _from_file(path: Path, attribute: str) -> Callable[..., Method]:
    if not path.is_file():
        raise ValueError(f"there is no file {str(path)!r} to take a method from")
    spec = importlib.util.spec_from_file_location(f"nearexact_plugin_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    if str(path.parent.resolve()) not in sys.path:
        sys.path.append(str(path.parent.resolve()))  # for what lies next to the file
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # whatever is wrong in the file
        del sys.modules[spec.name]
        raise ValueError(f"{path} cannot be imported: {type(error).__name__}: {error}") from error
    if not hasattr(module, attribute):
        raise ValueError(f"{path} has no class {attribute!r}")
    factory: Callable[..., Method] = getattr(module, attribute)
    return factory
