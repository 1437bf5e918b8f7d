"""What methods are called and what they look like: the same name, colour and line in every table and figure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import PurePath

from nearexact.bench.analysis import published
from nearexact.bench.analysis.families import NO_BASES, ordered
from nearexact.bench.analysis.results import Results
from nearexact.bench.method_labels import base_name


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
    "itergp-paper": Style("IterGP (paper)", "#A84A00", "#FFB27D", "dash", "s"),
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
# Colour, dark colour and marker of plug-ins, in the order of their names: Tol's muted colours.
_PLUGINS = (
    ("#882255", "#D9779F", "X"),
    ("#332288", "#9C8FE8", "p"),
    ("#117733", "#6CC98A", "h"),
    ("#7A7A1F", "#CFCF5C", "d"),
    ("#AA4499", "#DD8FD0", "<"),
)
_DASHES = ("dash", "longdash", "longdashdot", "dot", "dashdot")  # of plug-ins, and of variants
_MARKERS = ("s", "D", "v", "P", "X", "h")  # of variants
# By how much a variant's colour is mixed with white (above zero) or black, one variant after the other.
_SHADES = (0.35, -0.3, 0.55, -0.5, 0.2)


def styles(methods: Iterable[str], bases: Mapping[str, str] = NO_BASES) -> dict[str, Style]:
    """The styles of these methods, in the order of the tables' rows; no two have the same label.

    A variant of a method has a shade of its colour, and a line and a marker of its own. Colours of plug-ins depend on
    which of them there are: figures that belong together take their styles from one call.
    """
    families: dict[str, list[str]] = {}
    for name in ordered(methods, bases):
        families.setdefault(bases.get(name) or base_name(name), []).append(name)
    shown: dict[str, Style] = {}
    plugins = 0
    for base, names in families.items():
        style = _OWN.get(base)
        if style is None:
            colour, dark, marker = _PLUGINS[plugins % len(_PLUGINS)]
            dash = _DASHES[(plugins + plugins // len(_PLUGINS)) % len(_DASHES)]
            style, plugins = Style(_short(base), colour, dark, dash, marker), plugins + 1
        variants = [name for name in names if name != base]
        for name in names:
            shown[name] = style if name == base else _variant(style, base, name, variants.index(name))
    return _told_apart(shown)


def styles_of(results: Results) -> dict[str, Style]:
    """The styles of all methods of a results folder, and of those that the paper has results of."""
    return styles([*results.runs["method"], *published.METHODS.values()], results.bases)


def _variant(style: Style, base: str, name: str, number: int) -> Style:
    """The style of a variant of a method: the base's label with its options, or the name that it was given."""
    label = f"{style.label} ({name[len(base) + 1 : -1]})" if name.startswith(f"{base}{{") else name
    shade = _SHADES[number % len(_SHADES)]
    dash, marker = _DASHES[number % len(_DASHES)], _MARKERS[number % len(_MARKERS)]
    return Style(label, _mixed(style.colour, shade), _mixed(style.dark_colour, shade), dash, marker)


def _mixed(colour: str, shade: float) -> str:
    """A colour with a share of white in it, or of black where the share is negative."""
    parts = (int(colour[k : k + 2], 16) for k in (1, 3, 5))
    return "#" + "".join(f"{round(p + (255 - p) * shade if shade > 0.0 else p * (1.0 + shade)):02X}" for p in parts)


def _told_apart(shown: dict[str, Style]) -> dict[str, Style]:
    """Labels that are the same as another's, or as that of one of ours, are replaced by the whole name."""
    labels = [style.label for style in shown.values()]
    labels += [style.label for name, style in _OWN.items() if name not in shown]
    return {
        name: replace(style, label=name) if labels.count(style.label) > 1 and name not in _OWN else style
        for name, style in shown.items()
    }


def _short(name: str) -> str:
    """`file.py:Class` as `Class`."""
    path, separator, attribute = name.rpartition(":")
    return attribute if separator and PurePath(path).suffix == ".py" and attribute else name
