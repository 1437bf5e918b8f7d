"""Which way to the exact GP is taken, by what the limits allow."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from nearexact.gp import affordable
from nearexact.gp.affordable import affordable_method, best_method, exact_fits
from nearexact.gp.exact import ExactObjective, evaluation_seconds, exact_memory
from nearexact.kernels import SquaredExponential
from nearexact.typing import FloatArray
from tests.problems import standardised

KERNEL = SquaredExponential().for_inputs(3)


def test_one_factor_is_taken_where_nothing_better_fits_and_it_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it takes a second, of limits that are too short for evaluations; which depends on the machine."""
    X, y = (torch.tensor(values) for values in standardised(150))
    assert affordable_method(KERNEL, X, y, math.inf, None) == "cholesky"
    monkeypatch.setattr(affordable, "exact_fits", lambda *_: False)
    assert affordable_method(KERNEL, X, y, math.inf, None) == "iterative"
    monkeypatch.setattr(affordable, "iterative_fits", lambda *_, **__: False)
    monkeypatch.setattr(affordable, "factorisation_seconds", lambda *_, **__: 1.0)
    assert [affordable_method(KERNEL, X, y, limit, None) for limit in (1.5, 1.7)] == ["sparse", "cholesky"]
    memory = exact_memory(KERNEL, len(X))
    assert [affordable_method(KERNEL, X, y, 9.0, limit) for limit in (memory - 1, memory)] == ["sparse", "cholesky"]


def test_few_evaluations_are_enough_where_conjugate_gradients_save_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of evaluations of a second 16 are always enough, ten if conjugate gradients take at least half a second."""
    X, y = (torch.tensor(values) for values in standardised(1200))
    monkeypatch.setattr(affordable, "evaluation_seconds", lambda *_, **__: 1.0)
    for seconds, expected in ((0.6, [False, True, True]), (0.4, [False, False, True])):
        monkeypatch.setattr(affordable, "rough_evaluation_seconds", lambda *_, seconds=seconds: seconds)
        assert [exact_fits(KERNEL, X, y, limit, None) for limit in (9.0, 12.0, 17.0)] == expected
    assert not exact_fits(KERNEL, X, y, math.inf, exact_memory(KERNEL, len(X)) - 1)


def test_more_rows_are_tried_where_few_do_not_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cost of an evaluation grows less than with N³ at first, so that few rows promise too much of it."""
    X, y = (torch.tensor(values) for values in standardised(2000))
    tried: list[int] = []
    original = ExactObjective.nearly

    def counted(self: ExactObjective, theta: FloatArray) -> Any:
        tried.append(len(self.X))
        return original(self, theta)

    monkeypatch.setattr(ExactObjective, "nearly", counted)
    evaluation_seconds(KERNEL, X, y, little=math.inf, much=math.inf)
    assert max(tried) == 1000
    evaluation_seconds(KERNEL, X, y, little=0.0, much=0.0)
    assert max(tried) == 1000
    evaluation_seconds(KERNEL, X, y, little=0.0, much=math.inf)
    assert max(tried) == 2000


def test_one_solution_is_taken_where_no_factor_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    X, y = (torch.tensor(values) for values in standardised(150))
    monkeypatch.setattr(affordable, "exact_fits", lambda *_: False)
    monkeypatch.setattr(affordable, "factor_fits", lambda *_: False)
    monkeypatch.setattr(
        affordable, "iterative_fits", lambda _, __, limit, ___, evaluations: evaluations * 10.0 <= limit
    )
    ways = [affordable_method(KERNEL, X, y, limit, None) for limit in (11.0, 13.0)]
    assert ways == ["sparse", "iterative"]


@pytest.mark.parametrize(("frequency", "expected"), [(1.0, "iterative"), (6.0, "cholesky")])
def test_conjugate_gradients_are_taken_where_a_function_is_smooth(
    frequency: float, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where Cholesky has time for some evaluations but not for plenty, which depends on the machine."""
    monkeypatch.setattr(affordable, "evaluation_seconds", lambda *_, **__: 10.0)
    X, y = _waves(8000, frequency)
    assert affordable_method(KERNEL, X, y, 600.0, None) == "cholesky"
    assert best_method(KERNEL, X, y, 600.0, None) == expected


@pytest.mark.parametrize(("n", "seconds"), [(8000, 1.9), (4000, 10.0)])
def test_nothing_is_searched_where_conjugate_gradients_have_nothing_to_gain(
    n: int, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With time for plenty of evaluations by Cholesky, or with so few rows that they cannot be much cheaper."""
    monkeypatch.setattr(affordable, "evaluation_seconds", lambda *_, **__: seconds)
    monkeypatch.setattr(affordable, "Search", None)
    assert best_method(KERNEL, *_waves(n, 1.0), 600.0, None) == "cholesky"


def _waves(n: int, frequency: float) -> tuple[torch.Tensor, torch.Tensor]:
    random = np.random.default_rng(0)
    X: FloatArray = random.normal(size=(n, 3))
    y = np.sin(frequency * X).sum(1) + 0.1 * random.normal(size=n)
    return torch.tensor(X), torch.tensor((y - y.mean()) / y.std())
