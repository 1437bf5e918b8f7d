"""A live view of a sweep: per run the current M, bound, error and the time that is left."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from nearexact.bench import store
from nearexact.bench.running.sweep import Event

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
        if event.status == store.RUNNING:
            self._running[key] = event
        else:
            self._running.pop(key, None)
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
    failed = event.status in store.FAILED
    return Text(f"{text}: {event.reason}" if failed else text, style="red" if failed else "")


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
            live.console.line()  # which the last view lacks there
