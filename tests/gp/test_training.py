"""The growing-M procedure: what it promises about bounds, limits and records."""

from __future__ import annotations

import itertools
import logging
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from nearexact.gp import ExactObjective, NumericalError, Progress, Stage, Training, gpr_objective, sgpr_objective
from nearexact.gp.inducing import select
from nearexact.gp.posterior import SparsePosterior
from nearexact.gp.schedule import ends_early, inducing_schedule
from nearexact.gp.sparse import SparseObjective
from nearexact.gp.stages import StageEnd
from nearexact.gp.starts import with_less_influence
from nearexact.kernels import ArcCosine, Linear, Matern12, SquaredExponential
from nearexact.noise_only import explains_nothing
from nearexact.scaling import Scaling
from tests.problems import KERNELS, many_inputs, regression, standardised
from tests.tensors import Allocations


@pytest.mark.parametrize(
    ("n", "max_inducing", "expected", "last"),
    [
        (5, 10_000, [5], 5),
        (12, 10_000, [12], 12),
        (12, 4, [4], 4),
        (13, 10_000, [10], 13),
        (200, 10_000, [10, 20, 50, 100], 200),
        (200, 180, [10, 20, 50, 100], 180),
        (200, 60, [10, 20, 50, 60], 60),
        (200, 7, [7], 7),
        (200, 50, [10, 20, 50], 50),
        (10**6, 10_000, [10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000], 10_000),
        (10**6, 3000, [10, 20, 50, 100, 200, 500, 1000, 2000, 3000], 3000),
    ],
)
def test_schedule(n: int, max_inducing: int, expected: list[int], last: int) -> None:
    assert inducing_schedule(n, max_inducing) == expected
    assert inducing_schedule(n, max_inducing, to_all=True) == [*(m for m in expected if m < last), last]


@pytest.mark.parametrize(
    ("n", "max_inducing", "early"),
    [
        (12, 12, False),
        (12, 10, True),
        (200, 10_000, False),
        (200, 100, False),
        (200, 150, False),  # 0.8 N would have ended it at 100
        (200, 60, True),
        (12_500, 10_000, False),
        (12_502, 10_000, True),
    ],
)
def test_when_max_inducing_is_to_blame(n: int, max_inducing: int, early: bool) -> None:
    assert ends_early(n, max_inducing) is early
    assert ends_early(n, max_inducing, to_all=True) is (max_inducing < n)


@pytest.mark.parametrize(("procedure", "bound"), [("paper", "elbo"), ("robust", "elbo"), ("robust", "tight")])
@pytest.mark.parametrize(
    "name",
    [
        "squared_exponential",
        "matern12",
        "arc_cosine_1",
        "sum",
        pytest.param("rational_quadratic", marks=pytest.mark.slow),
    ],
)
def test_stages_hold_true_bounds_of_their_hyperparameters(procedure: str, bound: str, name: str) -> None:
    X, y = standardised(60)
    training = Training(KERNELS[name], X, y, procedure=procedure, bound=bound, seed=0, max_inducing=20)
    training.run()
    assert [stage.scheduled_m for stage in training.history] == [10, 20]
    for stage in training.history:
        exact = gpr_objective(stage.kernel, stage.noise_variance, X, y).factorise(stage.kernel, stage.noise_variance)
        assert stage.elbo - 1e-6 <= stage.lower_bound <= exact.lml + 1e-6
        if bound == "tight":
            assert stage.elbo == pytest.approx(stage.lower_bound, abs=1e-6)
        assert stage.upper_bound >= exact.lml - 1e-6
        assert stage.evaluations > 2
        assert stage.reselections >= 1
    assert training.bounds()[0] == max(stage.elbo for stage in training.history)
    bounds = training.likelihood_bounds()
    assert bounds.upper == training.bounds()[1]
    assert bounds.elbo <= bounds.lower + 1e-9


