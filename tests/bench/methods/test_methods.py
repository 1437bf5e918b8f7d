"""The methods that come with the benchmark, on data small enough to check by hand."""

from __future__ import annotations

import json
import math
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from nearexact import GPRegressor
from nearexact.bench import methods
from nearexact.bench.analysis.judging import run_verdicts
from nearexact.bench.analysis.points import KEY, tidy
from nearexact.bench.analysis.results import Results, Size
from nearexact.bench.datasets import load_split
from nearexact.bench.methods.sgpr import Witness
from nearexact.bench.protocol import BudgetExhausted
from nearexact.bench.running.clock import TrainingClock
from nearexact.bench.store import COLUMNS
from nearexact.evidence import Evidence
from nearexact.gp import ExactObjective, Training
from nearexact.gp.schedule import inducing_schedule
from nearexact.kernels import SquaredExponential
from tests.bench.helpers import Notes, task
from tests.problems import regression


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


def test_gpr_begins_no_evaluation_that_would_end_after_the_budget() -> None:
    notes = Notes()
    with pytest.raises(BudgetExhausted):
        methods.create("gpr").run(task(budget_seconds=1e-9), notes)
    (call,) = notes.calls  # what the first factorisation gave: that cannot be known to take too long
    assert (call["milestone"], call["cut_short"], call["evaluations"]) == (True, True, 0)


def test_itergp_looks_at_the_clock_inside_a_step() -> None:
    notes, looks = Notes(), iter(range(100))
    problem = task(seconds_left=lambda: 5.5 - next(looks))
    with pytest.raises(BudgetExhausted):
        methods.create("itergp").run(problem, notes)
    assert next(looks) == 7  # six products of its first evaluation were begun, and the time was gone
    assert notes.calls == []


def test_predictions_are_made_though_the_time_is_spent() -> None:
    left, notes = [1.0], Notes(most=1)
    method = methods.create("itergp")

    def report(predict: Any, **given: Any) -> None:
        left[0] = -1.0  # this step was the last
        notes(predict, means=predict(load_split("step", 0).X_test)[0], **given)

    with pytest.raises(BudgetExhausted):
        method.run(task("step", seconds_left=lambda: left[0]), report)
    assert len(notes.calls[0]["means"]) == 30


EVIDENCE = {f"evidence_{part.name}" for part in fields(Evidence)}


@pytest.mark.parametrize(
    ("name", "dataset", "searches"),
    [
        ("sgpr", "step", True), ("sgpr-tight", "step", True), ("gpr", "step", True), ("nearexact", "step", True),
        ("sgpr-paper", "step", False), ("fitc", "step", False),
    ],
)  # fmt: skip
def test_milestones_say_what_speaks_for_their_hyperparameters(name: str, dataset: str, searches: bool) -> None:
    notes, problem = Notes(), task(dataset)
    methods.create(name).run(problem, notes)
    for call in notes.calls:
        assert (call.keys() & EVIDENCE) == (EVIDENCE if searches and call.get("milestone") else set())
    if not searches:
        return
    last = [call for call in notes.calls if call.get("milestone")][-1]
    assert json.loads(json.dumps({key: last[key] for key in EVIDENCE})) == {key: last[key] for key in EVIDENCE}
    n = len(problem.y_train)
    assert last["evidence_rows"] == n  # so few are searched all at once: the likelihoods are comparable
    exact = ExactObjective(SquaredExponential(), 0.1, problem.X_train, problem.y_train)
    kernel = SquaredExponential(last["lengthscales"](), last["variance"]())
    here = exact.factorise(kernel, last["noise_variance"]()).lml
    gain = (last["evidence_likelihood"] - here) / n
    assert last["evidence_gain_per_row"] == pytest.approx(max(gain, 0.0), abs=1e-6)
    assert last["evidence_starts"] >= last["evidence_agreeing"] >= 1


