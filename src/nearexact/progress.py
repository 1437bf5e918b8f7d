"""What `progress=True` shows while an estimator fits, one line for each M, and while its bounds are tightened."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any, cast

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table

if TYPE_CHECKING:  # they need torch, which counting rows does not
    from nearexact.gp.quadratic import Iteration
    from nearexact.gp.rounds import Round
    from nearexact.gp.stages import Progress, Stage

REFRESHES_PER_SECOND = 4


@dataclass(frozen=True)
class ShownTime:
    """The time limit as the user wrote it, if there is one, and seconds of it that were spent before."""

    limit: str | None
    before: float = 0.0

    @property
    def of_limit(self) -> str:
        return "" if self.limit is None else f" of {self.limit}"

    def since_start(self, seconds: float) -> str:
        """With what was spent before."""
        return f"{self.before + seconds:.1f}"


class Outlet:
    """A stream for what is only shown: if nobody reads it any longer, as after `| head -1`, it goes nowhere.

    Work of hours must not end because its display has.
    """

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write what can be written."""
        with self._unbroken():
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        """Flush what can be flushed."""
        with self._unbroken():
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    @contextmanager
    def _unbroken(self) -> Iterator[None]:
        try:
            yield
        except OSError:
            with suppress(OSError, ValueError):  # not every stream is a file; one would fail again when Python ends
                os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())


class Display:
    """Collects what the display shows; without a live view nothing is drawn."""

    def __init__(self, live: Live | None, time: ShownTime) -> None:
        self._live, self._time = live, time
        self._stages: list[tuple[Stage, str]] = []
        self._search = ""  # the last line about it
        self._update(None)

    def step(self, progress: Progress) -> None:
        """After a step of the optimiser."""
        self._update(progress)

    def stage(self, stage: Stage, verdict: str = "") -> None:
        """After an M is done."""
        self._stages.append((stage, verdict))
        self._update(None)

    def round(self, subset: Round) -> None:
        """After a subset of the search for hyperparameters."""
        self._search = (
            f"search on {subset.rows} rows: {subset.agreeing} of {len(subset.likelihoods)} starts agree on"
            f" {subset.likelihoods[0] / subset.rows:.4f} nats per row"
        )
        self._update(None)

    def _update(self, progress: Progress | None) -> None:
        if self._live is None:
            return
        table = Table(box=None, padding=(0, 2, 0, 0))
        for heading in (
            "M",
            "ELBO",
            "upper bound",
            "gap per point",
            "verdict",
            "rescues",
            f"seconds{self._time.of_limit}",
        ):
            table.add_column(heading, justify="right")
        for stage, verdict in self._stages:
            table.add_row(
                str(stage.m),
                f"{stage.objective:.1f}",
                f"{stage.upper_bound:.1f}",
                f"{stage.gap_per_point:.4f}",
                verdict,
                str(stage.rescues) if stage.rescues else "",
                self._time.since_start(stage.elapsed),
            )
        if progress is not None:
            seconds = self._time.since_start(progress.seconds)
            table.add_row(str(progress.m), f"{progress.objective:.1f}", "…", "", "", "", seconds, style="dim")
        self._live.update(Group(self._search, table) if self._search else table)


@contextmanager
def progress_display(enabled: bool, time: ShownTime, console: Console | None = None) -> Iterator[Display]:
    """A display that is drawn on the terminal or in the notebook if enabled."""
    if not enabled:
        yield Display(None, time)
        return
    with _live(console) as live:
        yield Display(live, time)


class TighteningDisplay:
    """One line with the bounds while they are tightened; without a live view it shows nothing."""

    def __init__(self, live: Live | None, time: ShownTime) -> None:
        self._live, self._time = live, time
        self._line = ""

    def iteration(self, iteration: Iteration) -> None:
        """After an iteration of conjugate gradients."""
        bounds = iteration.bounds
        self._line = (
            f"{bounds.lower:.1f} to {bounds.upper:.1f}, gap per point {(bounds.upper - bounds.lower) / bounds.n:.4f}"
        )
        self._update(f"iteration {iteration.number}, {iteration.seconds:.1f} seconds{self._time.of_limit}")

    def share(self, share: float) -> None:
        """While the log determinant is bounded: how much of it is done."""
        self._update(f"log determinant {share:.0%}")

    def _update(self, what: str) -> None:
        if self._live is not None:
            self._live.update(f"{self._line}; {what}" if self._line else what)


@contextmanager
def tightening_display(enabled: bool, time: ShownTime, console: Console | None = None) -> Iterator[TighteningDisplay]:
    """A display that is drawn on the terminal or in the notebook if enabled."""
    if not enabled:
        yield TighteningDisplay(None, time)
        return
    with _live(console) as live:
        yield TighteningDisplay(live, time)


@contextmanager
def row_counter(enabled: bool) -> Iterator[Callable[[int], None]]:
    """A function to call with the number of rows that are done; if enabled, it shows them on standard error."""
    if not enabled:
        yield lambda rows: None
        return
    with Live(console=_console(sys.stderr), refresh_per_second=REFRESHES_PER_SECOND, transient=True) as live:
        yield lambda rows: live.update(f"{rows} rows predicted")


@contextmanager
def _live(console: Console | None) -> Iterator[Live]:
    """A live view, which ends with a newline in logs too: rich leaves it out where there is no terminal."""
    live = Live(console=console or _console(sys.stdout), refresh_per_second=REFRESHES_PER_SECOND)
    try:
        with live:
            yield live
    finally:
        if not live.console.is_terminal and not live.console.is_jupyter:
            live.console.line()


def _console(stream: IO[str]) -> Console:
    return Console(file=cast(IO[str], Outlet(stream)))
