"""What `certify_predictions` does: proved bounds on the exact GP's predictions, in the user's units."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from nearexact.gp.iterative_posterior import IterativePosterior, Posterior
from nearexact.gp.posterior import ExactPosterior, SparsePosterior
from nearexact.gp.prediction_bounds import ExactSystem
from nearexact.gp.prediction_solvers import CholeskySolver, SolvedSparseSolver, Solver, SparseSolver
from nearexact.gp.rounding import EPS
from nearexact.gp.tighten_predictions import tighten_predictions
from nearexact.limits import memory_budget, parse_seconds
from nearexact.typing import FloatArray, TimeLimit

if TYPE_CHECKING:
    from nearexact.base_estimator import Regressor
    from nearexact.problem import Problem

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
    estimator: Regressor, inputs: FloatArray, training_data: tuple[Any, Any, Any, Any], time_limit: TimeLimit
) -> CertifiedPredictions:
    """Predictions at checked inputs, with bounds; see `SGPRegressor.certify_predictions`.

    The training data are X, y, noise_variance and sample_weight, or None where they are not passed.
    """
    started = time.perf_counter()
    seconds = parse_seconds(time_limit)
    mean, std = estimator._mean_and_std(inputs, noise=False)
    posterior, problem = estimator._posterior, _passed_problem(estimator, *training_data)
    parts, targets = [], math.prod(mean.shape[1:])
    for number in range(targets):  # each on its own, since bounds on means are
        system, solver = _exact_and_solver(estimator, of_target(posterior, number), problem, number)
        X_new = estimator._standardised_inputs(inputs).to(system.X.device)
        memory = memory_budget(estimator.memory_limit, system.X.device)
        left = seconds - (time.perf_counter() - started)
        bounds = tighten_predictions(
            system,
            solver,
            X_new,
            memory=memory if isinstance(solver, CholeskySolver) else int((1.0 - KEPT_SHARE) * memory),
            time_limit=left / (targets - number),
        ).bounds
        parts.append([bounds.mean_lower, bounds.mean_upper, bounds.variance_lower, bounds.variance_upper])
    scale, shift = estimator._scaling_y.scale, estimator._scaling_y.shift
    below, above, least, most = (
        torch.stack(part, dim=-1).view(mean.shape).cpu().numpy() for part in zip(*parts, strict=True)
    )
    # The mean is compared as it is returned, so that rounding on its way to the user's units counts, too.
    centre = (mean - shift) / scale
    error = scale * np.maximum(centre - below, above - centre)
    error += UNIT_ROUNDING * (np.abs(shift) + np.abs(mean) + np.abs(error))
    return CertifiedPredictions(
        mean,
        error,
        std,
        scale * np.sqrt(least) * (1.0 - UNIT_ROUNDING),
        scale * np.sqrt(most) * (1.0 + UNIT_ROUNDING),
    )


def noisy_std_bounds(estimator: Regressor, certified: CertifiedPredictions) -> tuple[FloatArray, FloatArray]:
    """Where the exact GP's std of a new observation lies, noise included."""
    noise = estimator.noise_variance_ * estimator._scaling_y.scale**2
    lower, upper = (np.sqrt(np.square(std) + noise) for std in (certified.std_lower, certified.std_upper))
    return lower * (1.0 - UNIT_ROUNDING), upper * (1.0 + UNIT_ROUNDING)


def _passed_problem(
    estimator: Regressor, X_train: Any, y_train: Any, noise_variance: Any, sample_weight: Any
) -> Problem | None:
    """The training data as they were passed to a sparse model; None where the model has its own."""
    if (X_train is None) != (y_train is None):
        raise ValueError("X_train and y_train must be passed both or not at all, got one of them")
    if X_train is None and not (noise_variance is None and sample_weight is None):
        raise ValueError("noise_variance and sample_weight are those of X_train and y_train: pass these, too")
    if X_train is not None:
        passed = estimator._training_data(X_train, y_train, noise_variance, sample_weight)
        return passed if isinstance(estimator._posterior, SparsePosterior) else None
    if needs_training_data(estimator):
        raise ValueError("a loaded sparse model does not hold its training data: pass them as X_train and y_train")
    return None


def of_target(posterior: Posterior, number: int) -> Posterior:
    """The same model for one of several targets."""
    if posterior.weights.ndim == 1:
        return posterior
    weights = posterior.weights[:, number].contiguous()
    if isinstance(posterior, SparsePosterior):
        return replace(posterior, weights=weights)
    return replace(posterior, weights=weights, y=posterior.y[:, number].contiguous())


def _exact_and_solver(
    estimator: Regressor, posterior: Posterior, passed: Problem | None, number: int
) -> tuple[ExactSystem, Solver]:
    """The exact GP that the predictions of a target are compared with, and how its linear systems are solved."""
    s = estimator.noise_variance_
    if isinstance(posterior, (ExactPosterior, IterativePosterior)):  # they hold their data
        system = ExactSystem(posterior.kernel, s, posterior.X, posterior.y, posterior.row_noise)
        if isinstance(posterior, ExactPosterior):
            return system, CholeskySolver(posterior)
        memory = memory_budget(estimator.memory_limit, system.X.device)
        return system, SolvedSparseSolver(posterior, system, int(KEPT_SHARE * memory))
    problem = passed or estimator._training_data(None, None)
    y = problem.y if problem.y.ndim == 1 else problem.y[:, number].contiguous()
    system = ExactSystem(posterior.kernel, s, problem.X, y, problem.row_noise)
    memory = memory_budget(estimator.memory_limit, problem.X.device)
    solver = SparseSolver(posterior, system, int(KEPT_SHARE * memory))
    if passed is not None and not solver.fits(system.y):
        raise ValueError(
            "X_train and y_train, with their noise_variance and sample_weight, are not the data that the model was"
            " fitted to: its factors differ"
        )
    return system, solver
