"""L-BFGS that restarts: converges like SciPy where nothing fails, and still gets there where something does."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.optimize import minimize, rosen, rosen_der

from nearexact.gp import LBFGSSettings, NumericalError, Step, minimise
from nearexact.typing import FloatArray

START = np.array([-1.2, 1.0, 0.5])


def rosenbrock(theta: np.ndarray) -> tuple[float, np.ndarray]:
    return float(rosen(theta)), rosen_der(theta)


def test_is_scipys_where_nothing_fails() -> None:
    result = minimise(rosenbrock, START)
    theirs = minimize(rosenbrock, START, jac=True, method="L-BFGS-B", options={"maxiter": 1000})
    assert result.theta == pytest.approx(theirs.x, abs=1e-8)
    assert (result.iterations, result.evaluations) == (theirs.nit, theirs.nfev)
    assert (result.reason, result.restarts) == ("converged", 0)


@pytest.mark.parametrize("failure", ["nan", "infinite", "nan gradient", "raises", "linear algebra"])
def test_restarts_where_a_region_cannot_be_evaluated(failure: str) -> None:
    """The first line search oversteps into a region in which nothing can be computed; the path itself stays clear."""

    def walled(theta: np.ndarray) -> tuple[float, np.ndarray]:
        value, gradient = rosenbrock(theta)
        if theta[2] > 0.85 and theta[0] < 0.5:
            if failure == "raises":
                raise NumericalError("no")
            if failure == "linear algebra":
                raise np.linalg.LinAlgError("no")
            gradient = np.full_like(gradient, math.nan) if failure == "nan gradient" else gradient
            value = {"nan": math.nan, "infinite": math.inf}.get(failure, value)
        return value, gradient

    result = minimise(walled, START)
    assert result.restarts > 0
    assert result.reason == "converged"
    assert result.theta == pytest.approx(np.ones(3), abs=1e-3)


def test_first_step_into_failure_is_shortened_until_it_succeeds() -> None:
    """SciPy always tries a first step of length 1; here everything further than 1e-3 from evaluated points fails."""
    evaluated = [np.zeros(2)]

    def narrow(theta: np.ndarray) -> tuple[float, np.ndarray]:
        if min(np.abs(theta - point).max() for point in evaluated) > 1e-3:
            return math.nan, np.zeros(2)
        evaluated.append(theta.copy())
        return float(((theta - 0.01) ** 2).sum()), 2.0 * (theta - 0.01)

    result = minimise(narrow, np.zeros(2), settings=LBFGSSettings(ftol=0.0, gtol=1e-7))
    assert result.restarts >= 5
    assert result.theta == pytest.approx([0.01, 0.01], abs=1e-5)


def test_gives_up_where_every_step_fails_and_returns_the_start() -> None:
    def isolated(theta: np.ndarray) -> tuple[float, np.ndarray]:
        return (1.0, np.ones(2)) if (theta == 0.0).all() else (math.nan, np.ones(2))

    result = minimise(isolated, np.zeros(2), settings=LBFGSSettings(max_idle_restarts=7))
    assert (result.reason, result.value, result.restarts) == ("restarts", 1.0, 8)
    assert result.theta.tolist() == [0.0, 0.0]


def test_a_start_that_cannot_be_evaluated_is_an_error() -> None:
    with pytest.raises(NumericalError, match="cannot be computed at the starting point: its value is nan"):
        minimise(lambda theta: (math.nan, theta), START)

    def raising(theta: np.ndarray) -> tuple[float, np.ndarray]:
        raise NumericalError("K_ZZ is hopeless")

    with pytest.raises(NumericalError, match="starting point: K_ZZ is hopeless"):
        minimise(raising, START)


def test_bugs_are_not_mistaken_for_numerical_failure() -> None:
    def broken(theta: np.ndarray) -> tuple[float, np.ndarray]:
        raise TypeError("a bug")

    with pytest.raises(TypeError, match="a bug"):
        minimise(broken, START)


def test_no_evaluation_starts_that_would_cross_the_time_limit() -> None:
    now = [0.0]

    def slow(theta: np.ndarray) -> tuple[float, np.ndarray]:
        now[0] += 1.0
        return rosenbrock(theta)

    result = minimise(slow, START, time_limit=4.5, clock=lambda: now[0])
    assert (result.reason, result.evaluations, result.seconds) == ("time limit", 4, 4.0)
    assert result.value < rosenbrock(START)[0]
    assert minimise(slow, START, time_limit=0.0, clock=lambda: now[0]).evaluations == 1


def test_callback_sees_every_step_and_can_stop() -> None:
    steps: list[Step] = []
    result = minimise(rosenbrock, START, callback=steps.append)
    assert [step.iteration for step in steps] == list(range(1, result.iterations + 1))
    assert all(step.value == rosenbrock(step.theta)[0] for step in steps)
    assert [step.value for step in steps] == sorted((step.value for step in steps), reverse=True)
    assert sorted(step.seconds for step in steps) == [step.seconds for step in steps]

    def stop_at_five(step: Step) -> None:
        if step.iteration == 5:
            raise StopIteration

    stopped = minimise(rosenbrock, START, callback=stop_at_five)
    assert (stopped.reason, stopped.iterations) == ("callback", 5)
    assert stopped.value == steps[4].value


def test_iterations_are_limited_across_restarts() -> None:
    result = minimise(rosenbrock, START, settings=LBFGSSettings(max_iterations=7))
    assert (result.reason, result.iterations, result.restarts) == ("max iterations", 7, 0)
    calls = []

    def failing_every_fifth_time(theta: np.ndarray) -> tuple[float, np.ndarray]:
        calls.append(1)
        return (math.nan, theta) if len(calls) % 5 == 0 else rosenbrock(theta)

    result = minimise(failing_every_fifth_time, START, settings=LBFGSSettings(max_iterations=7))
    assert (result.reason, result.iterations) == ("max iterations", 7)
    assert result.restarts >= 1


def test_a_shortened_step_does_not_make_a_large_gradient_look_small() -> None:
    """After twelve halvings the gradient by the scaled variable is 4096 times smaller; convergence is judged by θ's."""
    rejected = []

    def steep_far_away(theta: np.ndarray) -> tuple[float, np.ndarray]:
        if len(rejected) < 12 and theta.any():
            rejected.append(1)
            return math.nan, theta
        return float(1e-2 * (theta - 3.0) @ (theta - 3.0)), 2e-2 * (theta - 3.0)

    result = minimise(steep_far_away, np.zeros(2), settings=LBFGSSettings(ftol=0.0, gtol=1e-4))
    assert result.restarts == 12
    assert result.theta == pytest.approx([3.0, 3.0], abs=1e-2)


