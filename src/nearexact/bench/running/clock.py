"""A clock that counts training time only: it stands still while predictions are evaluated."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class TrainingClock:
    """Seconds since it was made, without those spent in `paused()`.

    On a GPU, work that has been handed over is not done yet: `synchronise` waits for it, so that it counts.
    """

    def __init__(
        self, now: Callable[[], float] = time.perf_counter, synchronise: Callable[[], None] = lambda: None
    ) -> None:
        self._now, self._synchronise = now, synchronise
        self._started = now()
        self._paused = 0.0
        self._stopped_at: float | None = None

    def elapsed(self) -> float:
        """Training seconds so far."""
        return (self._now() if self._stopped_at is None else self._stopped_at) - self._started - self._paused

    @contextmanager
    def paused(self) -> Iterator[float]:
        """Time that does not count; gives the training seconds at which it began."""
        if self._stopped_at is not None:  # inside another pause
            yield self.elapsed()
            return
        self._synchronise()
        self._stopped_at = self._now()
        try:
            yield self.elapsed()
        finally:
            self._synchronise()
            self._paused += self._now() - self._stopped_at
            self._stopped_at = None
