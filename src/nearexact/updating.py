"""What `update` does: more rows for a fitted model at its θ, and whether they say that θ should be learnt anew."""

from __future__ import annotations

import math
import time
import warnings
from dataclasses import replace
from typing import TYPE_CHECKING

from nearexact import persistence
from nearexact.certificate import Certificate, Estimate
from nearexact.evidence import CERTIFIED_GAP
from nearexact.gp.more_rows import AddedRows, AllAdded, Extended, extend
from nearexact.gp.posterior import SparsePosterior
from nearexact.gp.row_noise import noise_only
from nearexact.gp.rows import LocalRows
from nearexact.gp.safety import Repairs
from nearexact.gp.stages import Stage, StageEnd
from nearexact.noise_only import CHANCE_GAIN, LEAST_VARIANCE, gaussian_log_likelihood

if TYPE_CHECKING:
    from nearexact.base_estimator import Regressor
    from nearexact.problem import Problem

UPDATED = "updated"  # how the stage of an update has ended
MOST_GROWTH = 2.0  # times as many rows as θ was learnt from: then it is out of date in any case
# Times as many, up to which what speaks for θ still does: more rows may show details that looked like noise before, at
# which new rows are as far from the predictions as the model expects.
SAME_EVIDENCE_GROWTH = 1.05


def update(estimator: Regressor, new: Problem) -> None:
    """Let the estimator be the model of its rows and of new ones, at the same θ; see `SGPRegressor.update`."""
    started = time.perf_counter()
    rows, held = _rows(new), estimator._problem
    extended = extend(
        estimator._posterior,
        rows,
        bound=getattr(estimator, "bound", "elbo"),
        memory_limit=estimator.memory_limit,
    )
    everything = None if held is None else _rows(held).followed_by(rows)
    added = estimator._added.and_more(extended.distance, rows.y.numel())
    learnt_rows = [stage for stage in estimator.history_ if stage.ended != UPDATED][-1].n
    reason = _why_anew(extended, added, rows.y.numel(), learnt_rows)
    estimator._added = added
    estimator._posterior = persistence.contiguous(extended.posterior)
    if held is not None and everything is not None:
        estimator._problem = replace(held, data=LocalRows(everything.X, everything.y, everything.row_noise))
    estimator.elbo_, estimator.upper_bound_ = extended.value, extended.bounds.upper
    estimator.inducing_points_ = estimator._scaling_X.undo(estimator._posterior.inducing_points.cpu().numpy())
    estimator.history_ = [*estimator.history_, _stage(estimator, extended, time.perf_counter() - started)]
    estimate = None
    if extended.estimate is not None:
        estimate = Estimate(extended.estimate.value, extended.estimate.standard_error)
    # What was found out about θ holds for the earlier rows: a subset now, of which few more rows change little.
    holds = reason is None and extended.bounds.n <= SAME_EVIDENCE_GROWTH * learnt_rows
    for distance, count in ((extended.distance, rows.y.numel()), (added.distance, added.values)):
        holds &= (
            _gain(distance, count) * count <= CERTIFIED_GAP * extended.bounds.n
        )  # else another θ may be that better
    evidence = estimator.certificate_.evidence if holds else None
    verdict = estimator._verdict(extended.bounds, _constant(estimator), evidence, estimate)
    estimator.certificate_ = Certificate.of(extended.bounds, verdict, evidence, estimate=estimate)
    if reason:
        warnings.warn(f"{reason}: fit again with all rows to learn hyperparameters anew", UserWarning, stacklevel=3)


def _rows(problem: Problem) -> AddedRows:
    return AddedRows(problem.X, problem.y, problem.row_noise)


def _constant(estimator: Regressor) -> float:
    """The log likelihood of the constant predictor; where the rows are gone, with all noise scaled by one factor."""
    posterior, problem = estimator._posterior, estimator._problem
    if problem is not None:
        return problem.data.noise_only(LEAST_VARIANCE)
    if not isinstance(posterior, SparsePosterior):
        return noise_only(posterior.y, posterior.row_noise)
    assert posterior.sums is not None
    sums, targets = posterior.sums, posterior.weights[0].numel()
    mean_square = sums.yy / (sums.n * targets)
    scaled = gaussian_log_likelihood(max(mean_square, LEAST_VARIANCE), sums.n * targets, mean_square)
    return scaled + 0.5 * targets * sums.log_scales


def _why_anew(extended: Extended, added: AllAdded, values: int, learnt_rows: int) -> str | None:
    """Why θ should be learnt anew, if it should.

    All values that were added count together, too: of rows that come one by one, none says much by itself.
    """
    for distance, count, which in (
        (extended.distance, values, "new rows"),
        (added.distance, added.values, "rows of all updates together"),
    ):
        if _gain(distance, count) > CERTIFIED_GAP and _gain(distance, count) * count > CHANCE_GAIN:
            times = math.sqrt(_ratio(distance, count))
            return f"the {which} are {times:.3g} times as far from the predictions as the model expects"
    if extended.bounds.n > MOST_GROWTH * learnt_rows:
        return f"there are {extended.bounds.n} rows now, and hyperparameters were learnt from {learnt_rows}"
    return None


def _gain(distance: float, values: int) -> float:
    """What is to be gained by another θ, at least, in nats for each value.

    The model expects y_newᵀ(covariance)⁻¹y_new to be as large as the number of new values. If it is ρ times that,
    variances that are ρ times as large would explain each value better by ½(ρ − 1 − log ρ) nats.
    """
    ratio = _ratio(distance, values)
    return 0.5 * (ratio - 1.0 - math.log(ratio))


def _ratio(distance: float, values: int) -> float:
    """ρ, with one value more that is as the model expects it: a single row that happens to be predicted right is no
    sign of too large variances."""
    return (max(distance, 0.0) + 1.0) / (values + 1.0)


def _stage(estimator: Regressor, extended: Extended, seconds: float) -> Stage:
    last, posterior = estimator.history_[-1], extended.posterior
    return Stage(
        n=extended.bounds.n,
        scheduled_m=last.scheduled_m,
        m=len(posterior.inducing_points),
        objective=extended.value,
        lower_bound=extended.bounds.lower,
        upper_bound=extended.bounds.upper,
        kernel=posterior.kernel,
        noise_variance=posterior.noise_variance,
        seconds=seconds,
        elapsed=last.elapsed + seconds,
        evaluations=1,
        reselections=0,
        restarts=0,
        rescues=0,
        jitter=last.jitter,
        repairs=Repairs(),
        end=StageEnd.COMPLETE,
        stopped=UPDATED,
        ended=UPDATED,
    )