def test_the_tight_bound_is_maximised_by_itself() -> None:
    """The tight bound at its own optimum is at least the tight bound at the optimum of the ELBO."""
    X, y = standardised(80)
    reached = {}
    for bound in ("elbo", "tight"):
        training = Training(Matern12(), X, y, bound=bound, seed=0, max_inducing=10)
        training.run()
        reached[bound] = training.likelihood_bounds()
    assert reached["tight"].lower > reached["elbo"].lower + 0.1
    assert reached["tight"].elbo < reached["elbo"].elbo
    with pytest.raises(ValueError, match='bound must be "elbo" or "tight", got \'upper\''):
        Training(Matern12(), X, y, bound="upper")


def test_paper_procedure_is_algorithm_1() -> None:
    """The algorithm written out with public functions; both break ties by the same random numbers."""
    from nearexact.gp import greedy_variance, minimise

    X, y = standardised(120)
    kernel, seeds = SquaredExponential(), np.random.default_rng(7)
    seeds.permutation(len(X))  # the training takes one for the model that it falls back to
    expected = []
    for m in (10, 20, 50):
        current = kernel
        Z = X[greedy_variance(current, X, m, seed=int(seeds.integers(2**63)))]
        noise = 0.01
        for _ in range(20):
            objective = sgpr_objective(current, noise, X, y, Z)
            current, noise = objective.layout.unpack(minimise(objective, objective.theta0).theta)
            elbo = objective.factorise(current, noise).elbo
            again = X[greedy_variance(current, X, m, seed=int(seeds.integers(2**63)))]
            reselected = sgpr_objective(current, noise, X, y, again).factorise(current, noise).elbo
            if reselected < elbo:
                break
            Z = again
        expected.append(elbo)
    training = Training(kernel, X, y, procedure="paper", max_inducing=50, seed=7)
    training.run()
    assert [stage.elbo for stage in training.history] == pytest.approx(expected, rel=1e-6)


def test_robust_leaves_the_noise_trap_that_the_paper_records() -> None:
    X, y = many_inputs(200, 20)
    runs = {}
    for procedure in ("paper", "robust"):
        training = runs[procedure] = Training(SquaredExponential(), X, y, procedure=procedure, max_inducing=20, seed=0)
        training.run()
    paper, robust = runs["paper"].history, runs["robust"].history
    assert all(explains_nothing(stage.elbo, runs["paper"].noise_only, 200) for stage in paper)
    assert all(stage.rescues == 0 for stage in paper)
    assert not any(explains_nothing(stage.elbo, runs["robust"].noise_only, 200) for stage in robust)
    assert robust[0].rescues == 2  # the search's θ, the usual start and the smoother one


@pytest.mark.parametrize("seed", range(2))
def test_robust_bounds_never_fall(seed: int) -> None:
    for X, y in (many_inputs(150, 20, seed), standardised(100, seed, d=8)):
        training = Training(SquaredExponential(), X, y, seed=seed, max_inducing=50)
        training.run()
        lowers = [stage.lower_bound for stage in training.history]
        assert all(a <= b for a, b in itertools.pairwise(lowers))
        assert training.likelihood_bounds().lower == lowers[-1]


@pytest.mark.parametrize("seed", [0, 2])
def test_what_rounding_leaves_unproved_replaces_nothing(seed: int) -> None:
    """A function without noise: now and then an ELBO is far higher than before where nothing at all is proved."""
    rng = np.random.default_rng(seed)
    X = np.round(20.0 * np.abs(rng.normal(size=(300, 6))))
    y = np.log1p(X[:, 0] + X[:, 1])
    X[:, 2] = np.round(3.0 * y)
    X, y = Scaling.of(X).apply(X), Scaling.of(y).apply(y)
    training = Training(SquaredExponential(), X, y, seed=seed, inducing=[5, 10, 15, 20, 30])
    training.run()
    lowers = [stage.lower_bound for stage in training.history]
    assert -math.inf < lowers[0]
    assert all(a <= b for a, b in itertools.pairwise(lowers))
    assert training.likelihood_bounds().lower == lowers[-1]


def test_few_points_use_them_all_and_are_exact() -> None:
    X, y = standardised(9)
    training = Training(SquaredExponential(), X, y, seed=0)
    training.run()
    (stage,) = training.history
    assert stage.m == stage.scheduled_m == 9
    assert stage.elbo == pytest.approx(stage.upper_bound, abs=1e-4)


