"""The `report` that a method gets: stops the clock, evaluates when due, writes the trace, watches the budget."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from nearexact.bench import metrics
from nearexact.bench.protocol import BudgetExhausted, Predict
from nearexact.bench.running.clock import TrainingClock
from nearexact.bench.running.peak_memory import PeakMemory
from nearexact.bench.store import RunFolder
from nearexact.typing import FloatArray

FIRST_EVALUATION = 0.1  # training seconds
NEXT_EVALUATION = 1.15  # times the training seconds of the last one: about 16 per decade


class Recorder:
    """Implements the Report protocol for one run."""

    def __init__(
        self, folder: RunFolder, X_test: FloatArray, y_test: FloatArray, budget_seconds: float, clock: TrainingClock
    ) -> None:
        self.folder, self.X_test, self.y_test = folder, X_test, y_test
        self.budget_seconds, self.clock = budget_seconds, clock
        self.points = 0
        self.spent = False
        self.write_error: OSError | None = None  # after which nothing more is accepted
        self.memory = PeakMemory()
        self._due = FIRST_EVALUATION
        self._evaluating = self._last_evaluation = 0.0  # seconds of wall-clock time: all of them, the last one

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
        with self.clock.paused() as elapsed:
            if self.spent or self.write_error:  # a method that went on regardless records nothing more
                raise BudgetExhausted
            self.spent = elapsed >= self.budget_seconds
            # On the way, looking must not take longer than what is looked at: a run's wall-clock time is limited too.
            affordable = self._evaluating + self._last_evaluation <= elapsed
            if milestone or self.spent or (elapsed >= self._due and affordable):
                begun = time.perf_counter()
                numbers = {"m": m, "elbo": elbo, "upper_bound": upper_bound, "flops": info.pop("flops", None)}
                with self.memory.uncounted():
                    known = {name: float(_now(value)) for name, value in numbers.items() if value is not None}
                    info = {name: _now(value) for name, value in info.items()}
                self._record(predict, {"elapsed": elapsed, **known, "milestone": bool(milestone)}, info)
                self._last_evaluation = time.perf_counter() - begun
                self._evaluating += self._last_evaluation
                while self._due <= elapsed:
                    self._due *= NEXT_EVALUATION
            if self.spent:
                raise BudgetExhausted

    def _record(self, predict: Predict, point: dict[str, Any], info: dict[str, Any]) -> None:
        predict(self.X_test[:1].copy())  # whatever a method puts off until the first prediction is not prediction
        begun = time.perf_counter()
        mean, variance = predict(self.X_test.copy())  # a predictor may work in place
        mean, variance = _vector(mean, "mean", len(self.y_test)), _vector(variance, "variance", len(self.y_test))
        point["predict_seconds"] = time.perf_counter() - begun
        with np.errstate(all="ignore"):  # predictions that explode are a result
            point["rmse"] = metrics.rmse(self.y_test, mean)
            point["nlpd"] = metrics.nlpd(self.y_test, mean, variance)
            for level in metrics.COVERAGE_LEVELS:
                point[f"coverage_{level}"] = metrics.coverage(self.y_test, mean, variance, level)
        point["peak_memory_mb"] = self.memory.peak_mb()
        try:
            if point["milestone"] or self.spent:  # what a run ends with is kept too
                self.folder.save_predictions(self.points, mean, variance)
            self.folder.append({**point, "info": info})
        except OSError as error:  # not the method's fault, so not for its handlers
            self.write_error = error
            raise BudgetExhausted from error
        self.points += 1


def _now(value: Any) -> Any:
    """What a method has put off until it is needed, here where the clock stands still."""
    return value() if callable(value) else value


def _vector(values: Any, name: str, n: int) -> FloatArray:
    if hasattr(values, "detach"):
        values = values.detach().cpu()
    array = np.asarray(values, dtype=np.float64)
    if array.shape != (n,):
        raise ValueError(f"predict must return a {name} of shape ({n},), got {array.shape}")
    return array
