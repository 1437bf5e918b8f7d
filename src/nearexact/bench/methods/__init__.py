"""Methods by name: those built in, those that installed packages offer, and `file.py:Class`.

A package offers a method by an entry point in the group `nearexact.methods`.
"""

from __future__ import annotations

import importlib.util
import inspect
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from nearexact.bench.protocol import Method

GROUP = "nearexact.methods"
NAME = re.compile(r"[\w.+-]+")


@dataclass(frozen=True)
class _BuiltIn:
    """A method of this package. Its module, and what that imports, is only imported when the method is made."""

    module: str
    attribute: str
    options: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self, **more: Any) -> Method:
        return self.factory(**self.options, **more)

    @property
    def factory(self) -> Callable[..., Method]:
        factory: Callable[..., Method] = getattr(import_module(f"{__name__}.{self.module}"), self.attribute)
        return factory


def _in(module: str, attribute: str, **options: Any) -> _BuiltIn:
    return _BuiltIn(module, attribute, options)


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


def name_of(reference: str, options: Mapping[str, Any] | None = None) -> str:
    """What a method is called: as it is referred to or, for `file.py:Class`, by its own name."""
    if plugin_file(reference) is None:
        return reference
    name = getattr(_find(reference), "name", None)
    if not isinstance(name, str):  # perhaps one that depends on the options
        name = getattr(create(reference, options), "name", None)
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise ValueError(f"a method's name is made of letters, digits and any of _.+-, {reference!r} has {name!r}")
    if name in names():
        raise ValueError(f"{reference!r} calls itself {name!r}, which is another method's name: give it its own")
    return name


def takes(reference: str, option: str) -> bool:
    """Whether a method has an option of this name."""
    factory = _find(reference)
    preset = factory.options if isinstance(factory, _BuiltIn) else {}
    parameters = inspect.signature(factory.factory if isinstance(factory, _BuiltIn) else factory).parameters
    return option in parameters and option not in preset


def plugin_file(reference: str) -> Path | None:
    """The file of `file.py:Class`; None for methods that are known by name."""
    path, separator, _ = reference.rpartition(":")
    return Path(path) if separator and path.endswith(".py") and reference not in names() else None


def package_of(reference: str) -> str | None:
    """The package outside of this one that offers a method of this name, if one does."""
    if reference in BUILT_IN:
        return None
    return next((point.module for point in entry_points(group=GROUP) if point.name == reference), None)


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
    path = plugin_file(name)
    if path is not None:
        return _from_file(path, name.rpartition(":")[2])
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
