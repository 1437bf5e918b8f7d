"""IterGP's estimates against the exact GP, with tolerances so tight that they must agree."""

from __future__ import annotations

import subprocess
import sys
from contextlib import ExitStack
from typing import Any

import linear_operator
import numpy as np
import pytest
import torch

from nearexact.bench import methods
from nearexact.bench.datasets import load_split
from nearexact.bench.methods import itergp, kernel_matrix
from nearexact.bench.protocol import BudgetExhausted
from nearexact.gp import gpr_objective
from nearexact.kernels import SquaredExponential
from nearexact.kernels.names import named_kernel
from tests.bench.helpers import Notes, task

KERNEL, NOISE = SquaredExponential([1.5] * 10, 0.8), 0.3
PLENTY = 10**9  # bytes


def products(memory: int = PLENTY) -> kernel_matrix.Products:
    X = torch.tensor(load_split("diabetes", 0).X_train)
    return kernel_matrix.Products(X, KERNEL, memory)


def settings(**values: float) -> ExitStack:
    stack = ExitStack()
    for name, value in {"max_cholesky_size": 0, "min_preconditioning_size": 1, **values}.items():
        stack.enter_context(getattr(linear_operator.settings, name)(value))
    return stack


@pytest.mark.parametrize("memory", [PLENTY, 1], ids=["stored", "computed anew"])
@pytest.mark.parametrize("preconditioner", [0, 40])
def test_the_estimate_and_its_gradient_are_those_of_the_exact_gp(memory: int, preconditioner: int) -> None:
    data = load_split("diabetes", 0)
    exact = gpr_objective(KERNEL, NOISE, data.X_train, data.y_train)
    lml, by_parameter, by_noise = exact.value_and_gradient(KERNEL, NOISE)
    tight = {"cg_tolerance": 1e-5, "num_trace_samples": 400, "max_lanczos_quadrature_iterations": 60}
    with settings(max_preconditioner_size=preconditioner, **tight):
        estimate = itergp._estimate(products(memory), KERNEL, NOISE, torch.tensor(data.y_train), seed=0)
    assert estimate[0] == pytest.approx(lml, rel=2e-3)
    assert estimate[2] == pytest.approx(by_noise, abs=0.03 * abs(by_noise) + 1.0)
    for name, gradient in by_parameter.items():
        np.testing.assert_allclose(estimate[1][name], gradient, rtol=0.03, atol=1.0)


@pytest.mark.parametrize("name", ["matern12", "arccosine1", "matern32+linear"])
def test_other_kernels_have_the_exact_estimate_and_gradient_too(name: str) -> None:
    data, kernel = load_split("diabetes", 0), named_kernel(name).for_inputs(10)
    X, y = torch.tensor(data.X_train[:150]), torch.tensor(data.y_train[:150])
    matrix = kernel_matrix.Products(X, kernel, PLENTY)
    tight = {"cg_tolerance": 1e-5, "num_trace_samples": 600, "max_lanczos_quadrature_iterations": 60}
    with settings(max_preconditioner_size=40, **tight):
        estimate = itergp._estimate(matrix, kernel, NOISE, y, seed=0)
    lml, by_parameter, by_noise = gpr_objective(kernel, NOISE, X, y).value_and_gradient(kernel, NOISE)
    assert estimate[0] == pytest.approx(lml, rel=2e-3)
    assert estimate[2] == pytest.approx(by_noise, abs=0.03 * abs(by_noise) + 1.0)
    for parameter, gradient in by_parameter.items():
        np.testing.assert_allclose(estimate[1][parameter], gradient, rtol=0.03, atol=0.5)


@pytest.mark.parametrize("name", ["se", "matern12", "se*linear"])
def test_single_entries_and_their_derivatives_are_those_of_the_matrix(name: str) -> None:
    X = torch.tensor(load_split("diabetes", 0).X_train[:30])
    kernel = named_kernel(name).for_inputs(10)
    matrix = kernel_matrix.Products(X, kernel, PLENTY)
    matrix.prepare(kernel)
    leaves = [torch.tensor(value).requires_grad_(True) for value in kernel.parameters.values()]
    rows, columns = torch.tensor([[3], [5], [3]]), torch.tensor([[0, 5, 7, 7]])
    entries = kernel_matrix.KernelMatrix(*leaves, products=matrix)._get_indices(*torch.broadcast_tensors(rows, columns))
    np.testing.assert_allclose(entries.detach(), kernel(X.numpy())[rows.numpy(), columns.numpy()], rtol=1e-12)
    weights = torch.arange(1.0, 13.0, dtype=torch.float64).view(3, 4)
    found = torch.autograd.grad((weights * entries).sum(), leaves)
    K_bar = torch.zeros(30, 30, dtype=torch.float64)
    K_bar.index_put_(torch.broadcast_tensors(rows, columns), weights, accumulate=True)
    features = kernel.features(X, X.mean(0))
    expected = kernel.cross_vjp(features, features, K_bar)
    for (parameter, gradient), value in zip(expected.items(), found, strict=True):
        np.testing.assert_allclose(value, gradient, rtol=1e-9, atol=1e-12, err_msg=parameter)


def test_a_seed_gives_the_same_estimate_again_and_the_random_state_is_left_alone() -> None:
    y = torch.tensor(load_split("diabetes", 0).y_train)
    state = torch.random.get_rng_state()
    with settings(max_preconditioner_size=40):
        values = [itergp._estimate(products(), KERNEL, NOISE, y, seed)[0] for seed in (3, 3, 4)]
    assert values[0] == values[1] != values[2]
    assert torch.equal(state, torch.random.get_rng_state())


