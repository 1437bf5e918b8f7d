"""The judge of a run: it alone has the test targets and the clock that counts, and it writes the trace.

It lives in the sweep's process. The method, in a process of its own, sends predictions and says when its training
pauses for them; so the test targets cannot be found in its process, and a patched clock there changes nothing.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from nearexact.bench import metrics
from nearexact.bench.running.clock import TrainingClock
from nearexact.bench.store import RunFolder
from nearexact.typing import FloatArray

# By how much the run's own clock may fall behind this one: messages take a while on a busy machine.
TOLERATED_SECONDS, TOLERATED_SHARE = 0.5, 0.05


class Evaluations(Protocol):
    """What a recorder tells the evaluator, directly or through the channel between their processes."""

    def pause(self) -> None:
        """Training stands still from now on."""

    def resume(self) -> None:
        """Training goes on."""

    def record(self, point: dict[str, Any], info: dict[str, Any], mean: FloatArray, variance: FloatArray) -> bool:
        """Predictions at the test inputs; whether the training time is spent."""


class Evaluator:
    """Implements Evaluations for one run."""

    def __init__(
        self,
        folder: RunFolder,
        y_test: FloatArray,
        budget_seconds: float,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.folder, self.y_test, self.budget_seconds = folder, y_test, budget_seconds
        self.points = 0
        self.last_point: dict[str, Any] = {}
        self.spent = False
        self.evaluation_seconds = 0.0
        self.lost_seconds = 0.0  # by which the run's own clock fell behind, if by more than is tolerated
        self._now = now
        self.start()

    def start(self) -> None:
        """Training starts."""
        self._clock = TrainingClock(self._now)
        self._started = self._now()
        self._paused_at = self._started

    def pause(self) -> None:
        """Stop the clock: evaluation is no training."""
        if not self._clock.is_paused:
            self._clock.pause()
            self._paused_at = self._now()

    def resume(self) -> None:
        """Let the clock go on."""
        if self._clock.is_paused:
            self.evaluation_seconds += self._now() - self._paused_at
            self._clock.resume()

    def training_seconds(self, claimed: Any) -> float:
        """The run's own reading of its training time, if it is plausible, else that of this clock.

        The run's own is the more precise, because messages take time. One that says less than this clock by more than
        messages can take is wrong; the difference is kept in `lost_seconds`.
        """
        measured = self._clock.elapsed()
        if isinstance(claimed, (int, float)) and math.isfinite(claimed):
            if measured - claimed <= TOLERATED_SECONDS + TOLERATED_SHARE * measured:
                return float(claimed)
            self.lost_seconds = max(self.lost_seconds, measured - claimed)
        return measured

    def record(self, point: dict[str, Any], info: dict[str, Any], mean: FloatArray, variance: FloatArray) -> bool:
        """Compute the errors and write a line of the trace. OSError if it cannot be written."""
        self.pause()
        if self.spent:
            return True
        elapsed = self.training_seconds(point.get("elapsed"))
        self.spent = elapsed >= self.budget_seconds
        now = self._now()
        point = {
            **point,
            "elapsed": elapsed,
            "wall_seconds": now - self._started,
            "evaluation_seconds": now - self._paused_at,
            **_errors(self.y_test, mean, variance),
        }
        if point.get("milestone") or self.spent:  # also the state in which a run ends
            self.folder.save_predictions(self.points, mean, variance)
        self.folder.append({**point, "info": info})
        self.points += 1
        self.last_point = point
        return self.spent


def _errors(y_test: FloatArray, mean: FloatArray, variance: FloatArray) -> dict[str, float]:
    with np.errstate(all="ignore"):  # predictions that explode are a result
        return {
            "rmse": metrics.rmse(y_test, mean),
            "nlpd": metrics.nlpd(y_test, mean, variance),
            "crps": metrics.crps(y_test, mean, variance),
            **{
                f"coverage_{level}": metrics.coverage(y_test, mean, variance, level)
                for level in metrics.COVERAGE_LEVELS
            },
        }
