"""What methods are called and what they look like: the same name, colour and line in every table and figure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import PurePath

from nearexact.bench.analysis.families import ordered


@dataclass(frozen=True)
class Style:
    """How a method is shown."""

    label: str
    colour: str
    dark_colour: str  # on a dark page
    dash: str  # as Plotly calls it
    marker: str  # as matplotlib calls it


# Colours: Okabe and Ito's, which colour-blind readers can tell apart, and a violet between their pink and blue.
_OWN = {
    "nearexact": Style("nearexact", "#7B3FA0", "#C99BEA", "solid", "*"),
    "itergp": Style("IterGP", "#D55E00", "#FF8A3D", "solid", "s"),
    "sgpr": Style("SGPR", "#0072B2", "#4DB2F0", "solid", "o"),
    "sgpr-paper": Style("SGPR (paper)", "#3F97C9", "#9BD3F7", "dash", "o"),
    "sgpr-tight": Style("SGPR (tight)", "#B07A00", "#F0B93B", "dash", "D"),
    "gpr": Style("GPR", "#1A1A1A", "#E8E8E8", "solid", "^"),
    "gpr-iterative": Style("GPR (CG)", "#5A3E9E", "#B9A3F5", "solid", "d"),
    "svgp": Style("SVGP", "#008A64", "#2FCFA0", "solid", "v"),
    "fitc": Style("FITC", "#B3508A", "#E89AC7", "solid", "P"),
    "linear": Style("Linear", "#6E6E6E", "#A8A8A8", "dot", "x"),
    "mean": Style("Mean", "#9A9A9A", "#7F7F7F", "dashdot", "+"),
}
# Colour, dark colour, dash and marker of plug-ins, in the order of their names: Tol's muted colours.
_PLUGINS = (
    ("#882255", "#D9779F", "dash", "X"),
    ("#332288", "#9C8FE8", "longdash", "p"),
    ("#117733", "#6CC98A", "longdashdot", "h"),
    ("#7A7A1F", "#CFCF5C", "dash", "d"),
    ("#AA4499", "#DD8FD0", "dot", "<"),
)


def styles(methods: Iterable[str]) -> dict[str, Style]:
    """The styles of these methods, in the order of the tables' rows; no two have the same label."""
    names = ordered(methods)
    plugins = [name for name in names if name not in _OWN]
    short = {name: _short(name) for name in plugins}
    labels = [*short.values(), *(style.label for style in _OWN.values())]
    by_name = {name: _OWN[name] for name in names if name in _OWN}
    for position, name in enumerate(plugins):
        label = short[name] if labels.count(short[name]) == 1 else name
        by_name[name] = Style(label, *_PLUGINS[position % len(_PLUGINS)])
    return by_name


def _short(name: str) -> str:
    """`file.py:Class` as `Class`."""
    path, separator, attribute = name.rpartition(":")
    return attribute if separator and PurePath(path).suffix == ".py" and attribute else name
