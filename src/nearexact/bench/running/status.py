"""What became of a sweep: what ran, what failed and why, what is left and how long that may take."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from nearexact.bench import store
from nearexact.bench.running.sweep import planned
from nearexact.bench.store import RunFolder


def summarise(results: Path) -> list[RenderableType]:
    """Parts to print."""
    if not results.is_dir():
        raise ValueError(f"there is no folder {str(results)!r} with results")
    specs = {spec.folder(results): spec for spec in planned(results)}
    folders = {run.path: run for run in store.runs(results)} | {path: RunFolder(path) for path in specs}
    states = {path: run.status() for path, run in sorted(folders.items())}
    if not states:
        return [Text(f"{results} holds no runs")]
    counts = Table("method", *sorted(set(states.values())), box=None)
    methods = sorted({path.parent.name for path in states})
    for method in methods:
        mine = Counter(status for path, status in states.items() if path.parent.name == method)
        counts.add_row(method, *(str(mine.get(status, 0) or "") for status in sorted(set(states.values()))))
    parts: list[RenderableType] = [counts]
    failures = Table("failed", "status", "reason", box=None)
    for path, status in states.items():
        if status in store.FAILED:
            reason = Text(str(folders[path].read().get("reason", "")))  # as text: it may look like markup
            failures.add_row(Text(str(path.relative_to(results))), status, reason)
    if failures.row_count:
        parts.append(failures)
    left = [path for path, status in states.items() if status not in store.ENDED]
    if left:
        seconds = sum(_expected(path, folders, states, specs[path].budget_seconds) for path in left if path in specs)
        parts.append(Text(f"{len(left)} of {len(states)} runs left, about {seconds / 60.0:.0f} min"))
    else:
        parts.append(Text(f"all {len(states)} runs are done"))
    return parts


def _expected(path: Path, folders: dict[Path, RunFolder], states: dict[Path, str], budget: float) -> float:
    """Wall-clock seconds of a run: as long as those with the same method and data set took, else its budget."""
    took = []
    for other, status in states.items():
        if status in store.ENDED and other.parent == path.parent:
            content = folders[other].read()
            if "finished" in content and "started" in content:
                took.append(content["finished"] - content["started"])
    return sum(took) / len(took) if took else budget
