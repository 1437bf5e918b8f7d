"""What a method sees of the benchmark, and what the benchmark sees of a method.

A method is a class with a `name` and a `run`. It trains on the task's data and pushes predictions whenever it has some:

    class Mean:
        name = "mean"

        def run(self, task, report):
            mean, variance = task.y_train.mean(), task.y_train.var()
            report(lambda X: (np.full(len(X), mean), np.full(len(X), variance)), milestone=True)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from nearexact.typing import FloatArray

Predict = Callable[[FloatArray], tuple[Any, Any]]


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


class Report(Protocol):
    """How a method shows what it has."""

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

        The training clock stands still meanwhile. They are evaluated if an evaluation is due, and always at a
        milestone. `elbo` is the method's own bound on, or estimate of, the log marginal likelihood in nats; `flops`
        among the further information is how many floating point operations training has taken so far. A figure that
        takes work may be given as a function without arguments: it is called off the clock, and only if the point is
        recorded. Raises BudgetExhausted when the training time is spent: let it pass.
        """


class Method(Protocol):
    """A way to train a model. Made without arguments, or with the options that an experiment gives it.

    It may have two methods more. `prepare()` is called before the clock starts, for imports that libraries put off
    until they are first used. `at(task, kernel, noise_variance, m)` gives its posterior at given hyperparameters, an
    object with `kernel`, `noise_variance` and `predict(X)`, for comparisons with the exact GP.
    """

    name: str

    def run(self, task: Task, report: Report) -> None:
        """Train on the task and report on the way. Returning early is fine."""


class BudgetExhausted(BaseException):  # no error: it is how a run usually ends
    """The training time is spent. Not an Exception, so that handlers of errors let it pass."""
