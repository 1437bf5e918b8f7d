"""What the terminal shows of a sweep: a live view while it runs, and `bench status` at any time."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from nearexact.bench import store
from nearexact.bench.running.watcher import Event
from nearexact.bench.store import RunFolder, RunStatus

REFRESHES_PER_SECOND = 4


class SweepDisplay:
    """Keeps what is known of each run; a run that has ended is printed as a line above the running ones."""

    def __init__(self, live: Live | None, total: int) -> None:
        self._live, self._total = live, total
        self._running: dict[tuple[str, str, int], Event] = {}
        self._ended: dict[str, int] = {}

    def show(self, event: Event) -> None:
        """Something has happened."""
        key = (event.spec.dataset, event.spec.method, event.spec.seed)
        if event.status == RunStatus.RUNNING:
            self._running[key] = event
        else:
            self._running.pop(key, None)
            if event.status != RunStatus.WAITING:  # for another worker, after its own was lost
                self._ended[event.status] = self._ended.get(event.status, 0) + 1
            if self._live is not None:
                self._live.console.print(_line(event), soft_wrap=True)
        if self._live is not None:
            self._live.update(self._view())

    def _view(self) -> Group:
        table = Table("data set", "method", "seed", "M", "ELBO", "RMSE", "left", box=None)
        for (dataset, method, seed), event in self._running.items():
            left = max(event.spec.budget_seconds - event.point.get("elapsed", 0.0), 0.0)
            forms = {"m": ".0f", "elbo": ".1f", "rmse": ".4f"}
            numbers = [_number(event.point.get(name), form) for name, form in forms.items()]
            table.add_row(dataset, method, str(seed), *numbers, f"{left:.0f} s")
        done = sum(self._ended.values())
        parts = ", ".join(f"{count} {status}" for status, count in self._ended.items())
        return Group(table, Text(f"{done} of {self._total} runs done{': ' + parts if parts else ''}"))


def _line(event: Event) -> Text:
    text = f"{event.spec.dataset} {event.spec.method} seed {event.spec.seed}: {event.status}"
    if event.point:
        text += f", RMSE {_number(event.point.get('rmse'), '.4f')} after {event.point['elapsed']:.1f} s"
    remarkable = event.status in (*store.FAILED_STATUSES, RunStatus.WAITING)
    return Text(f"{text}: {event.reason}" if remarkable else text, style="red" if remarkable else "")


def _number(value: Any, form: str) -> str:
    return format(value, form) if isinstance(value, (int, float)) else ""


@contextmanager
def sweep_display(total: int, *, enabled: bool = True, console: Console | None = None) -> Iterator[SweepDisplay]:
    """A display that is drawn if enabled."""
    if not enabled:
        yield SweepDisplay(None, total)
        return
    live = Live(console=console, refresh_per_second=REFRESHES_PER_SECOND)
    try:
        with live:
            yield SweepDisplay(live, total)
    finally:
        if not live.console.is_terminal:
            live.console.line()  # the last view does not end its line there


def summarise(results: Path) -> list[RenderableType]:
    """What became of the runs below a folder, for `bench status`: the parts to print."""
    recorded = store.recorded_runs(results)
    specs = {spec.folder(results): spec for spec in store.planned(results)}
    folders: dict[Path, RunFolder] = {path: RunFolder(path) for path in specs}
    folders |= {run.path: run for run in recorded if _is_readable(run)}
    states = {path: run.status() for path, run in sorted(folders.items())}
    if not states:
        return [Text(f"{results} holds no runs")]
    parts: list[RenderableType] = [_counts(folders, states)]
    failures = Table("failed", "status", "reason", box=None)
    for path, status in states.items():
        if status in store.FAILED_STATUSES:
            reason = Text(str(folders[path].read().get("reason", "")))  # as text: it may look like markup
            failures.add_row(Text(str(path.relative_to(results))), status, reason)
    if failures.row_count:
        parts.append(failures)
    unfinished = [path for path, status in states.items() if status not in store.ENDED_STATUSES]
    if unfinished:
        seconds = sum(
            _expected(path, folders, states, specs[path].budget_seconds) for path in unfinished if path in specs
        )
        parts.append(Text(f"{len(unfinished)} of {len(states)} runs left, about {seconds / 60.0:.0f} min"))
    else:
        parts.append(Text(f"all {len(states)} runs are done"))
    return parts


def _counts(folders: dict[Path, RunFolder], states: dict[Path, RunStatus]) -> Table:
    """Runs of each method by status, and their time on the clock and off it."""
    columns = sorted(set(states.values()))
    table = Table("method", *columns, "training", "evaluation", box=None)
    for method in sorted({path.parent.name for path in states}):
        paths = [path for path in states if path.parent.name == method]
        numbers = Counter(states[path] for path in paths)
        contents = [folders[path].read() for path in paths]
        sums = [sum(c.get(name) or 0.0 for c in contents) for name in ("training_seconds", "evaluation_seconds")]
        table.add_row(method, *(str(numbers[status] or "") for status in columns), *(f"{s:.1f} s" for s in sums))
    return table


def _is_readable(run: RunFolder) -> bool:
    """Whether there is a run; what is damaged in it gives a warning."""
    if problem := run.problem():
        warnings.warn(problem, stacklevel=3)
    return bool(run.read())


def _expected(path: Path, folders: dict[Path, RunFolder], states: dict[Path, RunStatus], budget: float) -> float:
    """Wall-clock seconds of a run: as long as those with the same method and data set took, else its budget."""
    durations = []
    for other, status in states.items():
        if status in store.ENDED_STATUSES and other.parent == path.parent:
            content = folders[other].read()
            if content.get("finished") and content.get("started"):
                durations.append(content["finished"] - content["started"])
    return sum(durations) / len(durations) if durations else budget
