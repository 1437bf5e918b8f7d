"""The methods that come with the benchmark, on data small enough to check by hand."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from nearexact.bench import methods
from nearexact.bench.datasets import load_split
from nearexact.bench.protocol import BudgetExhausted
from tests.bench.helpers import Notes, task


def test_mean_and_linear_are_the_textbook_ones() -> None:
    data, problem = load_split("diabetes", 0), task()
    for name in ("mean", "linear"):
        notes = Notes()
        methods.create(name).run(problem, notes)
        (call,) = notes.calls
        assert call["milestone"]
        mean, variance = call["predict"](data.X_test)
        if name == "mean":
            np.testing.assert_allclose(mean, 0.0, atol=1e-9)
            assert call["elbo"] == pytest.approx(-0.5 * len(data.y_train) * (math.log(2 * math.pi) + 1.0))
        else:
            design = np.column_stack([np.ones(len(data.y_train)), data.X_train])
            weights = np.linalg.solve(design.T @ design, design.T @ data.y_train)
            np.testing.assert_allclose(mean, np.column_stack([np.ones(len(data.X_test)), data.X_test]) @ weights)
            residual = data.y_train - design @ weights
            np.testing.assert_allclose(variance, residual.var())
            density = -0.5 * np.log(2 * np.pi * residual.var()) - 0.5 * residual**2 / residual.var()
            assert call["elbo"] == pytest.approx(density.sum())


def test_linear_copes_with_collinear_and_constant_columns() -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(50, 2))
    y = X[:, 0] - X[:, 1]
    inputs = np.column_stack([X, X[:, 0], X.sum(1), np.zeros(50)])
    notes = Notes()
    methods.create("linear").run(task(X_train=inputs, y_train=y), notes)
    mean, variance = notes.calls[0]["predict"](inputs)
    np.testing.assert_allclose(mean, y, atol=1e-8)
    assert (variance > 0.0).all()


@pytest.mark.parametrize("name", ["sgpr", "sgpr-paper", "sgpr-tight"])
def test_sgpr_marks_each_m_and_goes_on_after_near_exactness(name: str) -> None:
    notes = Notes()
    methods.create(name).run(task("step"), notes)
    milestones = [call for call in notes.calls if call.get("milestone")]
    assert [call["scheduled_m"] for call in milestones] == [10, 20, 50, 100]
    assert all(call["elbo"] <= call["lower_bound"] + 1e-6 for call in milestones)
    assert all(call["lower_bound"] <= call["upper_bound"] + 1e-6 for call in milestones)
    if name == "sgpr-tight":
        assert all(call["elbo"] == pytest.approx(call["lower_bound"], abs=1e-6) for call in milestones)
    flops = [call["flops"] for call in notes.calls]
    assert flops == sorted(flops)
    assert flops[0] > 0.0
    assert milestones[0]["flops"] >= 5.0 * 10**2 * 170 * (
        milestones[0]["evaluations"] - 2 * milestones[0]["reselections"] - 1
    )
    data = load_split("step", 0)
    mean, variance = milestones[-1]["predict"](data.X_test)
    assert np.mean((mean - data.y_test) ** 2) < 0.1
    assert (variance >= milestones[-1]["noise_variance"]()).all()


def test_gpr_reports_its_likelihood_as_both_bounds() -> None:
    notes = Notes()
    methods.create("gpr").run(task(), notes)
    assert notes.calls[-1]["milestone"]
    assert all(call["elbo"] == call["upper_bound"] for call in notes.calls)
    assert notes.calls[-1]["lower_bound"] == notes.calls[-1]["elbo"]
    assert len(notes.calls) > 5


def test_gpr_refuses_what_does_not_fit() -> None:
    with pytest.raises(MemoryError, match="rows need"):
        methods.create("gpr").run(task(memory_limit=10_000), Notes())


@pytest.mark.parametrize("name", ["sgpr", "gpr"])
def test_the_budget_passes_through(name: str) -> None:
    with pytest.raises(BudgetExhausted):
        methods.create(name).run(task(), Notes(most=3))


def test_methods_are_found_by_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    from importlib.metadata import EntryPoint, EntryPoints

    points = EntryPoints([EntryPoint("steps", "tests.bench.plugins:Steps", "nearexact.methods")])
    monkeypatch.setattr("nearexact.bench.methods.entry_points", lambda group: points.select(group=group))
    assert methods.names()[-1] == "steps"
    assert methods.create("steps", {"steps": 3}).steps == 3  # type: ignore[attr-defined]


def test_a_plugin_may_import_what_lies_next_to_it(tmp_path: Path) -> None:
    (tmp_path / "neighbour_of_plugin.py").write_text("NAME = 'from next door'\n")
    (tmp_path / "method.py").write_text(
        "from neighbour_of_plugin import NAME\n\nclass Plugin:\n    name = NAME\n    def run(self, task, report): ...\n"
    )
    assert methods.create(f"{tmp_path / 'method.py'}:Plugin").name == "from next door"


def test_an_entry_point_that_cannot_be_imported_is_a_plain_error(monkeypatch: pytest.MonkeyPatch) -> None:
    from importlib.metadata import EntryPoint, EntryPoints

    points = EntryPoints([EntryPoint("gone", "no_such_package:Method", "nearexact.methods")])
    monkeypatch.setattr("nearexact.bench.methods.entry_points", lambda group: points.select(group=group))
    with pytest.raises(ValueError, match=r"'gone' .* cannot be imported"):
        methods.create("gone")


def test_fitc_grows_m_and_gives_no_bound() -> None:
    notes = Notes()
    methods.create("fitc").run(task("step"), notes)
    milestones = [call for call in notes.calls if call.get("milestone")]
    assert [call["scheduled_m"] for call in milestones][:3] == [10, 20, 50]
    assert all(math.isnan(call["upper_bound"]) for call in milestones)


@pytest.mark.data("elevators")
@pytest.mark.parametrize("seed", [0, 2])  # where a direction that hardly varies in training does in the test part
def test_linear_stays_sane_on_elevators(seed: int) -> None:
    data, notes = load_split("elevators", seed), Notes()
    methods.create("linear").run(task("elevators", X_train=data.X_train, y_train=data.y_train), notes)
    mean, variance = notes.calls[0]["predict"](data.X_test)
    assert np.sqrt(np.mean((mean - data.y_test) ** 2)) < 0.6
    assert -notes.calls[0]["elbo"] == pytest.approx(9928.0, rel=0.01)  # published
    assert variance[0] > 0.1
