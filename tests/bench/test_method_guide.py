"""docs/your-method.md: its method runs as printed, and its tables have every field."""

from __future__ import annotations

import inspect
import re
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import multivariate_normal

from nearexact.bench import Report, Task, methods
from tests.bench.helpers import Notes, task

GUIDE = Path(__file__).parents[2] / "docs" / "your-method.md"


def test_the_method_of_the_guide_is_bayesian_linear_regression(tmp_path: Path) -> None:
    file = tmp_path / "ridge.py"
    file.write_text(re.findall(r"```python\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)[0])
    notes, problem = Notes(), task()
    methods.create(f"{file}:Ridge", {"most": 1}).run(problem, notes)
    (call,) = notes.calls
    X, prior = np.column_stack([problem.X_train, np.ones(len(problem.X_train))]), 1e6  # variance of weights, over noise
    noise = np.mean((problem.y_train - call["predict"](problem.X_train)[0]) ** 2)
    covariance = noise * (prior * X @ X.T + np.eye(len(X)))
    assert call["elbo"] == pytest.approx(multivariate_normal(cov=covariance).logpdf(problem.y_train), rel=1e-6)
    cross = noise * prior * X[:3] @ X.T
    variance = np.diag(covariance)[:3] - np.sum(cross * np.linalg.solve(covariance, cross.T).T, axis=1)
    np.testing.assert_allclose(call["predict"](problem.X_train[:3])[1], variance, rtol=1e-4)
    methods.create(f"{file}:Ridge").run(problem, notes)
    assert notes.calls[-1]["milestone"]


def test_the_guide_lists_every_field() -> None:
    tables = GUIDE.read_text(encoding="utf-8").split("\n## ")
    of_task, of_report = (re.findall(r"^\| `(\w+)", part, re.MULTILINE) for part in tables[1:3])
    assert of_task == [*(part.name for part in fields(Task)), "check_time"]
    arguments = [name for name in inspect.signature(Report.__call__).parameters if name not in ("self", "info")]
    assert of_report == [*arguments, "flops"]
