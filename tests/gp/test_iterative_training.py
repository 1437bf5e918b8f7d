"""Training by conjugate gradients: it finds what the exact GP finds, keeps limits, and has a model at any time."""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np
import pytest

from nearexact.evidence import STANDARD_ERRORS
from nearexact.gp import (
    gpr_objective,
    iterative_cost,
    iterative_plan,
    iterative_training,
    minimise,
    other_starts,
)
from nearexact.gp.climbs import FIRST_STEPS, PATIENCE, SETTLED, STALE, STALE_ITERATIONS
from nearexact.gp.column_solver import MOST_ITERATIONS
from nearexact.gp.iterative import Estimate, IterativeObjective
from nearexact.gp.iterative_cost import iterative_fits
from nearexact.gp.iterative_posterior import IterativePosterior
from nearexact.gp.iterative_training import IterativeTraining
from nearexact.gp.optimise import OptimiserEnd
from nearexact.gp.posterior import ExactPosterior, SparsePosterior
from nearexact.gp.rounding import MOST_LOST, lost_share
from nearexact.gp.row_blocks import RowBlocks
from nearexact.gp.safety import NumericalError
from nearexact.gp.search import Search
from nearexact.gp.stages import Progress, StageEnd, TrainingEnd
from nearexact.kernels import Kernel, SquaredExponential
from nearexact.typing import FloatArray
from tests.problems import many_inputs, standardised

N = 300


