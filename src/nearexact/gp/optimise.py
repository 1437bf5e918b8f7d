"""L-BFGS that restarts: SciPy's L-BFGS-B around an objective that may fail.

A line search sometimes asks for hyperparameters at which the objective cannot be computed. That ends the current run of
the optimiser, and a new one with an empty history starts from the best point so far (Ober et al., appendix B.1).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import torch
from scipy.optimize import Bounds, OptimizeResult
from scipy.optimize import minimize as scipy_minimize

from nearexact.gp.budget import TimeIsUpError
from nearexact.gp.parameters import Objective, ThetaBounds
from nearexact.gp.safety import NumericalError
from nearexact.gp.threads import numpy_on_one_thread
from nearexact.typing import FloatArray

# What an objective raises when θ is to blame. Anything else is a bug and passes through.
FAILURES = (ArithmeticError, np.linalg.LinAlgError, torch.linalg.LinAlgError)  # type: ignore[attr-defined]


@dataclass(frozen=True)
class LBFGSSettings:
    """SciPy's options; the defaults are SciPy's own but for the number of iterations."""

    history: int = 10
    max_iterations: int = 1000
    ftol: float = 2.2e-9
    gtol: float = 1e-5
    max_idle_restarts: int = 20  # restarts in a row without progress; the step has then been halved that often
    first_step: float = 1.0  # its largest length; where the start is a good one, a shorter step wastes less


DEFAULT_SETTINGS = LBFGSSettings()


class OptimiserEnd(StrEnum):
    """Why the optimiser stopped."""

    CONVERGED = "converged"
    MAX_ITERATIONS = "max iterations"
    NO_FURTHER_STEP = "line search"  # no further decrease could be found
    TIME_LIMIT = "time limit"
    CALLBACK = "callback"
    FAILING = "restarts"  # the objective kept failing next to the best point


@dataclass(frozen=True)
class Step:
    """Where the optimiser stands after an accepted step."""

    theta: FloatArray
    value: float
    iteration: int
    evaluations: int
    seconds: float


@dataclass(frozen=True)
class Optimum:
    """The best point that was evaluated, and how it was reached."""

    theta: FloatArray
    value: float
    reason: OptimiserEnd
    iterations: int
    evaluations: int
    restarts: int
    seconds: float


def minimise(
    objective: Objective,
    theta0: FloatArray,
    *,
    bounds: ThetaBounds | None = None,
    time_limit: float | None = None,
    callback: Callable[[Step], None] | None = None,
    settings: LBFGSSettings = DEFAULT_SETTINGS,
    curvature: FloatArray | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> Optimum:
    """Minimise an objective that returns its value and gradient, and may raise NumericalError or return NaN.

    No point outside the `bounds` is evaluated. `curvature` is a positive definite matrix that is near the second
    derivatives of the objective: the first step is then Newton's, and those after it take the other directions into
    account; with bounds, each by itself.

    `callback` is called after each accepted step and may raise StopIteration to end the optimisation. `time_limit` is
    in seconds of the `clock`; apart from the first, no evaluation starts that would end after it, judged by the last.
    """
    with numpy_on_one_thread():
        start = np.array(theta0, dtype=np.float64)
        start = start if bounds is None else np.clip(start, *bounds)
        return _minimise(_Run(objective, start, bounds, time_limit, callback, curvature, clock), settings)


def _minimise(run: _Run, settings: LBFGSSettings) -> Optimum:
    try:
        run.evaluate(run.best_theta)
    except _ObjectiveError as error:
        raise NumericalError(f"the objective cannot be computed at the starting point: {error}") from error
    restarts = idle = 0
    reason: OptimiserEnd | None = OptimiserEnd.CONVERGED if run.nothing_is_free else None
    while reason is None:
        start_value = run.best_value
        reason = run.from_best(0.5**idle, settings)
        if reason is not None:
            break
        restarts += 1
        idle = 0 if run.best_value < start_value else idle + 1
        if idle > settings.max_idle_restarts:
            reason = OptimiserEnd.FAILING
    return Optimum(run.best_theta, run.best_value, reason, run.iterations, run.evaluations, restarts, run.seconds())


class _ObjectiveError(NumericalError):
    """The objective could not be computed; a NumericalError of the callback is something else."""


class _Run:
    def __init__(
        self,
        objective: Objective,
        theta0: FloatArray,
        bounds: ThetaBounds | None,
        time_limit: float | None,
        callback: Callable[[Step], None] | None,
        curvature: FloatArray | None,
        clock: Callable[[], float],
    ) -> None:
        self.objective, self.time_limit, self.callback, self.clock = objective, time_limit, callback, clock
        self.curvature = curvature
        self.bounds, self.nothing_is_free = bounds, bounds is not None and not (bounds[0] < bounds[1]).any()
        self.best_theta, self.best_value, self.best_gradient = theta0, math.inf, np.zeros_like(theta0)
        self.evaluations = self.iterations = 0
        self.last_seconds = 0.0  # of the last evaluation
        self.started = clock()

    def seconds(self) -> float:
        return self.clock() - self.started

    def evaluate(self, theta: FloatArray) -> tuple[float, FloatArray]:
        started = self.seconds()
        if self.time_limit is not None and self.evaluations and started + self.last_seconds > self.time_limit:
            raise TimeIsUpError
        self.evaluations += 1
        try:
            value, gradient = self.objective(theta)
        except FAILURES as error:
            raise _ObjectiveError(str(error)) from error
        finally:
            self.last_seconds = self.seconds() - started
        if not math.isfinite(value):
            raise _ObjectiveError(f"its value is {value}")
        if not np.isfinite(gradient).all():
            raise _ObjectiveError("its gradient is not finite: look for huge inputs")
        if value < self.best_value:
            self.best_theta, self.best_value, self.best_gradient = theta.copy(), value, gradient.copy()
        return value, gradient

    def coordinates(self, first_step: float) -> FloatArray:
        """A such that the first step is as long as it should be if L-BFGS-B moves in u, θ = best θ + A·u.

        SciPy's first step goes down the gradient and has length 1 in its own variable.
        """
        if self.curvature is None:
            return first_step * np.eye(len(self.best_theta))
        slopes = self.best_gradient
        if self.bounds is None:
            curvatures, axes = np.linalg.eigh(self.curvature)
            slopes = axes.T @ slopes
        else:  # bounds on θ are bounds on u only if the axes are those of θ
            curvatures, axes = np.diag(self.curvature), np.eye(len(slopes))
            slopes = np.where(self.bounds[0] < self.bounds[1], slopes, 0.0)
        curvatures = np.maximum(curvatures, np.abs(slopes) / first_step)  # no axis is left by more than the first step
        length = math.sqrt(float(np.sum(slopes**2 / curvatures)))  # of Newton's step, in the metric of the curvatures
        coordinates: FloatArray = (length or 1.0) * axes / np.sqrt(curvatures)
        return coordinates

    def from_best(self, scale: float, settings: LBFGSSettings) -> OptimiserEnd | None:
        """One run of L-BFGS-B; why it stopped, or None if the objective failed. A smaller scale shortens its steps."""
        origin, value_there, gradient_there = self.best_theta, self.best_value, self.best_gradient
        A = scale * self.coordinates(settings.first_step)

        def in_u(u: FloatArray) -> tuple[float, FloatArray]:
            if not u.any():  # where the run starts: known already
                return value_there, A.T @ gradient_there
            value, gradient = self.evaluate(origin + A @ u)
            return value, A.T @ gradient

        def after_step(intermediate_result: OptimizeResult) -> None:
            self.iterations += 1
            if self.callback is not None:
                theta = origin + A @ intermediate_result.x
                value = float(intermediate_result.fun)
                self.callback(Step(theta, value, self.iterations, self.evaluations, self.seconds()))

        options = {
            "maxcor": settings.history,
            "maxiter": settings.max_iterations - self.iterations,
            "maxfun": 20 * settings.max_iterations,
            "ftol": settings.ftol,
            "gtol": settings.gtol * float(np.linalg.norm(A, ord=-2)),
        }
        in_bounds = None if self.bounds is None else Bounds(*((end - origin) / np.diag(A) for end in self.bounds))
        try:
            result = scipy_minimize(
                in_u,
                np.zeros_like(origin),
                jac=True,
                method="L-BFGS-B",
                bounds=in_bounds,
                callback=after_step,
                options=options,
            )
        except _ObjectiveError:
            return None
        except TimeIsUpError:
            return OptimiserEnd.TIME_LIMIT
        ends = {0: OptimiserEnd.CONVERGED, 1: OptimiserEnd.MAX_ITERATIONS, 99: OptimiserEnd.CALLBACK}  # SciPy's codes
        return ends.get(result.status, OptimiserEnd.NO_FURTHER_STEP)
