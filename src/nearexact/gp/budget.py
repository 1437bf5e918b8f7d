"""What is left of time and memory, and what the next step may cost."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from nearexact.gp.inducing import selection_memory
from nearexact.gp.memory import sweep_memory
from nearexact.kernels.base import Kernel

HELD_SQUARES = 4  # [M, M] arrays of two models, the best and the last, that are kept while another one is computed
EVALUATION_SWEEPS = 3.0  # an evaluation with its gradient takes no more than so many sweeps without


class TimeIsUpError(Exception):
    """The time limit has passed, or what comes next would end after it."""


@dataclass
class Cost:
    """Seconds that something took last, and what it may take with more points: they grow with M² at most."""

    m: int = 1
    seconds: float = 0.0

    def measured(self, m: int, seconds: float) -> None:
        """It has just taken so long with m points."""
        self.m, self.seconds = m, seconds

    def predicted(self, m: int) -> float:
        """What it may take with m points; 0 if it was never measured."""
        return self.seconds * max(m / self.m, 1.0) ** 2

    @property
    def is_measured(self) -> bool:
        return self.seconds > 0.0


class Timer:
    """A time limit, in seconds of the clock since this was made."""

    def __init__(self, time_limit: float = math.inf, clock: Callable[[], float] = time.perf_counter) -> None:
        self.time_limit, self.clock = time_limit, clock
        self._started = clock()

    def seconds(self) -> float:
        """Since this was made."""
        return self.clock() - self._started

    def left(self) -> float:
        """Until the time limit."""
        return self.time_limit - self.seconds()

    def check(self) -> None:
        """Raise TimeIsUpError once the time limit has passed."""
        self.require(0.0)

    def require(self, seconds: float) -> None:
        """Raise TimeIsUpError if less than this is left."""
        if self.left() < seconds:
            raise TimeIsUpError


class Budget(Timer):
    """The limits of training a sparse GP, and the predicted costs of its steps by the number of points M."""

    def __init__(
        self, kernel: Kernel, n: int, n_features: int, memory: int, time_limit: float, clock: Callable[[], float]
    ) -> None:
        super().__init__(time_limit, clock)
        self.memory = memory  # bytes
        self._kernel, self._n, self._n_features = kernel, n, n_features
        self.evaluation, self.sweep, self.selection = Cost(), Cost(), Cost()

    @contextmanager
    def measuring(self, cost: Cost, m: int) -> Iterator[None]:
        """What is done inside tells what it costs."""
        started = self.clock()
        yield
        cost.measured(m, self.clock() - started)

    def memory_of(self, m: int) -> int:
        """Bytes that it takes to train with m points."""
        sizes = (needed(self._kernel, self._n, m, self._n_features) for needed in (sweep_memory, selection_memory))
        return max(sizes) + held_memory(m)

    def memory_of_sweep(self, m: int) -> int:
        """Bytes that a sweep with m points may take."""
        return self.memory - held_memory(m)

    def fits(self, m: int) -> bool:
        """Whether the memory limit allows m points."""
        return self.memory_of(m) <= self.memory

    def evaluation_seconds(self, m: int) -> float:
        """What an evaluation with its gradient may take."""
        return (
            self.evaluation.predicted(m) if self.evaluation.is_measured else EVALUATION_SWEEPS * self.sweep.predicted(m)
        )

    def least_seconds(self, m: int) -> float:
        """What it takes, at least, to learn anything from m points."""
        return self.selection.predicted(m) + self.sweep.predicted(m) + self.evaluation_seconds(m)

    def climb_seconds(self, m: int, evaluations: int, selections: int) -> float:
        """What an M may take with so many evaluations and selections."""
        return self.least_seconds(m) * selections + self.evaluation.predicted(m) * evaluations


def held_memory(m: int) -> int:
    """Bytes of models that are kept while another one is computed."""
    return 8 * HELD_SQUARES * m * m
