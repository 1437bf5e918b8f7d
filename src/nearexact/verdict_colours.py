"""How verdicts are coloured: on pages, in notebooks and in print."""

from __future__ import annotations

from typing import Literal, NamedTuple

Kind = Literal["good", "fair", "open", "plain", "bad"]  # of a tag: a class in the style of pages


class Colours(NamedTuple):
    """Text and background of a tag."""

    text: str
    back: str


class Palette(NamedTuple):
    """The colours of a kind of tag."""

    light: Colours  # on a light page
    dark: Colours  # on a dark page
    printed: Colours


PALETTES: dict[Kind, Palette] = {
    "good": Palette(Colours("#0b6b4b", "#dcf2e8"), Colours("#7fdcb5", "#12382b"), Colours("#ffffff", "#00775A")),
    "fair": Palette(Colours("#0a58a8", "#e0edfb"), Colours("#93c5ff", "#16304d"), Colours("#0b2233", "#9ED3F2")),
    "open": Palette(Colours("#8a5200", "#fbeed5"), Colours("#f5c26b", "#40300f"), Colours("#4d3800", "#F5E3BF")),
    "plain": Palette(Colours("#4c5561", "#eceff2"), Colours("#b9c2cd", "#2a313b"), Colours("#2b2b2b", "#D9D9D9")),
    "bad": Palette(Colours("#a32020", "#fbe3e1"), Colours("#ff9d96", "#4a1c1a"), Colours("#5c1d00", "#F3CDBF")),
}
VERDICT_KINDS: dict[str, Kind] = {
    "exact": "good",
    "certified": "good",
    "converged": "fair",
    "not reached": "open",
    "no better than noise": "plain",
}
