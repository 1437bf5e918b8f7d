"""nearexact, scikit-learn's GP, GPyTorch's SVGP and a linear model as practice.py runs them."""

from __future__ import annotations

import time
import warnings
from contextlib import suppress
from typing import Any

import pandas as pd
from practice_child import FloatArray, Problem, main
from scikit_learn_gp import fit_until, squared_exponential
from sklearn.gaussian_process import GaussianProcessRegressor

from nearexact import tables
from nearexact.baselines import fit_linear
from nearexact.bench.methods.svgp import SVGP
from nearexact.bench.protocol import BudgetExhausted, Predict, Task

TRIAL_ROWS = 300
EVALUATIONS = 100  # of scikit-learn's likelihood that the time is to suffice for, with so many rows as it gets
# On kin8nm and bike together, 12 s: better than 100 points with batches of 256, 400 with 1000, or a rate of 0.03.
SVGP_POINTS, SVGP_BATCH, SVGP_RATE = 200, 500, 0.1
MOST_ROWS = 3000  # it needs memory for one square array per input


def nearexact(problem: Problem) -> None:
    """What `nearexact fit` does without any option but the time limit, its own test included."""
    frame = pd.DataFrame(problem.X, columns=[f"x{d}" for d in range(problem.X.shape[1])])
    fitted = tables.fit(frame.assign(y=problem.y), "y", time_limit=problem.left())
    new = pd.DataFrame(problem.X_test, columns=frame.columns)

    def predict() -> dict[str, FloatArray]:
        predicted = fitted.predict(new)
        return {"mean": predicted["mean"].to_numpy(), "variance": predicted["std"].to_numpy() ** 2}

    summary = fitted.summary
    trained = "all rows" if fitted.summary.refitted else f"{summary.rows_train} rows"
    problem.write(predict, f"{summary.kernel}, {fitted.model.method_} on {trained}, {summary.verdict}")


def scikit_learn(problem: Problem) -> None:
    """A squared exponential with three restarts, on as many rows as the time allows a hundred evaluations of."""
    rows = _affordable_rows(problem)
    X, y = problem.X[:rows], problem.y[:rows]
    model, stopped = fit_until(X, y, problem.left(), time.process_time)

    def predict() -> dict[str, FloatArray]:
        mean, std = model.predict(problem.X_test, return_std=True)
        return {"mean": mean, "variance": std**2}

    problem.write(predict, f"{rows} rows{', stopped' if stopped else ''}")


def _affordable_rows(problem: Problem) -> int:
    n = min(len(problem.y), TRIAL_ROWS)
    kernel = squared_exponential(problem.X.shape[1])
    model = GaussianProcessRegressor(kernel, alpha=0.0, optimizer=None).fit(problem.X[:n], problem.y[:n])
    started = time.process_time()
    model.log_marginal_likelihood(kernel.theta, eval_gradient=True)
    seconds = time.process_time() - started
    affordable = int(n * (problem.left() / (EVALUATIONS * seconds)) ** (1 / 3))
    return min(len(problem.y), max(affordable, n), MOST_ROWS)


class _Reports:
    """The benchmark's interface for methods: keeps the last predictions, and ends the run at the limit."""

    def __init__(self, problem: Problem) -> None:
        self.problem, self.step = problem, 0
        self.predict: Predict | None = None

    def __call__(self, predict: Predict, *, step: int = 0, **_: Any) -> None:
        self.predict, self.step = predict, step
        if self.problem.left() <= 0.0:
            raise BudgetExhausted


def svgp(problem: Problem) -> None:
    """GPyTorch's sparse GP on minibatches, squared exponential, with the best of four settings that were tried."""
    task = Task("practice", problem.X, problem.y, len(problem.X_test), 0, problem.left(), None, "cpu", 1)
    method = SVGP(num_inducing=min(SVGP_POINTS, len(problem.y) // 2), batch_size=SVGP_BATCH, learning_rate=SVGP_RATE)
    reports = _Reports(problem)
    with suppress(BudgetExhausted):
        method.run(task, reports)

    def predict() -> dict[str, FloatArray]:
        assert reports.predict is not None
        mean, variance = reports.predict(problem.X_test)
        return {"mean": mean.numpy(), "variance": variance.numpy()}

    problem.write(predict, f"{method.num_inducing} inducing points, {reports.step} steps")


def linear(problem: Problem) -> None:
    baseline = fit_linear(problem.X, problem.y)
    mean, variance = baseline.predict(problem.X_test)
    problem.write(lambda: {"mean": mean, "variance": variance}, "")


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main(
        {
            "nearexact": nearexact,
            "scikit-learn-gp": scikit_learn,
            "gpytorch-svgp": svgp,
            "linear": linear,
        }
    )