@pytest.mark.parametrize("memory", [PLENTY, 1], ids=["stored", "computed anew"])
@pytest.mark.parametrize("landmarks", [0, 80])
def test_predictions_are_those_of_the_exact_gp(memory: int, landmarks: int) -> None:
    data = load_split("diabetes", 0)
    matrix = products(memory)
    matrix.landmarks = landmarks
    with settings(max_preconditioner_size=40):
        predict = itergp._predictor(matrix, KERNEL, NOISE, torch.tensor(data.y_train), tolerance=1e-5)
        predict(data.X_test[:1])
        matrix.prepare(KERNEL.with_parameters({"variance": 5.0}))  # training goes on
        mean, variance = predict(data.X_test)
    exact = gpr_objective(KERNEL, NOISE, data.X_train, data.y_train).factorise(KERNEL, NOISE)
    exact_mean, exact_variance = exact.predict(data.X_test)
    np.testing.assert_allclose(mean, exact_mean, atol=1e-4)
    np.testing.assert_allclose(variance, exact_variance + NOISE, atol=1e-4)


def test_predictions_take_fewer_products_with_landmarks_than_with_the_preconditioner_of_training() -> None:
    data, taken = load_split("diabetes", 0), []
    for landmarks in (0, 150):
        matrix = products()
        matrix.landmarks = landmarks
        with settings(max_preconditioner_size=40):
            predict = itergp._predictor(matrix, KERNEL, 1e-3, torch.tensor(data.y_train), tolerance=1e-6)
            predict(data.X_test[:1])
            before = matrix.count
            predict(data.X_test)
        taken.append(matrix.count - before)
    assert taken[1] < 0.7 * taken[0]


def test_the_preconditioner_is_gpytorchs_where_that_is_better_or_another_cannot_be_computed() -> None:
    matrix = products()
    with settings(max_preconditioner_size=10):
        assert matrix.landmarks > 10
        assert matrix.preconditioner(NOISE) is not None
        matrix.prepare(KERNEL.with_parameters({"variance": 1e200}))
        assert matrix.preconditioner(1e-200) is None
    with settings(max_preconditioner_size=100):
        assert matrix.preconditioner(NOISE) is None  # GPyTorch's is better


@pytest.mark.slow
def test_a_run_tells_how_its_solves_went_and_what_the_exact_likelihood_is() -> None:
    notes = Notes()
    methods.create("itergp").run(task(), notes)
    last = notes.calls[-1]
    assert last["milestone"]
    assert last["cg_iterations"] > 5
    assert 0.0 < last["cg_residual"]() < 0.1
    assert last["elbo"] == pytest.approx(last["exact_lml"](), rel=0.02)
    assert last["flops"] >= 2.0 * 375**2 * last["cg_iterations"] * 11


def test_looking_is_not_counted_as_training() -> None:
    counted = []
    for looks in (False, True):
        notes = Notes(most=4)
        report = notes.__call__

        def look(predict: Any, **given: Any) -> None:
            if looks:  # noqa: B023
                predict(load_split("diabetes", 0).X_test)
                given["cg_residual"]()
            report(predict, **given)  # noqa: B023

        with pytest.raises(BudgetExhausted):
            methods.create("itergp").run(task(), look)
        counted.append([call["flops"] for call in notes.calls])
    assert counted[0] == counted[1]


@pytest.mark.parametrize(
    "name", ["itergp", *(pytest.param(name, marks=pytest.mark.slow) for name in ("svgp", "sgpr", "gpr"))]
)
def test_nothing_is_imported_on_the_clock(name: str) -> None:
    script = f"""
import sys
from nearexact.bench import methods
from nearexact.bench.protocol import BudgetExhausted
from tests.bench.helpers import Notes, task
method, problem = methods.create({name!r}), task("step")
getattr(method, "prepare", lambda: None)()
before = set(sys.modules)
try:
    method.run(problem, Notes(most=1))
except BudgetExhausted:
    print(len(set(sys.modules) - before))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 20


def test_settings_are_options_and_unknown_ones_are_refused() -> None:
    method = methods.create("itergp", {"cg_tolerance": 1.0, "noise_floor": 1e-4})
    assert vars(method)["settings"]["cg_tolerance"] == 1.0
    with pytest.raises(ValueError, match="max_cholesky_size"):
        methods.create("itergp", {"cg_tolerence": 1.0})


MEASURE = """
import numpy as np, resource, torch
from nearexact.bench.methods.itergp import IterGP
from nearexact.bench.protocol import BudgetExhausted, Task
rng = np.random.default_rng(0)
X = rng.normal(size=(15_000, 8))
y = np.sin(X.sum(1)) + 0.1 * rng.normal(size=15_000)
def report(predict, **_):
    predict(X[:300])
    raise BudgetExhausted
try:
    IterGP().run(Task("generated", X, y, 300, 0, 1.0, None, "cpu", 1), report)
except BudgetExhausted:
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
"""


@pytest.mark.slow
def test_fifteen_thousand_rows_take_less_than_twelve_gigabytes() -> None:
    done = subprocess.run([sys.executable, "-c", MEASURE], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 12e9


def test_products_by_keops_are_the_same() -> None:
    pytest.importorskip("pykeops")
    matrix = products(memory=1)
    assert matrix.keops
    matrix.prepare(KERNEL)
    rhs = torch.randn(len(matrix.X), 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    np.testing.assert_allclose(matrix.times(rhs), KERNEL(matrix.X) @ rhs, atol=1e-9)
