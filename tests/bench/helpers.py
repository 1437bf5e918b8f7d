"""A task and a report for methods that are run without the harness."""

from __future__ import annotations

from typing import Any

from nearexact.bench.datasets import load_split
from nearexact.bench.protocol import BudgetExhausted, Task


class Notes:
    """A report that keeps what it is called with, and says after `most` calls that the budget is spent."""

    def __init__(self, most: int = 10**9) -> None:
        self.calls: list[dict[str, Any]] = []
        self.most = most

    def __call__(self, predict: Any, **given: Any) -> None:
        if len(self.calls) >= self.most:
            raise BudgetExhausted
        self.calls.append({**given, "predict": predict})


def task(dataset: str = "diabetes", **changes: Any) -> Task:
    """The task of a data set's first split, with some fields changed."""
    data = load_split(dataset, 0)
    fields = {
        "dataset": dataset, "X_train": data.X_train, "y_train": data.y_train, "n_test": len(data.y_test), "seed": 0,
        "budget_seconds": 60.0, "memory_limit": None, "device": "cpu", "threads": 1,
    }  # fmt: skip
    return Task(**{**fields, **changes})