def test_growth_ends_where_further_points_would_be_copies() -> None:
    rng = np.random.default_rng(0)
    X = rng.integers(0, 5, size=(300, 2)).astype(float)  # 25 different rows
    y = np.sin(X).sum(1) + 0.1 * rng.normal(size=300)
    training = Training(SquaredExponential(), X, y - y.mean(), seed=0)
    training.run()
    assert training.history[-1].scheduled_m == 50
    assert training.history[-1].m <= 25
    assert training.history[-1].ended == "no variance left"


def test_a_stage_may_end_the_training() -> None:
    def stop(stage: Stage, _: SparsePosterior) -> str | None:
        return "good enough" if stage.m == 20 else None

    X, y = standardised(200)
    training = Training(SquaredExponential(), X, y, seed=0, on_stage=stop)
    training.run()
    assert [stage.ended for stage in training.history] == ["", "good enough"]


def test_steps_can_predict_on_the_way() -> None:
    X, y = standardised(100)
    seen: list[tuple[int, float]] = []

    def look(progress: Progress) -> None:
        if len(seen) < 5:
            mean, _ = progress.posterior().predict(X)
            seen.append((progress.m, float((mean - torch.tensor(y)).square().mean())))

    training = Training(SquaredExponential(), X, y, seed=0, max_inducing=10, on_step=look)
    training.run()
    quiet = Training(SquaredExponential(), X, y, seed=0, max_inducing=10)
    quiet.run()
    assert seen[0][0] == 10
    assert seen[-1][1] < 1.0
    assert quiet.history[0].elbo == training.history[0].elbo  # looking changes nothing


def test_same_seed_same_model_and_a_log(caplog: pytest.LogCaptureFixture) -> None:
    X, y = standardised(100)
    with caplog.at_level(logging.INFO, logger="nearexact"):
        runs = [Training(SquaredExponential(), X, y, seed=3, max_inducing=20) for _ in range(2)]
        for run in runs:
            run.run()
    assert runs[0].best.rows.tolist() == runs[1].best.rows.tolist()
    assert runs[0].bounds() == runs[1].bounds()
    assert any("M=20: ELBO" in message for message in caplog.messages)


# ---- limits ----------------------------------------------------------------------------------------------------------


