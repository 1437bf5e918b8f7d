"""Which way to the exact GP is taken, by what the limits allow."""

from __future__ import annotations

import math

import pytest
import torch

from nearexact.gp import affordable
from nearexact.gp.affordable import affordable_method
from nearexact.gp.exact import exact_memory
from nearexact.kernels import SquaredExponential
from tests.problems import standardised

KERNEL = SquaredExponential().for_inputs(3)


def test_one_factor_is_taken_where_nothing_better_fits_and_it_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it takes a second, of limits that are too short for evaluations; which depends on the machine."""
    X, y = (torch.tensor(values) for values in standardised(150))
    assert affordable_method(KERNEL, X, y, math.inf, None) == "cholesky"
    monkeypatch.setattr(affordable, "exact_fits", lambda *_: False)
    assert affordable_method(KERNEL, X, y, math.inf, None) == "iterative"
    monkeypatch.setattr(affordable, "iterative_fits", lambda *_, **__: False)
    monkeypatch.setattr(affordable, "factorisation_seconds", lambda *_: 1.0)
    assert [affordable_method(KERNEL, X, y, limit, None) for limit in (1.5, 1.7)] == ["sparse", "cholesky"]
    memory = exact_memory(KERNEL, len(X))
    assert [affordable_method(KERNEL, X, y, 9.0, limit) for limit in (memory - 1, memory)] == ["sparse", "cholesky"]


def test_one_solution_is_taken_where_no_factor_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    X, y = (torch.tensor(values) for values in standardised(150))
    monkeypatch.setattr(affordable, "exact_fits", lambda *_: False)
    monkeypatch.setattr(affordable, "factor_fits", lambda *_: False)
    monkeypatch.setattr(
        affordable, "iterative_fits", lambda _, __, limit, ___, evaluations: evaluations * 10.0 <= limit
    )
    ways = [affordable_method(KERNEL, X, y, limit, None) for limit in (11.0, 13.0)]
    assert ways == ["sparse", "iterative"]
