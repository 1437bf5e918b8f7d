"""The `report` that a method gets: stops the clock, asks for predictions when due, watches the budget."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from nearexact.bench.protocol import BudgetExhausted, Predict
from nearexact.bench.running.channel import Channel
from nearexact.bench.running.clock import TrainingClock
from nearexact.bench.running.evaluator import Evaluations
from nearexact.bench.running.peak_memory import PeakMemory
from nearexact.typing import FloatArray

FIRST_EVALUATION = 0.1  # training seconds
NEXT_EVALUATION = 1.15  # times the training seconds of the last one: about 16 per decade
LAST_SHARE = 0.02  # of the budget: a report so close to its end may be the last that counts
FIGURES_SHARE = 2.0  # of the training seconds, which figures given as functions may take besides predictions


class Recorder:
    """Implements the Report protocol for one run."""

    def __init__(
        self,
        evaluations: Evaluations,
        X_test: FloatArray,
        budget_seconds: float,
        clock: TrainingClock,
        evaluate_every: int | None = None,
    ) -> None:
        self._evaluations, self._X_test = evaluations, X_test
        self._budget_seconds, self._clock, self._every = budget_seconds, clock, evaluate_every
        self._memory = PeakMemory()
        self._spent = False
        self._reports, self._reported_at = 0, 0.0  # training seconds
        self._due, self._had_last = FIRST_EVALUATION, False
        self._predictions, self._figures = _Account(), _Account()  # wall-clock time that has gone into evaluation

    def __call__(
        self,
        predict: Predict,
        *,
        elbo: float | Callable[[], float] | None = None,
        upper_bound: float | Callable[[], float] | None = None,
        m: int | None = None,
        milestone: bool = False,
        **info: Any,
    ) -> None:
        """See `protocol.Report`."""
        with self._clock.paused() as elapsed:
            if self._spent:  # a method that went on regardless records nothing more
                raise BudgetExhausted
            self._spent = elapsed >= self._budget_seconds
            if milestone or self._spent or self._is_due(elapsed):
                numbers = {"m": m, "elbo": elbo, "upper_bound": upper_bound, "flops": info.pop("flops", None)}
                self._evaluations.pause()
                try:
                    self._record(predict, {"elapsed": elapsed, "milestone": bool(milestone)}, numbers, info)
                finally:
                    self._evaluations.resume()
                self._had_last |= elapsed >= (1.0 - LAST_SHARE) * self._budget_seconds
                while self._due <= elapsed:
                    self._due *= NEXT_EVALUATION
            self._reports, self._reported_at = self._reports + 1, elapsed
            if self._spent:
                raise BudgetExhausted

    def _is_due(self, elapsed: float) -> bool:
        """Whether predictions that are no milestone are to be evaluated."""
        if self._every is not None:
            return (self._reports + 1) % self._every == 0
        # After the budget nothing counts, so what may be the last report before its end is worth an evaluation.
        next_report = elapsed + max(elapsed - self._reported_at, LAST_SHARE * self._budget_seconds)
        is_last = next_report >= self._budget_seconds and not self._had_last
        # Evaluation must not outlast training: a run's wall-clock time is limited too.
        affordable = self._predictions.next() <= elapsed and self._figures.next() <= FIGURES_SHARE * elapsed
        return affordable and (elapsed >= self._due or is_last)

    def peak_memory_mb(self) -> float:
        """The most memory so far, without what was only for the trace."""
        return self._memory.peak_mb()

    def _record(self, predict: Predict, point: dict[str, Any], numbers: dict[str, Any], info: dict[str, Any]) -> None:
        with self._memory.uncounted(), self._figures.counting(self._clock.now):
            point |= {name: float(_value(number)) for name, number in numbers.items() if number is not None}
            info = {name: _value(value) for name, value in info.items()}
        with self._predictions.counting(self._clock.now):
            self._predict(predict, point, info)

    def _predict(self, predict: Predict, point: dict[str, Any], info: dict[str, Any]) -> None:
        n = len(self._X_test)
        started = self._clock.now()
        predict(self._X_test[:1].copy())  # what a method puts off until its first prediction is timed apart
        warm = self._clock.now()
        mean, variance = predict(self._X_test.copy())  # a predictor may work in place
        mean, variance = _vector(mean, "mean", n), _vector(variance, "variance", n)
        point |= {"predict_seconds": self._clock.now() - warm, "first_predict_seconds": warm - started}
        point["peak_memory_mb"] = self.peak_memory_mb()
        self._spent |= self._evaluations.record(point, info, mean, variance)


class _Account:
    """Seconds that something has taken, in all and the last time."""

    def __init__(self) -> None:
        self._all = self._last = 0.0

    def next(self) -> float:
        """What it will have taken in all after the next time, judged by the last."""
        return self._all + self._last

    @contextmanager
    def counting(self, now: Callable[[], float]) -> Iterator[None]:
        started = now()
        yield
        self._last = now() - started
        self._all += self._last


class RemoteEvaluations:
    """Implements Evaluations for a recorder whose evaluator is at the other end of a channel."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    def pause(self) -> None:
        """Training stands still from now on."""
        self._channel.send({"kind": "pause"})

    def resume(self) -> None:
        """Training goes on."""
        self._channel.send({"kind": "resume"})

    def record(self, point: dict[str, Any], info: dict[str, Any], mean: FloatArray, variance: FloatArray) -> bool:
        """Send predictions and wait until they are written; whether the training time is spent."""
        self._channel.send({"kind": "point", "point": point, "info": info}, np.concatenate([mean, variance]))
        while (answer := self._channel.receive()) is None:
            pass
        return bool(answer[0]["spent"])


def _value(value: Any) -> Any:
    """A figure, computed now if the method gave a function for it: here the clock stands still."""
    return value() if callable(value) else value


def _vector(values: Any, name: str, n: int) -> FloatArray:
    if hasattr(values, "detach"):
        values = values.detach().cpu()
    array = np.asarray(values, dtype=np.float64)
    if array.shape != (n,):
        raise ValueError(f"predict must return a {name} of shape ({n},), got {array.shape}")
    return array
