"""The exact GP by conjugate gradients, as a method of the benchmark."""

from __future__ import annotations

import pytest

from nearexact.bench import methods
from nearexact.bench.analysis.families import ESTIMATES, is_lower_bound, ordered
from nearexact.bench.analysis.hyperparameters import recorded_evidence
from nearexact.bench.analysis.points import EVIDENCE
from nearexact.bench.datasets import load_split
from nearexact.certificate import NEGLIGIBLE_ERROR
from nearexact.gp import gpr_objective
from nearexact.kernels import SquaredExponential
from tests.bench.helpers import Notes, task


@pytest.fixture(scope="module")
def notes() -> Notes:
    reports = Notes()
    methods.create("gpr-iterative").run(task("step", budget_seconds=20.0), reports)
    return reports


def test_it_reports_an_estimate_with_its_error_near_the_exact_likelihood(notes: Notes) -> None:
    last, data = notes.calls[-1], load_split("step", 0)
    kernel = SquaredExponential(last["lengthscales"](), last["variance"]())
    exact = gpr_objective(kernel, last["noise_variance"](), data.X_train, data.y_train)
    lml = exact.factorise(kernel.for_inputs(data.X_train.shape[1]), last["noise_variance"]()).lml
    assert last["milestone"]
    assert last["elbo"] == pytest.approx(lml, abs=5.0 * last["standard_error"] + 1e-4 * len(data.y_train))
    assert last["lower_bound"] <= lml + 1e-6
    assert last["upper_bound"] >= lml - 1e-6
    mean, variance = last["predict"](data.X_test)
    assert mean.shape == variance.shape == data.y_test.shape
    assert (variance > last["noise_variance"]()).all()


def test_milestones_say_what_speaks_for_the_hyperparameters_and_how_far_means_are_off(notes: Notes) -> None:
    last = notes.calls[-1]
    recorded = recorded_evidence({name: last[name] for name in EVIDENCE})
    assert recorded is not None
    assert recorded.starts >= recorded.agreeing >= 1
    assert 0.0 <= last["mean_error"] <= NEGLIGIBLE_ERROR


def test_flops_never_fall(notes: Notes) -> None:
    flops = [call["flops"] for call in notes.calls]
    assert flops == sorted(flops)


def test_tables_take_it_for_an_estimate() -> None:
    assert "gpr-iterative" in ESTIMATES
    assert not is_lower_bound("gpr-iterative", has_upper=True)
    assert ordered(["svgp", "gpr-iterative", "gpr"]) == ["gpr", "gpr-iterative", "svgp"]