def rough(n: int = N, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """A function of two inputs with details that a few points do not show."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2.0, 2.0, size=(n, 2))
    y = np.sin(5.0 * X[:, 0]) * np.cos(4.0 * X[:, 1]) + 0.1 * rng.normal(size=n)
    return X, (y - y.mean()) / y.std()


class Clock:
    """One second for each time that it is asked."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


@pytest.fixture(scope="module")
def trained() -> IterativeTraining:
    training = IterativeTraining(SquaredExponential(), *rough(), seed=0)
    training.run()
    return training


@contextmanager
def few_rows_given() -> Iterator[None]:
    """Blocks are taken with few rows, too, where points are cheap."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(iterative_cost, "FEWEST_BLOCKS", 0)
        patch.setattr(iterative_plan, "FEW_ITERATIONS", 0.0)
        patch.setattr(iterative_plan, "TRIAL", 10.0)
        patch.setattr(iterative_cost, "GIVEN", 24)
        patch.setattr(iterative_cost, "BLOCK_POINTS", 50)
        yield


@pytest.fixture(scope="module")
def trained_by_blocks() -> IterativeTraining:
    with few_rows_given():
        training = IterativeTraining(SquaredExponential(), *rough(), seed=0)
        training.run()
    assert training._plan.cost.given == 24
    return training


@pytest.fixture(params=["trained", "trained_by_blocks"])
def either(request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue(request.param)


def exact_lml(training: IterativeTraining) -> float:
    posterior = training.posterior()
    objective = gpr_objective(posterior.kernel, posterior.noise_variance, training.X, training.y)
    return objective.factorise(posterior.kernel, posterior.noise_variance).lml


def assert_exact(training: IterativeTraining) -> None:
    """Predictions are those of the exact GP at the same θ."""
    posterior = training.posterior()
    assert isinstance(posterior, IterativePosterior)
    exact = gpr_objective(posterior.kernel, posterior.noise_variance, training.X, training.y).factorise(
        posterior.kernel, posterior.noise_variance
    )
    X_new = rough(100, seed=3)[0]
    (mean, variance), (expected, expected_variance) = posterior.predict(X_new), exact.predict(X_new)
    assert np.allclose(mean, expected, atol=1e-4)
    assert float((variance / expected_variance - 1.0).abs().median()) <= 0.01


def test_few_evaluations_with_new_probes_confirm_an_optimum_and_say_what_is_left(either: IterativeTraining) -> None:
    leader = either._leader
    assert leader is not None
    assert leader.is_settled
    assert leader.evaluations <= PATIENCE  # else patience has ended it
    assert leader.left_to_gain > 0.0


def test_it_ends_at_an_optimum_of_the_exact_likelihood(either: IterativeTraining) -> None:
    posterior = either.posterior()
    objective = gpr_objective(posterior.kernel, posterior.noise_variance, either.X, either.y)
    best = either.search.candidates[0].likelihood  # of all rows, as they are few
    assert either.history[-1].ended == TrainingEnd.OPTIMUM_FOUND
    estimate = either.estimate()
    assert estimate is not None
    assert -objective(objective.theta0)[0] >= best - max(estimate.standard_error, 1e-3 * N)


def test_the_estimate_its_error_and_the_bounds_are_consistent(either: IterativeTraining) -> None:
    estimate, truth = either.estimate(), exact_lml(either)
    assert estimate is not None
    assert abs(estimate.value - truth) <= 6.0 * estimate.standard_error + 1e-4 * N
    bounds = either.likelihood_bounds()
    assert bounds.lower - 1e-6 <= truth <= bounds.upper + 1e-6
    assert either.bounds() == (estimate.value, bounds.upper)
    assert bounds.residual_gap <= 1e-6


def test_what_is_proved_comes_near_the_likelihood_and_bounds_the_estimate_too(either: IterativeTraining) -> None:
    bounds, exact, estimate = either.likelihood_bounds(), exact_lml(either), either.estimate()
    assert exact - 1e-3 * N <= bounds.lower <= exact + 1e-6
    assert estimate is not None
    assert estimate.value >= bounds.lower
    assert either.bounds()[0] >= bounds.lower


def test_the_posterior_is_that_of_the_exact_gp(either: IterativeTraining) -> None:
    assert_exact(either)


def test_evidence_says_that_the_likelihood_of_all_rows_no_longer_rises(either: IterativeTraining) -> None:
    evidence, estimate = either.evidence(), either.estimate()
    assert evidence is not None
    assert evidence.rows == N
    assert evidence.agreeing >= 2
    assert evidence.gain_per_row is not None
    assert estimate is not None
    hidden = STANDARD_ERRORS * estimate.standard_error / N  # what the noise of the estimate may hide
    assert hidden <= evidence.gain_per_row <= hidden + max(estimate.standard_error / N, SETTLED)


def two_scales(rows: int) -> tuple[np.ndarray, np.ndarray]:
    """A smooth function of one input, and fast details of another, which no smooth start finds."""
    random = np.random.default_rng(0)
    X = random.normal(size=(rows, 3))
    y = np.sin(X[:, 1]) + 0.6 * np.sin(12.0 * X[:, 0]) + 0.05 * random.normal(size=rows)
    return X, (y - y.mean()) / y.std()


@pytest.mark.parametrize("rows", [pytest.param(300, marks=pytest.mark.slow), 500])
def test_a_better_optimum_than_that_of_the_first_start_is_found_and_takes_its_place(
    rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Training has begun from what is smooth; the best of the search, and its rivals, are followed all the same."""

    def smooth(search: Search, *_: object) -> FloatArray:
        return search.layout.pack(SquaredExponential([30.0, 1.0, 30.0]), 0.3)

    monkeypatch.setattr(iterative_training, "best_with_all_rows", smooth)
    monkeypatch.setattr(iterative_training, "SEARCH_ROWS", 300)
    training = IterativeTraining(SquaredExponential(), *two_scales(rows), seed=0)
    training.run()
    assert training.history[0].objective < training.history[-1].objective - 0.3 * rows
    objective = gpr_objective(SquaredExponential(), 0.1, training.X, training.y)
    best = -minimise(objective, training._held().theta).value
    assert exact_lml(training) >= best - 0.005 * rows
    assert training.history[-1].ended == TrainingEnd.OPTIMUM_FOUND
    evidence = training.evidence()
    assert evidence is not None
    assert evidence.gain_per_row is not None
    assert evidence.agreeing >= 2  # starts of the search


def test_without_time_for_other_starts_nothing_speaks_for_the_best(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(iterative_training, "SEARCH_ROWS", 300)
    monkeypatch.setattr(other_starts, "DETAILS_SHARE", -1.0)
    training = IterativeTraining(SquaredExponential(), *two_scales(500), seed=0)
    training.run()
    assert training.history[-1].ended == TrainingEnd.TIME_LIMIT
    evidence = training.evidence()
    assert evidence is not None
    assert evidence.gain_per_row is None


def test_the_record_tells_of_every_round(trained: IterativeTraining) -> None:
    assert [stage.ended for stage in trained.history[:-1]] == [""] * (len(trained.history) - 1)
    assert all(stage.complete and stage.evaluations and stage.n == N for stage in trained.history)
    assert trained.history[-1].objective == trained.bounds()[0]
    assert trained.flops > 0.0


@pytest.mark.parametrize("limit", [1.0, 100.0, 300.0])
def test_a_time_limit_is_kept_and_leaves_a_model(limit: float) -> None:
    clock = Clock()
    training = IterativeTraining(SquaredExponential(), *rough(), time_limit=limit, seed=0, clock=clock)
    training.run()
    assert training.timer.seconds() <= limit + 60.0  # what goes on between two looks at the clock, and the first model
    assert training.history[-1].ended == TrainingEnd.TIME_LIMIT
    mean, variance = training.posterior().predict(rough(5, seed=3)[0])
    assert mean.isfinite().all()
    assert (variance > 0.0).all()
    evidence = training.evidence()
    assert training.estimate() is None or (evidence is not None and evidence.gain_per_row is None)


@pytest.mark.parametrize("how", ["points", "blocks", "points instead of blocks"])
def test_without_time_for_evaluations_it_is_the_exact_gp_at_the_theta_of_the_search(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(iterative_plan, "FEWEST_EVALUATIONS", 1e12)
    monkeypatch.setattr(iterative_training, "SEARCH_ROWS", 100)
    failed: list[int] = []

    def fail(*_: Any) -> None:
        failed.append(1)
        raise NumericalError("no factor")

    if how == "points instead of blocks":
        monkeypatch.setattr(RowBlocks, "factors", fail)
    with nullcontext() if how == "points" else few_rows_given():
        training = IterativeTraining(SquaredExponential(), *rough(), time_limit=1e6, seed=0)
        training.run()
    assert len(failed) == (how == "points instead of blocks")
    assert (training._plan.cost.given > 0) == (how == "blocks")
    assert training.estimate() is None
    assert training.history[-1].ended == TrainingEnd.TIME_LIMIT
    bounds = training.likelihood_bounds()
    assert bounds.lower - 1e-6 <= exact_lml(training) <= bounds.upper + 1e-6
    assert bounds.residual_gap <= 1e-6
    assert_exact(training)
    evidence = training.evidence()  # the optimum of a subset says nothing about that of all rows
    assert evidence is not None
    assert evidence.rows == 100
    assert evidence.gain_per_row is None


def test_a_factor_takes_the_place_of_one_solution_where_there_is_time_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(iterative_plan, "FEWEST_EVALUATIONS", 1e12)
    monkeypatch.setattr(iterative_plan, "FACTORISATIONS", math.inf)  # none is planned
    training = IterativeTraining(SquaredExponential(), *rough(), time_limit=1e6, seed=0, factorises=True)
    training.run()
    assert isinstance(training.posterior(), ExactPosterior)
    assert training.history[-1].ended == TrainingEnd.TIME_LIMIT


def test_a_step_to_where_iterations_are_many_is_cut_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """The optimiser then takes a shorter one, and goes on."""
    iterations: list[int | None] = []
    evaluate = IterativeObjective.evaluate

    def recording(self: IterativeObjective, kernel: Kernel, noise_variance: float) -> Any:
        iterations.append(None)
        found = evaluate(self, kernel, noise_variance)
        iterations[-1] = found[0].iterations
        return found

    monkeypatch.setattr(IterativeObjective, "evaluate", recording)
    monkeypatch.setattr(iterative_plan, "MORE_ITERATIONS", 1)
    monkeypatch.setattr(iterative_plan, "FEW_MORE", 1)
    start = SquaredExponential([0.6, 0.6]), 0.3
    limits = {"search_limit": 0.0, "max_inducing": 50, "time_limit": 2.0}
    training = IterativeTraining(SquaredExponential(), *rough(), seed=0, start=start, **limits)  # type: ignore[arg-type]
    training.run()
    cut = iterations.index(None)
    assert any(later is not None for later in iterations[cut:])
    assert exact_lml(training) > training.history[0].lower_bound


def test_before_the_first_evaluation_there_is_a_sparse_gp_at_the_theta_of_the_search() -> None:
    training = IterativeTraining(SquaredExponential(), *rough(), seed=0)
    training.search.run()
    assert isinstance(training.posterior(), SparsePosterior)
    kernel, noise = training.layout.unpack(training.search.candidates[0].theta)
    assert training.posterior().kernel == kernel
    assert training.posterior().noise_variance == noise
    assert training.estimate() is None


def test_ctrl_c_keeps_the_best_model_so_far() -> None:
    steps: list[float] = []

    def after_step(progress: Progress) -> None:
        if isinstance(training.posterior(), IterativePosterior):
            steps.append(progress.objective)
        if len(steps) == 2:
            raise KeyboardInterrupt

    training = IterativeTraining(SquaredExponential(), *rough(), seed=0, search_limit=1e-9, on_step=after_step)
    with pytest.raises(KeyboardInterrupt):
        training.run()
    training.interrupted()
    assert training.history[-1].end is StageEnd.INTERRUPTED
    assert training.history[-1].ended == TrainingEnd.INTERRUPTED
    assert training.bounds()[0] >= steps[-1]
    assert isinstance(training.posterior(), IterativePosterior)
    evidence = training.evidence()
    assert evidence is not None
    assert evidence.gain_per_row is None


def test_on_stage_may_end_the_training() -> None:
    training = IterativeTraining(
        SquaredExponential(), *standardised(200), seed=0, on_stage=lambda stage, posterior: "enough"
    )
    training.run()
    assert len(training.history) == 1
    assert training.history[-1].ended == "enough"


def test_pure_noise_is_no_trouble() -> None:
    X, _ = many_inputs(200, 3)
    training = IterativeTraining(SquaredExponential(), X, np.random.default_rng(0).normal(size=200), seed=0)
    training.run()
    assert math.isfinite(training.bounds()[0])


# ---- costs -----------------------------------------------------------------------------------------------------------


def test_where_blocks_need_too_many_iterations_points_take_their_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """A smooth function of many rows with little noise: what tells about a row is far away."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-1.0, 1.0, size=(600, 4))
    y = np.sin(X @ np.array([2.0, 1.0, -1.5, 0.5])) + 0.02 * rng.normal(size=600)
    given: list[int] = []
    with few_rows_given():
        training = IterativeTraining(SquaredExponential(), X, (y - y.mean()) / y.std(), seed=0, search_limit=0.0)
        with_new_points = training._workbench.with_new_points

        def recording(theta: FloatArray, m: int, rows: int) -> IterativeObjective:
            given.append(rows)
            return with_new_points(theta, m, rows)

        monkeypatch.setattr(training._workbench, "with_new_points", recording)
        monkeypatch.setattr(iterative_plan, "TRIAL", 1e-3)
        monkeypatch.setattr(iterative_plan, "NO_ITERATIONS", 0.0)
        training.run()
    assert given[0] == 24
    assert set(given[1:]) == {0}
    assert training.history[-1].stopped == TrainingEnd.OPTIMUM_FOUND


def test_a_climb_begins_again_where_other_points_are_much_cheaper(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the first evaluation nobody knows how many points a smooth function needs."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-1.0, 1.0, size=(600, 6))
    y = np.sin(2.0 * X[:, 0]) + X[:, 1] + 0.3 * rng.normal(size=600)
    training = IterativeTraining(SquaredExponential(), X, (y - y.mean()) / y.std(), seed=0, search_limit=0.0)
    assert training._plan.points() >= 400
    monkeypatch.setattr(training._plan, "learn_from_sparse", lambda _: None)
    objectives: list[weakref.ref[IterativeObjective]] = []
    with_new_points = training._workbench.with_new_points

    def one_at_a_time(theta: FloatArray, m: int, given: int) -> IterativeObjective:
        assert all(objective() is None for objective in objectives[:-1])
        objectives.append(weakref.ref(with_new_points(theta, m, given)))
        assert objectives[-1]() is not None
        assert len(objectives) < 2 or objectives[-2]() is None  # its matrices take memory
        return training._workbench.objective  # type: ignore[return-value]

    monkeypatch.setattr(training._workbench, "with_new_points", one_at_a_time)
    training.run()
    assert [stage.m <= 200 for stage in training.history] == [True] * len(training.history)
    assert training.history[-1].stopped == TrainingEnd.OPTIMUM_FOUND


def test_every_evaluation_but_the_first_of_all_may_take_so_many_iterations_and_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Far fewer points than before may need hundreds of them, where a few were predicted."""
    most: list[int] = []
    evaluate = IterativeObjective.evaluate

    def recorded(self: IterativeObjective, *theta: Any) -> Any:
        if not most or len(self.sparse.Z) < training._plan.sizes[-1]:  # with more points they are always fewer
            most.append(self.most_iterations)
        return evaluate(self, *theta)

    monkeypatch.setattr(IterativeObjective, "evaluate", recorded)
    training = IterativeTraining(SquaredExponential(), *rough(), seed=0)
    training.run()
    assert len(training.history) > 1
    assert most[0] == MOST_ITERATIONS
    assert len(most) > 2
    assert max(most[1:]) < MOST_ITERATIONS


def test_memory_that_is_too_small_is_refused_at_once() -> None:
    with pytest.raises(ValueError, match="300 rows need more memory than the limit of 1 MB"):
        IterativeTraining(SquaredExponential(), *rough(), memory_limit=1_000_000)
    training = IterativeTraining(SquaredExponential(), *rough())
    assert not iterative_fits(training.layout.kernel, training.X, math.inf, 1_000_000, evaluations=10.0)


def test_the_same_seed_gives_the_same_model(trained: IterativeTraining) -> None:
    """As long as no time limit interferes: nothing is decided by the clock."""
    again = IterativeTraining(SquaredExponential(), *rough(), seed=0)
    again.run()
    assert again.bounds() == trained.bounds()
    assert again.posterior().kernel == trained.posterior().kernel


def test_no_value_comes_from_a_preconditioner_without_digits() -> None:
    """With a signal of 1e13 times the noise, P⁻¹r is nothing but rounding errors, and any v seems to solve K̂v = y."""
    X, y = rough()
    kernel = SquaredExponential([50.0, 50.0], 1e9)
    with pytest.raises(NumericalError, match="times the noise variance"):
        IterativeObjective(kernel, 1e-4, X, y, X[:60]).estimate(kernel.for_inputs(2), 1e-4)


def test_training_stays_where_there_are_digits_on_a_linear_function_without_noise() -> None:
    """The likelihood rises as the signal variance grows without end: models on the way must be models, too."""
    X = np.random.default_rng(0).normal(size=(400, 4))
    y = X @ [1.0, 2.0, -1.0, 0.5] + 0.01 * np.sin(9.0 * X[:, 0])
    y = (y - y.mean()) / y.std()
    errors: list[float] = []

    def keep(progress: Progress) -> None:
        errors.append(float((progress.posterior().predict(training.X)[0] - training.y).square().mean().sqrt()))

    training = IterativeTraining(SquaredExponential(), X, y, seed=0, time_limit=4.0, on_step=keep)
    training.run()
    posterior = training.posterior()
    variance = float(posterior.kernel.parameters["variance"])
    assert lost_share(variance * len(y), posterior.noise_variance) <= 1.001 * MOST_LOST
    assert max(errors) < 0.05


def test_points_are_selected_anew_where_theta_has_left_those_at_hand() -> None:
    """Few points are enough while θ is smooth; where it gets rough, the climb ends and the next one takes others."""
    training = IterativeTraining(SquaredExponential(), *rough(800), seed=0)
    training._predict_costs()
    training._plan.sizes = [40, 300]
    start = training._sparse(training.layout.pack(SquaredExponential(lengthscales=[0.7, 0.7]), 0.5), 40)
    training._plan.learn_from_sparse(start)
    followed = training._climbs_from(start)
    seen: list[tuple[int, int]] = []
    learn = training._plan.learn

    def learn_and_note(objective: IterativeObjective, estimate: Estimate) -> None:
        seen.append((len(objective.sparse.Z), estimate.iterations))
        learn(objective, estimate)

    training._plan.learn = learn_and_note  # type: ignore[method-assign]
    assert followed.climb() is OptimiserEnd.MAX_ITERATIONS
    few, (_, first), (_, last) = len(seen), seen[0], seen[-1]
    assert few < FIRST_STEPS
    assert all(points == 40 for points, _ in seen)
    assert last >= max(STALE * first, STALE_ITERATIONS)
    followed.climb()
    assert seen[few][0] == 300
    assert seen[few][1] < last
