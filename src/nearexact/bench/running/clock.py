"""A clock that counts training time only: it stands still while predictions are evaluated."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class TrainingClock:
    """Seconds since it was made, without those between `pause` and `resume`.

    On a GPU, work that has been handed over is not done yet: `synchronise` waits for it, so that it counts.
    """

    def __init__(
        self, now: Callable[[], float] = time.perf_counter, synchronise: Callable[[], None] = lambda: None
    ) -> None:
        self.now, self._synchronise = now, synchronise
        self._started = now()
        self._paused = 0.0
        self._stopped_at: float | None = None

    @property
    def is_paused(self) -> bool:
        """Whether the clock stands still."""
        return self._stopped_at is not None

    def elapsed(self) -> float:
        """Training seconds so far."""
        return (self.now() if self._stopped_at is None else self._stopped_at) - self._started - self._paused

    def pause(self) -> None:
        """Stop, unless it has been stopped before."""
        if self._stopped_at is None:
            self._synchronise()
            self._stopped_at = self.now()

    def resume(self) -> None:
        """Go on, if it was stopped."""
        if self._stopped_at is not None:
            self._synchronise()
            self._paused += self.now() - self._stopped_at
            self._stopped_at = None

    @contextmanager
    def paused(self) -> Iterator[float]:
        """Time that does not count; gives the training seconds at which it started."""
        if self.is_paused:  # inside another pause, which goes on
            yield self.elapsed()
            return
        self.pause()
        try:
            yield self.elapsed()
        finally:
            self.resume()
