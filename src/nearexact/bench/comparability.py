"""Whether runs can be compared with each other: what a reader of their timings and results has to know."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping
from typing import Any

from nearexact.bench.store import RunFolder


def remarks(recorded: Iterable[RunFolder]) -> list[str]:
    """A sentence for each thing in which runs differ though their comparison rests on it, as far as it was recorded."""
    contents = [content for run in recorded if (content := run.read())]
    found = [
        _differ("timings come from different hardware", contents, _hardware),
        _differ("timings come from runs with different numbers of threads", contents, _threads),
        _differ("runs had different budgets", contents, _budget),
    ]
    crowded = sum((content.get("jobs") or 1) > 1 for content in contents)
    if crowded:
        found.append(
            f"timings of {crowded} of {len(contents)} runs were taken while other runs were under way on the machine"
            " (--jobs, or several workers of a cluster)"
        )
    by_method: dict[str, list[Mapping[str, Any]]] = {}
    for content in contents:
        by_method.setdefault(content["spec"]["method"], []).append(content)
    found += [
        _differ(f"runs of {name} were made with different code", group, _code) for name, group in by_method.items()
    ]
    return [remark for remark in found if remark]


def _differ(what: str, contents: Iterable[Mapping[str, Any]], value_of: Any) -> str:
    counts: Counter[Hashable] = Counter(value for content in contents if (value := value_of(content)) is not None)
    if len(counts) < 2:
        return ""
    parts = (f"{value} ({count} run{'s' if count > 1 else ''})" for value, count in counts.most_common())
    return f"{what}: {', '.join(parts)}"


def _hardware(content: Mapping[str, Any]) -> str | None:
    hardware = content.get("hardware") or {}
    if not hardware.get("processor"):
        return None
    parts = [hardware["processor"], hardware.get("cores") and f"{hardware['cores']} cores", hardware.get("gpu")]
    return ", ".join(str(part) for part in parts if part)


def _threads(content: Mapping[str, Any]) -> int | None:
    threads: int | None = content.get("threads")
    return threads


def _budget(content: Mapping[str, Any]) -> str | None:
    budget = content["spec"].get("budget_seconds")
    return None if budget is None else f"{budget:g} s"


def _code(content: Mapping[str, Any]) -> str | None:
    digest = (content.get("code") or {}).get("sha256")
    return str(digest)[:8] if digest else None
