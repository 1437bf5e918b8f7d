"""Whether what was read from run.json or from a plan can be what this package writes: the types of its entries."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nearexact.bench.json_values import is_number, is_scalar, is_whole


def checked_run(content: Any) -> tuple[dict[str, Any], list[str]]:
    """What run.json holds without the entries that cannot be right, and a sentence for each of those.

    A run without a spec or a status that can be right is none: ValueError. Entries that are not known are left alone.
    """
    if not isinstance(content, dict):
        raise ValueError("it must hold an object")
    check_spec(content.get("spec"))
    problems = {name: _problem(content, name, *rule) for name, rule in _RUN_ENTRIES.items()}
    if problems["status"]:
        raise ValueError(problems["status"])
    return (
        {name: value for name, value in content.items() if not problems.get(name)},
        [problem for problem in problems.values() if problem],
    )


def check_spec(spec: Any) -> None:
    """ValueError if this cannot be a RunSpec in JSON."""
    if not isinstance(spec, dict) or not all(spec.get(name) is not None for name in ("dataset", "method", "seed")):
        raise ValueError("a spec must have dataset, method and seed")
    for name, rule in _SPEC_ENTRIES.items():
        if problem := _problem(spec, name, *rule):
            raise ValueError(problem)


def _problem(content: dict[str, Any], name: str, expected: str, is_right: Callable[[Any], bool]) -> str | None:
    if content.get(name) is None or is_right(content[name]):
        return None
    return f"{name} must be {expected}, got {str(content[name])[:40]!r}"


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_truth_value(value: Any) -> bool:
    return isinstance(value, bool)


def _is_object(value: Any) -> bool:
    return isinstance(value, dict)


def _is_flat_object(value: Any) -> bool:
    return isinstance(value, dict) and all(is_scalar(part) for part in value.values())


def _is_size(value: Any) -> bool:
    if not isinstance(value, dict):
        return False
    return all(is_whole(value.get(name)) and value[name] >= 1 for name in ("n_train", "inputs"))


def _is_number(value: Any) -> bool:
    return isinstance(value, float) or is_number(value)  # also nan and infinity, but no whole number beyond floats


def _is_seed(value: Any) -> bool:
    return is_whole(value) and value >= 0


_TEXT, _NUMBER, _WHOLE = ("a text", _is_text), ("a number", _is_number), ("a whole number", is_whole)
_OBJECT = ("an object", _is_object)
_RUN_ENTRIES = {
    **dict.fromkeys(("status", "reason", "traceback", "git_commit"), _TEXT),
    **dict.fromkeys(("started", "finished", "training_seconds", "evaluation_seconds", "peak_memory_mb"), _NUMBER),
    **dict.fromkeys(("points", "threads", "jobs"), _WHOLE),
    **dict.fromkeys(("hardware", "versions", "distributions"), ("an object of texts and numbers", _is_flat_object)),
    **dict.fromkeys(("settings", "code"), _OBJECT),
    "git_dirty": ("true or false", _is_truth_value),
    "data": ("an object with the whole numbers n_train and inputs", _is_size),
}
_SPEC_ENTRIES = {
    **dict.fromkeys(("dataset", "method", "device", "reference", "base_method"), _TEXT),
    **dict.fromkeys(("budget_seconds", "hard_limit_seconds"), _NUMBER),
    **dict.fromkeys(("memory_limit", "threads", "evaluate_every"), _WHOLE),
    "options": _OBJECT,
    "seed": ("a whole number of at least 0", _is_seed),
}
