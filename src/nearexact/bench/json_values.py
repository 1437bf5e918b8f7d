"""JSON that others have written, read without surprises; and values of any kind and size as bounded JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

DEEPEST = 50  # levels of lists and objects within each other
LONGEST_TEXT, MOST_TEXT = 20_000, 200_000  # characters that `bounded` keeps of one text, and of all


def parse_json(text: str) -> Any:
    """A JSON value; ValueError if it is none, or nested so deeply that other code would fail on it."""
    try:
        value = json.loads(text)
    except RecursionError as error:
        raise ValueError("lists or objects are nested too deeply") from error
    if _is_deeper(value, DEEPEST):
        raise ValueError("lists or objects are nested too deeply")
    return value


def _is_deeper(value: Any, levels: int) -> bool:
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return levels == 0 or any(_is_deeper(part, levels - 1) for part in parts)


def is_number(value: Any) -> bool:
    """Whether a JSON value is a finite number that a float can hold."""
    try:
        return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:
        return False


def is_whole(value: Any) -> bool:
    """Whether a JSON value is a whole number that fits into 64 bits."""
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63


def is_scalar(value: Any) -> bool:
    """Whether a JSON value is a text, a number, true, false or null."""
    return value is None or isinstance(value, (str, bool, float)) or is_whole(value)


def as_json_value(value: Any) -> Any:
    """NumPy's numbers and arrays as JSON-serialisable values; anything else as text."""
    return value.tolist() if isinstance(value, (np.generic, np.ndarray)) else str(value)


def bounded(value: Any) -> Any:
    """A value as JSON-serialisable values of limited size, with a note wherever something was cut."""
    return _Bounded().cut(value, DEEPEST // 2)


class _Bounded:
    """Counts how many characters may still be kept."""

    def __init__(self) -> None:
        self._left = MOST_TEXT

    def cut(self, value: Any, levels: int) -> Any:
        self._left -= 10  # for what is around a value
        if value is None or isinstance(value, (bool, float)) or is_whole(value):
            return value
        if isinstance(value, np.ndarray) and value.size <= self._left:
            value = value.tolist()
        elif isinstance(value, np.generic):
            value = value.item()
        if isinstance(value, Mapping) and levels:
            return self._cut_mapping(value, levels - 1)
        if isinstance(value, (list, tuple)) and levels:
            return self._cut_list(value, levels - 1)
        return self._cut_text(_as_text(value))

    def _cut_mapping(self, value: Mapping[Any, Any], levels: int) -> dict[str, Any]:
        kept: dict[str, Any] = {}
        for key, part in value.items():
            if self._left <= 0:
                kept["…"] = f"cut: {len(value) - len(kept)} more entries"
                break
            kept[self._cut_text(_as_text(key))] = self.cut(part, levels)
        return kept

    def _cut_list(self, value: list[Any] | tuple[Any, ...], levels: int) -> list[Any]:
        kept: list[Any] = []
        for part in value:
            if self._left <= 0:
                kept.append(f"… cut: {len(value) - len(kept)} more entries")
                break
            kept.append(self.cut(part, levels))
        return kept

    def _cut_text(self, text: str) -> str:
        room = max(min(LONGEST_TEXT, self._left), 100)
        self._left -= min(len(text), room)
        if len(text) <= room:
            return text
        return f"{text[: room // 2]}… cut: {len(text) - room} characters …{text[-room // 2 :]}"


def _as_text(value: Any) -> str:
    try:
        return str(value)
    except Exception:  # whatever a method's object does
        return f"<{type(value).__name__}>"
