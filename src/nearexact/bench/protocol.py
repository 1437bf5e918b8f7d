"""The interface between the benchmark and its methods.

A method is a class with a `name` and a `run`. It trains on the task's data and reports predictions as often as it can:

    class Mean:
        name = "mean"

        def run(self, task, report):
            mean, variance = task.y_train.mean(), task.y_train.var()
            report(lambda X: (np.full(len(X), mean), np.full(len(X), variance)), milestone=True)
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from nearexact.typing import FloatArray

Predict = Callable[[FloatArray], tuple[Any, Any]]


class BudgetExhausted(BaseException):  # not an error: most runs end like this
    """The training time is spent. Not an Exception, so that `except Exception` does not catch it.

    A method may raise it by itself, where its next step could not end in time.
    """


@dataclass(frozen=True, eq=False)
class Task:
    """What a method may use. X and y are standardised on the training part; test targets are not in here."""

    dataset: str
    X_train: FloatArray  # [N, D]
    y_train: FloatArray  # [N]
    n_test: int
    seed: int
    budget_seconds: float
    memory_limit: int | None  # bytes
    device: str
    threads: int
    seconds_left: Callable[[], float] = lambda: math.inf  # of training time, below 0 when it is spent

    def check_time(self) -> None:
        """Raise BudgetExhausted when the training time is spent: for use inside steps that take long."""
        if self.seconds_left() <= 0.0:
            raise BudgetExhausted


class Report(Protocol):
    """How a method reports its predictions while it trains."""

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
        """Offer predictions: `predict(X)` gives mean and variance of new observations at the rows of X.

        The training clock stands still during this call. The predictions are evaluated if an evaluation is due, and
        always at a milestone. `elbo` is the method's own bound on, or estimate of, the log marginal likelihood in
        nats. `flops`, if given, is the number of floating point operations that training has taken so far; all other
        information is kept as it is, up to 1 MB as JSON. A figure that takes work to compute may be given as a
        function without arguments: it is called off the clock, and only if the point is recorded. Raises
        BudgetExhausted when the training time is spent: do not catch it.
        """


class Method(Protocol):
    """A way to train a model. Constructed without arguments, or with the options that an experiment gives it.

    Two further methods are optional. `prepare()` is called before the clock starts, for imports that libraries put off
    until they are first used; torch gets the run's threads and seed if it is imported by then. `at(task, kernel,
    noise_variance, m)` gives its posterior at given hyperparameters, an object with `kernel`, `noise_variance` and
    `predict(X)`, for comparisons with the exact GP.
    """

    name: str

    def run(self, task: Task, report: Report) -> None:
        """Train on the task and report on the way. Returning early is fine."""
