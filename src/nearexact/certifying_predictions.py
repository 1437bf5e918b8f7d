"""What `certify_predictions` does: proved bounds on the exact GP's predictions, in the user's units."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from nearexact.gp.iterative_posterior import IterativePosterior
from nearexact.gp.posterior import ExactPosterior, SparsePosterior
from nearexact.gp.prediction_bounds import ExactSystem
from nearexact.gp.prediction_solvers import CholeskySolver, SolvedSparseSolver, Solver, SparseSolver
from nearexact.gp.rounding import EPS
from nearexact.gp.tighten_predictions import tighten_predictions
from nearexact.limits import memory_budget, parse_seconds
from nearexact.typing import FloatArray, TimeLimit

if TYPE_CHECKING:
    from nearexact.base_estimator import Regressor

KEPT_SHARE = 0.5  # of the memory, for a kernel matrix [N, M] that is needed again and again
UNIT_ROUNDING = 8.0 * EPS  # of the way back to the user's units


class CertifiedPredictions(NamedTuple):
    """Predictions of the latent function at each row, and where those of the exact GP with the same θ must lie.

    Arrays in the user's units: |mean − exact mean| <= mean_error and std_lower <= exact std <= std_upper.
    """

    mean: FloatArray
    mean_error: FloatArray
    std: FloatArray
    std_lower: FloatArray
    std_upper: FloatArray


def needs_training_data(estimator: Regressor) -> bool:
    """Whether predictions can be certified only if the training data are passed: a sparse model from a file."""
    return isinstance(estimator._posterior, SparsePosterior) and estimator._problem is None


def certify_predictions(
    estimator: Regressor, inputs: FloatArray, X_train: Any, y_train: Any, time_limit: TimeLimit
) -> CertifiedPredictions:
    """Predictions at checked inputs, with bounds; see `SGPRegressor.certify_predictions`."""
    started = time.perf_counter()
    seconds = parse_seconds(time_limit)
    mean, std = estimator._mean_and_std(inputs, noise=False)
    system, solver = _exact_and_solver(estimator, X_train, y_train)
    X_new = estimator._standardised_inputs(inputs).to(system.X.device)
    memory = memory_budget(estimator.memory_limit, system.X.device)
    bounds = tighten_predictions(
        system,
        solver,
        X_new,
        memory=memory if isinstance(solver, CholeskySolver) else int((1.0 - KEPT_SHARE) * memory),
        time_limit=seconds - (time.perf_counter() - started),
    ).bounds
    scale, shift = float(estimator._scaling_y.scale), float(estimator._scaling_y.shift)
    below, above, least, most = (
        part.cpu().numpy()
        for part in (bounds.mean_lower, bounds.mean_upper, bounds.variance_lower, bounds.variance_upper)
    )
    # The mean is compared as it is returned, so that rounding on its way to the user's units counts, too.
    centre = (mean - shift) / scale
    error = scale * np.maximum(centre - below, above - centre)
    error += UNIT_ROUNDING * (abs(shift) + np.abs(mean) + np.abs(error))
    return CertifiedPredictions(
        mean,
        error,
        std,
        scale * np.sqrt(least) * (1.0 - UNIT_ROUNDING),
        scale * np.sqrt(most) * (1.0 + UNIT_ROUNDING),
    )


def noisy_std_bounds(estimator: Regressor, certified: CertifiedPredictions) -> tuple[FloatArray, FloatArray]:
    """Where the exact GP's std of a new observation lies, noise included."""
    noise = estimator.noise_variance_ * float(estimator._scaling_y.scale) ** 2
    lower, upper = (np.sqrt(np.square(std) + noise) for std in (certified.std_lower, certified.std_upper))
    return lower * (1.0 - UNIT_ROUNDING), upper * (1.0 + UNIT_ROUNDING)


def _exact_and_solver(estimator: Regressor, X_train: Any, y_train: Any) -> tuple[ExactSystem, Solver]:
    """The exact GP that the predictions are compared with, and how its linear systems are solved."""
    posterior, s = estimator._posterior, estimator.noise_variance_
    if isinstance(posterior, ExactPosterior):  # it holds its data
        return ExactSystem(posterior.kernel, s, posterior.X, posterior.y), CholeskySolver(posterior)
    if isinstance(posterior, IterativePosterior):  # and so does this one
        system = ExactSystem(posterior.kernel, s, posterior.X, posterior.y)
        memory = memory_budget(estimator.memory_limit, system.X.device)
        return system, SolvedSparseSolver(posterior, system, int(KEPT_SHARE * memory))
    if (X_train is None) != (y_train is None):
        raise ValueError("X_train and y_train must be passed both or not at all, got one of them")
    if X_train is None and needs_training_data(estimator):
        raise ValueError("a loaded sparse model does not hold its training data: pass them as X_train and y_train")
    problem = estimator._training_data(X_train, y_train)
    system = ExactSystem(posterior.kernel, s, problem.X, problem.y)
    memory = memory_budget(estimator.memory_limit, problem.X.device)
    solver = SparseSolver(posterior, system, int(KEPT_SHARE * memory))
    if X_train is not None and not solver.fits(problem.y):
        raise ValueError("X_train and y_train are not the data that the model was fitted to: its factors differ")
    return system, solver
