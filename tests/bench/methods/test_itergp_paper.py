"""IterGP as published: GPyTorch's own estimates and variances, and nothing that hides what comes of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from nearexact.bench import methods
from nearexact.bench.methods.itergp import gpytorch_settings
from nearexact.bench.methods.itergp_paper import ROOT_SIZE, SETTINGS, ExactGP
from nearexact.gp import ExactObjective, gpr_objective
from nearexact.kernels import SquaredExponential
from tests.bench.helpers import Notes, task

ITERATIVE = {"max_cholesky_size": 0, "min_preconditioning_size": 1}


def model(rows: int = 120) -> tuple[ExactGP, Any]:
    problem = task("diabetes")
    X, y = torch.tensor(problem.X_train[:rows]), torch.tensor(problem.y_train[:rows])
    return ExactGP(X, y, SquaredExponential([2.0] * 10, 0.7)), problem


def test_its_objective_is_the_exact_one_per_row_when_gpytorch_is_precise() -> None:
    gp, problem = model()
    X, y, kernel = problem.X_train[:120], problem.y_train[:120], SquaredExponential([2.0] * 10, 0.7)
    lml, by_parameter, _ = gpr_objective(kernel, 0.1, X, y).value_and_gradient(kernel, 0.1)
    value, gradient = gp.objective(gp.theta(), seed=0)  # with so few rows by a Cholesky factor
    assert value == pytest.approx(-lml / 120)
    lengthscales = dict(zip(dict(gp.named_parameters()), np.split(gradient, [1, 2]), strict=True))
    name = next(name for name in lengthscales if "lengthscale" in name)
    slope = 1.0 / (1.0 + 1.0 / np.expm1(2.0))  # of the softplus at 2
    np.testing.assert_allclose(lengthscales[name], -slope * by_parameter["lengthscales"] / 120, rtol=1e-6)
    with gpytorch_settings({**ITERATIVE, "cg_tolerance": 1e-5, "num_trace_samples": 400}):
        estimate = gp.objective(gp.theta(), seed=0)[0]
        assert estimate == pytest.approx(-lml / 120, abs=0.05)
        assert gp.objective(gp.theta(), seed=0)[0] == pytest.approx(estimate, abs=1e-9)  # the same probes again


def test_a_root_of_full_size_gives_the_exact_variances_and_a_small_one_does_not() -> None:
    gp, problem = model()
    X, y, kernel = problem.X_train[:120], problem.y_train[:120], SquaredExponential([2.0] * 10, 0.7)
    exact = ExactObjective(kernel, 0.1, X, y).factorise(kernel, 0.1)
    inputs, errors = problem.X_train[200:230], []
    mean, variance = exact.predict(inputs)
    for size in (ROOT_SIZE, 5):
        gp.train()  # GPyTorch keeps a root until then
        with gpytorch_settings({**ITERATIVE, "eval_cg_tolerance": 1e-6, "max_root_decomposition_size": size}):
            found = gp.predict(inputs)
        np.testing.assert_allclose(found[0], mean, atol=1e-4)
        errors.append(float((found[1] - 0.1 - variance).abs().max()))
    assert errors[0] < 1e-4 < 1e-2 < errors[1]


def test_metrics_are_asked_for_every_five_iterations_and_at_the_end() -> None:
    notes, problem = Notes(), task("step")
    methods.create("itergp-paper").run(problem, notes)
    iterations = [call["iterations"] for call in notes.calls]
    assert iterations[:-1] == list(range(5, iterations[-1] + 1, 5))
    assert all(call["milestone"] for call in notes.calls)
    last = notes.calls[-1]
    assert "CONVERGENCE" in last["stopped"]
    assert last["elbo"] == pytest.approx(last["exact_lml"](), abs=1e-6)
    assert last["elbo"] > notes.calls[0]["elbo"]


def test_when_the_budget_is_spent_it_says_so_after_the_next_iteration() -> None:
    notes = Notes()
    methods.create("itergp-paper").run(task("step", seconds_left=lambda: 0.0), notes)
    assert [call["iterations"] for call in notes.calls[:3]] == [1, 2, 3]  # this report lets it go on


def test_settings_are_the_published_ones_unless_changed_and_others_are_refused() -> None:
    method: Any = methods.create("itergp-paper", {"max_root_decomposition_size": 100, "cg_tolerance": 1.0})
    assert method.settings == {**SETTINGS, "cg_tolerance": 1.0}
    assert (method.max_root_decomposition_size, method.evaluate_every) == (100, 5)
    with pytest.raises(ValueError, match="GPyTorch has no setting 'cg_tolerence'"):
        methods.create("itergp-paper", {"cg_tolerence": 1.0})
    with pytest.raises(ValueError, match="evaluate_every must be a whole number of at least 1, got 0"):
        methods.create("itergp-paper", {"evaluate_every": 0})
