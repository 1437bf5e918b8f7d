"""Labels: what a method is called in folders, tables and reports.

A label is a method's name, alone or with options in braces: `sgpr`, `sgpr{kernel=matern32,max_inducing=500}`. A named
variant of an experiment file is a label without braces. Options stand in the order of their names, so that one choice
of options has one label. Values are numbers, true, false and words; what would be read as something else is quoted.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from typing import Any

_WORD = re.compile(r'[^\s,{}="]+')
_QUOTED = r'"(?:[^"\\]|\\.)*"'
_OPTION = re.compile(rf'\s*([\w-]+)\s*=\s*({_QUOTED}|[^,{{}}="]*[^\s,{{}}="])\s*(?:,|$)')


def label(name: str, options: Mapping[str, Any]) -> str:
    """The label of a method with options; ValueError for a value that is no number, truth value or text."""
    if not options:
        return name
    return f"{name}{{{','.join(f'{key}={_text(key, options[key])}' for key in sorted(options))}}}"


def base_name(text: str) -> str:
    """A label without its options."""
    return text.partition("{")[0].strip()


def parse(text: str) -> tuple[str, dict[str, Any]]:
    """Name and options of a label; ValueError if it is none."""
    name, brace, rest = text.strip().partition("{")
    if not name.strip() or "}" in name:
        raise ValueError(f"a method is name or name{{option=value,…}}, got {text!r}")
    if not brace:
        return name.strip(), {}
    if not rest.endswith("}"):
        raise ValueError(f"the options of a method end with a brace, as in sgpr{{kernel=matern32}}, got {text!r}")
    options: dict[str, Any] = {}
    body, position = rest[:-1], 0
    while body[position:].strip():
        match = _OPTION.match(body, position)
        if match is None:
            raise ValueError(f"options are written name=value with commas between, got {body[position:]!r} in {text!r}")
        key = match[1]
        if key in options:
            raise ValueError(f"the option {key!r} is given twice in {text!r}")
        options[key] = _value(match[2])
        position = match.end()
    return name.strip(), options


def split(text: str) -> list[str]:
    """The labels in a list with commas between; commas within braces belong to a label."""
    # Outside of braces up to a comma, or a whole pair of braces; one that is never closed is left for `parse` to name.
    parts = re.findall(rf'(?:[^,{{]|\{{(?:{_QUOTED}|[^"}}])*(?:\}}|$)|\{{)+', text)
    return [part.strip() for part in parts]


def _text(key: str, value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, str):
        bare = _WORD.fullmatch(value) and _value(value) == value
        return value if bare else json.dumps(value, ensure_ascii=False)
    raise ValueError(f"the option {key!r} must be a number, true, false or a text to be in a label, got {value!r}")


def _value(text: str) -> Any:
    """A number or a truth value as TOML writes it, else a text."""
    if text.startswith('"'):
        try:
            return json.loads(text, strict=False)
        except ValueError as error:
            raise ValueError(f"{text} is not a quoted text: {error}") from error
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except ValueError:
        return text
    return value if isinstance(value, (bool, int, float)) else text
