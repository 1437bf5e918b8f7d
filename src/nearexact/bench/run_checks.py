"""Whether what was read from run.json or from a plan can be what this package writes: the types of its entries."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from nearexact.bench.json_values import is_number, is_scalar, is_whole


def check_run(content: Any) -> None:
    """ValueError if this cannot be what run.json holds. Entries that are not known are left alone."""
    if not isinstance(content, dict) or not isinstance(content.get("spec"), dict):
        raise ValueError("there is no spec in it")
    check_spec(content["spec"])
    _check_entries(content, _RUN_ENTRIES)
    for name in ("hardware", "versions"):
        if not all(is_scalar(value) for value in (content.get(name) or {}).values()):
            raise ValueError(f"{name} must hold texts and numbers")
    data = content.get("data") or {}
    if data and not all(is_whole(data.get(name)) and data[name] >= 0 for name in ("n_train", "inputs")):
        raise ValueError("data must hold the whole numbers n_train and inputs")


def check_spec(spec: Any) -> None:
    """ValueError if this cannot be a RunSpec in JSON."""
    if not isinstance(spec, dict) or not all(spec.get(name) is not None for name in ("dataset", "method", "seed")):
        raise ValueError("a spec must have dataset, method and seed")
    _check_entries(spec, _SPEC_ENTRIES)


def _check_entries(content: dict[str, Any], entries: Mapping[str, tuple[str, Callable[[Any], bool]]]) -> None:
    for name, (expected, is_right) in entries.items():
        if content.get(name) is not None and not is_right(content[name]):
            raise ValueError(f"{name} must be {expected}, got {str(content[name])[:40]!r}")


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_object(value: Any) -> bool:
    return isinstance(value, dict)


def _is_number(value: Any) -> bool:
    return isinstance(value, float) or is_number(value)  # also nan and infinity, but no whole number beyond floats


def _is_seed(value: Any) -> bool:
    return is_whole(value) and value >= 0


_TEXT, _NUMBER, _WHOLE = ("a text", _is_text), ("a number", _is_number), ("a whole number", is_whole)
_OBJECT = ("an object", _is_object)
_RUN_ENTRIES = {
    **dict.fromkeys(("status", "reason", "traceback", "git_commit"), _TEXT),
    **dict.fromkeys(("started", "finished", "training_seconds", "evaluation_seconds", "peak_memory_mb"), _NUMBER),
    **dict.fromkeys(("points", "threads"), _WHOLE),
    **dict.fromkeys(("data", "hardware", "versions", "settings"), _OBJECT),
}
_SPEC_ENTRIES = {
    **dict.fromkeys(("dataset", "method", "device"), _TEXT),
    **dict.fromkeys(("budget_seconds", "hard_limit_seconds"), _NUMBER),
    **dict.fromkeys(("memory_limit", "threads"), _WHOLE),
    "options": _OBJECT,
    "seed": ("a whole number of at least 0", _is_seed),
}