def test_the_best_point_is_returned_even_if_it_was_not_the_last() -> None:
    seen: list[float] = []

    def recorded(theta: np.ndarray) -> tuple[float, np.ndarray]:
        value, gradient = rosenbrock(theta)
        seen.append(value)
        return value, gradient

    result = minimise(recorded, START, settings=LBFGSSettings(max_iterations=9))
    assert result.value == min(seen)
    assert result.evaluations == len(seen)


def test_the_start_is_not_modified() -> None:
    start = START.copy()
    minimise(rosenbrock, start)
    assert np.array_equal(start, START)


def test_with_the_right_curvature_the_first_step_is_newtons() -> None:
    rng = np.random.default_rng(0)
    root = rng.normal(size=(6, 6)) * 10.0 ** rng.uniform(-2, 2, size=6)
    H, optimum = root @ root.T + 0.1 * np.eye(6), rng.normal(size=6)

    def quadratic(theta: FloatArray) -> tuple[float, FloatArray]:
        return 0.5 * float((theta - optimum) @ H @ (theta - optimum)), H @ (theta - optimum)

    far = LBFGSSettings(first_step=1e6)
    found = minimise(quadratic, np.zeros(6), curvature=H, settings=far)
    assert found.evaluations <= 3
    assert np.allclose(found.theta, optimum, atol=1e-6)
    assert minimise(quadratic, np.zeros(6), settings=far).evaluations > 10


def test_no_axis_of_the_curvature_is_left_by_more_than_the_first_step() -> None:
    seen: list[FloatArray] = []

    def slope(theta: FloatArray) -> tuple[float, FloatArray]:
        seen.append(theta.copy())
        gradient = np.array([1e3, 1e-3])
        if len(seen) > 2:
            raise StopIteration
        return float(gradient @ theta), gradient

    with pytest.raises(StopIteration):
        minimise(slope, np.zeros(2), curvature=np.diag([1.0, 1.0]), settings=LBFGSSettings(first_step=0.5))
    assert seen[1] == pytest.approx([-0.5, -1e-3])
