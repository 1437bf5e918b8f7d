"""The option `kernel` of the methods: what they train and record is that kernel, not the squared exponential."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import numpy as np
import pytest

from nearexact.bench import methods
from nearexact.bench.protocol import BudgetExhausted
from nearexact.gp import ExactObjective
from nearexact.kernels.base import Kernel
from nearexact.kernels.names import named_kernel
from tests.bench.helpers import Notes, task

FEW = {"max_inducing": 10}
OPTIONS: dict[str, dict[str, Any]] = {
    "sgpr": FEW, "sgpr-paper": FEW, "fitc": FEW, "nearexact": FEW, "gpr": {}, "gpr-iterative": {},
    "itergp": {}, "itergp-paper": {}, "svgp": {"num_inducing": 10, "max_steps": 5},
}  # fmt: skip
GPYTORCH = ("itergp-paper", "svgp")


def recorded_kernel(call: dict[str, Any], inputs: int) -> tuple[Kernel, float]:
    """As a reader of a trace rebuilds it: by the name, and by the values under the names of the parameters."""
    point = json.loads(json.dumps({k: v() if callable(v) else v for k, v in call.items() if k != "predict"}))
    kernel = named_kernel(point["kernel"]).for_inputs(inputs)
    return kernel.with_parameters({name: point[name] for name in kernel.parameters}), point["noise_variance"]


@pytest.mark.parametrize("name", OPTIONS)
def test_every_method_trains_the_kernel_that_it_is_given(name: str) -> None:
    chosen = "matern32+linear" if name in GPYTORCH else "matern32+arccosine"
    data, notes = task("step"), Notes(most=4)
    problem = task("step", X_train=data.X_train[:30], y_train=data.y_train[:30])
    method: Any = methods.create(name, {"kernel": chosen, **OPTIONS[name]})
    assert method.kernel == chosen  # for run.json
    with suppress(BudgetExhausted):
        method.run(problem, notes)
    last = notes.calls[-1]
    kernel, noise_variance = recorded_kernel(last, 1)
    assert last["kernel"] == chosen
    exact = ExactObjective(kernel, noise_variance, problem.X_train, problem.y_train).factorise(kernel, noise_variance)
    if "exact_lml" in last:
        assert last["exact_lml"]() == pytest.approx(exact.lml)
    if name in ("gpr", "itergp-paper"):  # with so few rows GPyTorch takes Cholesky factors
        assert last["elbo"] == pytest.approx(exact.lml, abs=1e-3)
    elif name in ("sgpr", "sgpr-paper"):
        assert last["elbo"] <= exact.lml + 1e-6
    mean, variance = (np.asarray(part) for part in last["predict"](problem.X_train[:5]))
    assert np.isfinite(mean).all()
    assert (variance > 0.0).all()


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize(("kernel", "message"), [("matern", "there is no kernel 'matern'"), (3, "must be a name")])
def test_a_kernel_that_is_none_is_refused_before_anything_runs(name: str, kernel: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        methods.create(name, {"kernel": kernel})


@pytest.mark.parametrize("name", GPYTORCH)
def test_methods_of_gpytorch_refuse_kernels_that_it_does_not_have(name: str) -> None:
    with pytest.raises(ValueError, match="it has no ArcCosine"):
        methods.create(name, {"kernel": "arccosine"})