def test_looking_for_evidence_is_on_the_clock_and_takes_a_share_of_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search whose looks take a second each, by a clock that nothing else moves."""
    seconds, given = [0.0], []
    problem = task("step")

    def look(search: Any, theta: Any, limit: float) -> None:
        given.append(limit)
        seconds[0] += 1.0

    training = Training(SquaredExponential(), problem.X_train, problem.y_train)
    monkeypatch.setattr("nearexact.gp.training.evidence_for", look)
    witness = Witness(training, 30.0, TrainingClock(now=lambda: seconds[0]))
    for _ in range(5):
        witness.evidence()
    assert given == [3.0, 2.0, 1.0, 0.0, -1.0]  # with nothing left a look costs two factorisations
    late = TrainingClock(now=lambda: seconds[0])
    seconds[0] += 29.0
    Witness(training, 30.0, late).evidence()
    assert given[-1] == 1.0  # no more than is left of the budget


@pytest.mark.parametrize("rows", [400, 1500])
def test_nearexact_does_what_the_estimator_does(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same way, the same model, the same verdict; 1500 rows do not fit into the memory limit as an exact GP, and
    conjugate gradients are ruled out as they would be for many more rows.
    """
    monkeypatch.setattr("nearexact.gp.affordable.iterative_fits", lambda *_, **__: False)
    rng = np.random.default_rng(0)
    X = rng.uniform(-3.0, 3.0, size=(rows, 1))
    y = np.sin(2.0 * X[:, 0]) + 0.3 * rng.normal(size=rows)
    X, y = (X - X.mean(0)) / X.std(0), (y - y.mean()) / y.std()
    memory, notes = 15_000_000, Notes()
    methods.create("nearexact").run(task(X_train=X, y_train=y, budget_seconds=600.0, memory_limit=memory), notes)
    last = notes.calls[-1]
    model = GPRegressor(time_limit=600.0, memory_limit=memory, random_state=0).fit(X, y)
    assert {call["method_"] for call in notes.calls} == {model.method_}
    assert model.method_ == ("cholesky" if rows == 400 else "sparse")
    assert last["milestone"]
    assert model.certificate_.verdict == ("exact" if rows == 400 else "certified")
    assert last["elbo"] == pytest.approx(model.elbo_, abs=0.01 * rows)
    points = tidy(pd.DataFrame([as_point(k, call) for k, call in enumerate(notes.calls)]))
    results = Results(points, points[[*KEY, "status"]].drop_duplicates(), 0, {"a": Size(rows, 1)}, [])
    (judged,) = run_verdicts(results).itertuples()
    assert judged.verdict == model.certificate_.verdict
    if rows > 400:
        assert last["m"] == len(model.inducing_points_)
        assert last["scheduled_m"] < inducing_schedule(rows, 10_000)[-1]  # it has ended where nothing more is to gain


def test_nearexact_reports_a_bound_and_an_estimate_where_it_takes_conjugate_gradients() -> None:
    X, y = regression(900)
    notes = Notes()
    y = (y - y.mean()) / y.std()
    methods.create("nearexact").run(task(X_train=X, y_train=y, budget_seconds=30.0, memory_limit=18_000_000), notes)
    last = notes.calls[-1]
    assert {call["method_"] for call in notes.calls} <= {"sparse", "iterative"}  # what it has until it has the other
    assert last["method_"] == "iterative"
    assert last["elbo"] == last["lower_bound"] <= last["upper_bound"]
    assert last["elbo"] - 1e-3 <= last["estimate"] <= last["upper_bound"] + 5.0 * last["standard_error"]


def as_point(number: int, call: dict[str, Any]) -> dict[str, Any]:
    """What a report was given as a row of a trace."""
    row = {name: value for name, value in call.items() if not callable(value)}
    key = {"dataset": "a", "method": "nearexact", "seed": 0, "status": "finished"}
    return {**dict.fromkeys(COLUMNS, math.nan), "milestone": False, **row, **key, "elapsed": float(number)}


def test_nearexact_at_given_hyperparameters_is_sparse_or_exact() -> None:
    problem, kernel = task("step"), SquaredExponential([0.5], 1.0)
    method: Any = methods.create("nearexact")
    exact = ExactObjective(kernel, 0.1, problem.X_train, problem.y_train).factorise(kernel, 0.1)
    inputs = problem.X_train[:5]
    for m in (None, len(problem.y_train)):
        mean, variance = method.at(problem, kernel, 0.1, m).predict(inputs)
        np.testing.assert_allclose(mean, exact.predict(inputs)[0], atol=1e-6)
        np.testing.assert_allclose(variance, exact.predict(inputs)[1], atol=1e-6)
    assert method.at(problem, kernel, 0.1, 3).inducing_points.shape == (3, 1)


def test_gpr_refuses_what_does_not_fit() -> None:
    with pytest.raises(MemoryError, match="rows need"):
        methods.create("gpr").run(task(memory_limit=10_000), Notes())


@pytest.mark.parametrize("name", ["sgpr", "gpr", "nearexact"])
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
