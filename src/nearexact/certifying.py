"""What `certify` does: tighten the bounds of a fitted sparse GP, and look for evidence where there is none."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from nearexact.certificate import Certificate
from nearexact.evidence import Evidence
from nearexact.gp.factorisation import Factorisation
from nearexact.gp.iterative_posterior import IterativePosterior, Posterior
from nearexact.gp.posterior import SparsePosterior
from nearexact.gp.search import Search
from nearexact.gp.search_evidence import evidence_for
from nearexact.gp.sparse import SparseObjective
from nearexact.gp.tighten import MOST_ITERATIONS, bounds_with_weights, tighten_bounds
from nearexact.gp.training import SEARCH_SHARE
from nearexact.limits import memory_budget, parse_seconds, written
from nearexact.noise_only import LEAST_VARIANCE
from nearexact.progress import ShownTime, tightening_display
from nearexact.typing import TimeLimit

if TYPE_CHECKING:
    from nearexact.base_estimator import Regressor
    from nearexact.problem import Problem

SAME_DATA = 1e-3  # nats per point by which a bound may differ, on another machine, for data to be the same
SAME_SUMS = 1e-4  # relative difference, on another machine, up to which sums over the data are the same
LONGEST_SEARCH = 60.0  # seconds


def certify(estimator: Regressor, problem: Problem, cg_iterations: int | None, time_limit: TimeLimit) -> Certificate:
    """The best bounds that can be had for a fitted model within the limits; see `SGPRegressor.certify`."""
    started = time.perf_counter()
    seconds = parse_seconds(time_limit)
    objective = SparseObjective(
        estimator.kernel_,
        estimator.noise_variance_,
        problem.data,
        None,
        estimator._posterior.inducing_points,
        memory_limit=estimator.memory_limit,
    )
    model = objective.factorise(estimator.kernel_, estimator.noise_variance_, residuals=True)
    estimate = estimator.certificate_.known_estimate
    # One of the two was maximised; where an estimate was, the ELBO was noted.
    noted = estimator.elbo_ if estimate is None else estimator.certificate_.elbo
    is_same = any(abs(value - noted) <= SAME_DATA * problem.data.n for value in (model.elbo, model.tight_bound))
    if not is_same or not _is_made_from(estimator._posterior, model):
        raise ValueError(
            "these are not the data that the model was fitted to, with their noise_variance and sample_weight: their"
            " likelihood differs"
        )
    with tightening_display(estimator.progress, ShownTime(written(time_limit, " s"))) as display:
        bounds, posterior = model.bounds, estimator._posterior
        if isinstance(posterior, IterativePosterior) and cg_iterations != 0:
            left = seconds - (time.perf_counter() - started)
            bounds = bounds_with_weights(objective, model, posterior.weights, time_limit=left)
        result = tighten_bounds(
            objective,
            model,
            bounds=bounds,
            iterations=MOST_ITERATIONS if cg_iterations is None else int(cg_iterations),
            time_limit=seconds - (time.perf_counter() - started),
            on_iteration=display.iteration,
            on_share=display.share,
        )
    if estimate is not None:  # what is proved holds for the estimate, too
        estimate = estimate._replace(value=max(estimate.value, result.bounds.lower))
    evidence = estimator.certificate_.evidence or _search(estimator, problem, seconds - (time.perf_counter() - started))
    return Certificate.of(
        result.bounds,
        estimator._verdict(result.bounds, problem.data.noise_only(LEAST_VARIANCE), evidence, estimate),
        evidence,
        estimate=estimate,
        iterations=result.iterations,
        seconds=time.perf_counter() - started,
    )


def check_iterations(cg_iterations: Any) -> None:
    """Raise a ValueError if this is no number of iterations."""
    is_whole = isinstance(cg_iterations, (int, np.integer)) and not isinstance(cg_iterations, bool)
    if cg_iterations is not None and not (is_whole and cg_iterations >= 0):
        raise ValueError(f"cg_iterations must be a whole number of at least 0, or None, got {cg_iterations!r}")


def _is_made_from(posterior: Posterior, model: Factorisation) -> bool:
    """Whether a sparse model knows the same Vy, and yᵀy where it knows that, as this one with its points and data.

    Others hold their rows, which were compared. Targets that differ by little may have nearly the same likelihood: its
    bounds would be proved for other data.
    """
    if not isinstance(posterior, SparsePosterior):
        return True
    s, L_B = posterior.noise_variance, posterior.L_B
    b = s * (L_B @ (L_B.T @ posterior.weights))  # B = L_B L_Bᵀ, and the weights are B⁻¹b/s
    differs = float(torch.linalg.vector_norm(model.b - b)) > SAME_SUMS * (float(torch.linalg.vector_norm(b)) + s)
    sums = posterior.sums
    return not differs and (sums is None or abs(model.yy - sums.yy) <= SAME_SUMS * (sums.yy + s))


def _search(estimator: Regressor, problem: Problem, seconds: float) -> Evidence | None:
    """Evidence for the θ of a model that was saved without any."""
    search = Search(
        estimator.kernel_,
        problem.data,
        None,
        time_limit=min(SEARCH_SHARE * seconds, LONGEST_SEARCH),
        memory=memory_budget(estimator.memory_limit, problem.data.device),
        seed=0,
        numerics=estimator._numerics(),
    )
    search.run()
    theta = search.layout.pack(estimator.kernel_, estimator.noise_variance_)
    return evidence_for(search, theta, search.timer.left())