class FakeClock:
    """Time passes only in evaluations: m² seconds with a gradient, half as much without, and for a selection."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self.evaluation = 0.0  # what the last evaluation took, or would have with a gradient
        value_and_gradient, factorise = SparseObjective.value_and_gradient, SparseObjective.factorise

        def slow_factorise(objective: SparseObjective, *args: object, **options: object) -> object:
            self._pass(len(objective.Z) ** 2 / 2)
            return factorise(objective, *args, **options)  # type: ignore[arg-type]

        def slow_gradient(objective: SparseObjective, *args: object) -> object:
            self._pass(len(objective.Z) ** 2 / 2)  # and factorise is called inside
            return value_and_gradient(objective, *args)  # type: ignore[arg-type]

        monkeypatch.setattr(SparseObjective, "factorise", slow_factorise)
        monkeypatch.setattr(SparseObjective, "value_and_gradient", slow_gradient)
        monkeypatch.setattr("nearexact.gp.rows.select", self.slow_select)

    def slow_select(self, kernel: object, X: object, m: int, **options: object) -> object:
        self.now += m**2 / 2
        return select(kernel, X, m, **options)  # type: ignore[arg-type]

    def _pass(self, seconds: float) -> None:
        self.now += seconds
        self.evaluation = 2.0 * seconds


@pytest.mark.parametrize("procedure", ["paper", "robust"])
@pytest.mark.parametrize("limit", [0.01, 60.0, 130.0, 300.0, 5000.0, 20_000.0, 70_000.0])
def test_time_limit_is_kept_within_one_evaluation(
    procedure: str, limit: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = FakeClock(monkeypatch)
    X, y = standardised(150)
    training = Training(
        SquaredExponential(), X, y, procedure=procedure, seed=0, time_limit=limit, clock=lambda: clock.now
    )
    training.run()
    assert clock.now <= limit + clock.evaluation + 1.0
    assert training.history[-1].ended == "time limit"
    assert math.isfinite(training.bounds()[0])
    assert torch.isfinite(training.posterior().predict(X)[0]).all()
    if limit >= 5000.0:
        assert clock.now > 0.5 * limit  # and it is not given up long before


def test_more_time_never_gives_a_worse_model(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = FakeClock(monkeypatch)
    X, y = standardised(150)
    elbos = []
    for limit in (1e3, 1e4, 1e5, 1e6):
        clock.now = 0.0
        training = Training(SquaredExponential(), X, y, seed=0, time_limit=limit, clock=lambda: clock.now)
        training.run()
        elbos.append(training.bounds()[0])
    assert elbos == sorted(elbos)


def test_selection_is_given_up_between_blocks() -> None:
    X, _ = regression(2000)
    calls = itertools.count()

    def third_time() -> None:
        if next(calls) == 2:
            raise TimeoutError

    with pytest.raises(TimeoutError):
        select(SquaredExponential(), X, 500, seed=0, between_blocks=third_time)
    assert next(calls) == 3


@pytest.mark.parametrize(
    "limit", ["10MB", pytest.param("14MB", marks=pytest.mark.slow), pytest.param("17MB", marks=pytest.mark.slow)]
)
def test_memory_limit_caps_m_and_holds(limit: str) -> None:
    X, y = standardised(2000)
    inputs, targets = torch.tensor(X), torch.tensor(y)
    with Allocations() as allocations:
        training = Training(SquaredExponential(), inputs, targets, seed=0, memory_limit=limit, max_inducing=500)
        training.run()
    assert training.history[-1].ended in ("memory limit", "no variance left")
    assert 10 <= training.history[-1].m < 500
    assert allocations.peak_bytes <= training.budget.memory


@pytest.mark.parametrize("procedure", ["paper", "robust"])
def test_memory_limit_holds_where_models_are_kept_and_starts_repeated(procedure: str) -> None:
    """M is not small against N here, and every M needs its rescues: models of size M² are what counts."""
    X, y = many_inputs(300, 20)
    inputs, targets = torch.tensor(X), torch.tensor(y)
    limit = Training(SquaredExponential(), inputs, targets).budget.memory_of(100)
    with Allocations() as allocations:
        training = Training(
            SquaredExponential(), inputs, targets, seed=0, memory_limit=limit, procedure=procedure, max_inducing=100
        )
        training.run()
    assert training.history[-1].m == 100
    assert allocations.peak_bytes <= limit


def fail_where(fails: Callable[[int], bool], error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the factorisation fail for these numbers of inducing points."""
    factorise = SparseObjective.factorise

    def fragile(objective: SparseObjective, *args: object, **options: object) -> object:
        if fails(len(objective.Z)):
            raise error
        return factorise(objective, *args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(SparseObjective, "factorise", fragile)


def test_running_out_of_memory_keeps_what_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    error = RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes")
    fail_where(lambda m: m > 20, error, monkeypatch)
    X, y = standardised(200)
    training = Training(SquaredExponential(), X, y, seed=0)
    training.run()
    assert [stage.m for stage in training.history] == [10, 20]
    assert training.history[-1].ended == "memory limit"


@pytest.mark.parametrize("broken", [10, 20, 50, 100])
def test_an_m_that_cannot_be_computed_is_passed_over(broken: int, monkeypatch: pytest.MonkeyPatch) -> None:
    fail_where(lambda m: m == broken, NumericalError("no luck"), monkeypatch)
    X, y = standardised(200)
    training = Training(SquaredExponential(), X, y, seed=0)
    training.run()
    failed = [stage.scheduled_m for stage in training.history if stage.end is StageEnd.FAILED]
    assert failed == ([] if broken == 10 else [broken])  # before there is any model, only the log can tell
    assert training.bounds()[0] == training.history[-1].elbo == max(stage.elbo for stage in training.history)
    assert not any(stage.complete for stage in training.history if stage.scheduled_m == broken)


@pytest.mark.parametrize("at", [3, 40, 90])
@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan, None])
def test_a_freak_evaluation_is_never_the_best(value: float | None, at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    evaluate, calls = SparseObjective.__call__, itertools.count(1)

    def freak(objective: SparseObjective, theta: np.ndarray) -> tuple[float, np.ndarray]:
        if next(calls) == at:
            if value is None:
                raise NumericalError("once")
            return value, np.zeros_like(theta)
        return evaluate(objective, theta)

    monkeypatch.setattr(SparseObjective, "__call__", freak)
    X, y = standardised(60)
    training = Training(SquaredExponential(), X, y, seed=0, max_inducing=20)
    training.run()
    assert next(calls) > at  # it has happened
    assert training.bounds()[0] == training.history[-1].elbo
    assert training.bounds()[0] <= training.bounds()[1] + 1e-6


def test_selecting_the_same_points_again_is_enough() -> None:
    """A linear kernel of three inputs needs four points, and always the same ones."""
    X, y = standardised(100)
    training = Training(Linear(), X, y, seed=0, max_inducing=10)
    training.run()
    assert training.history[0].reselections <= 3


def test_too_little_memory_for_anything_is_said_at_once() -> None:
    X, y = standardised(1000)
    with pytest.raises(ValueError, match=r"10 inducing points for 1000 rows need .* MB, but the memory limit is 0.1"):
        Training(SquaredExponential(), X, y, memory_limit="100kB")


# ---- starts ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "kernel", [SquaredExponential(), ArcCosine(1), Linear(), SquaredExponential() + ArcCosine(0) * Linear()], ids=str
)
def test_less_influence_is_inputs_divided_by_the_root_of_their_number(kernel: object) -> None:
    X, y = standardised(20)
    objective = sgpr_objective(kernel, 0.01, X, y, X)  # type: ignore[arg-type]
    changed, noise = objective.layout.unpack(with_less_influence(objective.layout, objective.theta0))
    assert noise == pytest.approx(0.01)
    np.testing.assert_allclose(changed(X), kernel.for_inputs(3)(X / np.sqrt(3.0)), atol=1e-9)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"procedure": "best"}, 'procedure must be "robust" or "paper", got \'best\''),
        ({"max_inducing": 0}, "max_inducing must be a whole number from 1 to 10000, got 0"),
        ({"max_inducing": 10_001}, "max_inducing must be a whole number from 1 to 10000, got 10001"),
        ({"max_inducing": 10.5}, "max_inducing must be a whole number"),
        ({"max_inducing": True}, "max_inducing must be a whole number"),
    ],
)
def test_wrong_arguments_are_named(arguments: dict[str, object], message: str) -> None:
    X, y = standardised(30)
    with pytest.raises(ValueError, match=message):
        Training(SquaredExponential(), X, y, **arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize("procedure", ["paper", "robust"])
def test_a_list_of_m_is_gone_through_to_its_end_and_with_all_points_the_bounds_meet(procedure: str) -> None:
    X, y = regression(60)
    training = Training(SquaredExponential(), X, y, procedure=procedure, inducing=[2, 7, 60], seed=0)
    training.run()
    assert [stage.scheduled_m for stage in training.history] == [2, 7, 60]
    assert training.history[-1].ended == "schedule"
    last = training.history[-1]
    exact = ExactObjective(last.kernel, last.noise_variance, X, y).factorise(last.kernel, last.noise_variance).lml
    assert last.elbo == pytest.approx(exact, abs=1e-4)
    assert last.upper_bound == pytest.approx(exact, abs=1e-4)


@pytest.mark.parametrize("wrong", [[], [3, 2], [2, 2], [0, 1], [61], [1.5], [True, 3], "12", 5])
def test_a_wrong_list_of_m_is_explained(wrong: Any) -> None:
    X, y = regression(60)
    with pytest.raises(ValueError, match=r"growing whole numbers from 1 to the number of rows, 60, got"):
        Training(SquaredExponential(), X, y, inducing=wrong)
