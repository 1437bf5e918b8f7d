"""What methods are called and what they look like: the same name, place, colour and line in every table and figure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import PurePath

# In the order of the tables' rows. Colours: Okabe and Ito's, which colour-blind readers can tell apart.
_KNOWN = {  # name: label, colour on white, colour on black, dash, marker
    "itergp": ("IterGP", "#D55E00", "#FF8A3D", "solid", "s"),
    "sgpr": ("SGPR", "#0072B2", "#4DB2F0", "solid", "o"),
    "sgpr-paper": ("SGPR (paper)", "#3F97C9", "#9BD3F7", "dash", "o"),
    "sgpr-tight": ("SGPR (tight)", "#B07A00", "#F0B93B", "dash", "D"),
    "gpr": ("GPR", "#1A1A1A", "#E8E8E8", "solid", "^"),
    "svgp": ("SVGP", "#008A64", "#2FCFA0", "solid", "v"),
    "fitc": ("FITC", "#B3508A", "#E89AC7", "solid", "P"),
    "linear": ("Linear", "#6E6E6E", "#A8A8A8", "dot", "x"),
    "mean": ("Mean", "#9A9A9A", "#7F7F7F", "dashdot", "+"),
}
# Of methods from outside, in the order of their names: Tol's muted colours.
_OTHERS = (
    ("#882255", "#D9779F", "dash", "X"),
    ("#332288", "#9C8FE8", "longdash", "p"),
    ("#117733", "#6CC98A", "longdashdot", "h"),
    ("#7A7A1F", "#CFCF5C", "dash", "*"),
    ("#AA4499", "#DD8FD0", "dot", "<"),
)

SPARSE = "sgpr"  # names that begin like this are SGPR with growing M
REFERENCE = "sgpr"  # whose M make the checkpoints
BASELINES = ("linear", "mean")  # no approximations of a GP: their likelihoods are those of other models
ESTIMATES = ("itergp", "fitc")  # what they call `elbo` may be above the exact log marginal likelihood


def is_lower_bound(method: str, *, has_upper: bool) -> bool:
    """Whether a method's `elbo` is no higher than the exact log marginal likelihood at its hyperparameters.

    `has_upper` says whether it reports an upper bound too, by which a method from outside shows that it knows bounds.
    """
    if method.startswith(SPARSE) or method in ("gpr", "svgp"):
        return True
    return has_upper and method not in (*ESTIMATES, *BASELINES)


@dataclass(frozen=True)
class Style:
    """How a method is shown."""

    label: str
    colour: str
    dark_colour: str  # on a dark page
    dash: str  # as Plotly calls it
    marker: str  # as matplotlib calls it


def ordered(methods: Iterable[str]) -> list[str]:
    """Methods in the order of the tables' rows: those known, then those from outside by name."""
    place = {name: position for position, name in enumerate(_KNOWN)}
    return sorted(set(methods), key=lambda name: (place.get(name, len(place)), name))


def styles(methods: Iterable[str]) -> dict[str, Style]:
    """The looks of these methods, in order; no two have the same label."""
    names = ordered(methods)
    outside = [name for name in names if name not in _KNOWN]
    short = {name: _short(name) for name in outside}
    taken = [*short.values(), *(label for label, *_ in _KNOWN.values())]
    found = {}
    for name in names:
        if name in _KNOWN:
            found[name] = Style(*_KNOWN[name])
        else:
            label = short[name] if taken.count(short[name]) == 1 else name
            found[name] = Style(label, *_OTHERS[outside.index(name) % len(_OTHERS)])
    return found


def _short(name: str) -> str:
    """`file.py:Class` as `Class`."""
    path, separator, attribute = name.rpartition(":")
    return attribute if separator and PurePath(path).suffix == ".py" and attribute else name
