"""The figures of a fitted model: what `summary` records."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

import numpy as np

from nearexact.gp.safety import Repairs
from nearexact.tables.evaluation import LEVELS, scores
from nearexact.tables.recipe import Prepared
from nearexact.tables.relevance import relevances
from nearexact.tables.summary import Summary

if TYPE_CHECKING:
    from nearexact.tables.model_search import Found
    from nearexact.tables.predictor import Model


def summarise(
    found: Found,
    prepared: Prepared,
    *,
    seconds: float,
    time_limit: str | None,
    memory_limit: str | None,
    notes: Sequence[str],
) -> Summary:
    """The figures of a model that was found; its scores are those of the model that was tested."""
    model, recipe = found.model, prepared.recipe
    certificate = model.certificate_
    tested = found.evaluation if found.evaluation is not None and found.evaluation.tested else None
    return Summary(
        target=recipe.target,
        rows=certificate.n,
        rows_train=len(prepared.y_train),
        rows_test=len(prepared.y_test),
        refitted=found.refitted,
        columns=len(recipe.columns),
        inputs=len(recipe.inputs),
        kernel=found.choice.name,
        method=model.method_,
        m=len(model.inducing_points_),
        elbo=model.elbo_,
        lower=certificate.lower,
        upper=certificate.upper,
        gap_per_point=certificate.gap_per_point,
        verdict=certificate.verdict,
        doubt=certificate.doubt,
        about_theta=certificate.about_theta,
        evidence=certificate.evidence,
        ended=model.history_[-1].ended,
        interrupted=found.interrupted,
        noise_std=math.sqrt(model.noise_variance_) * (1.0 if recipe.several else float(model._scaling_y.scale)),
        known_noise_std=math.sqrt(float(np.mean(prepared.noise_train.get("noise_variance", 0.0)))),
        seconds=seconds,
        time_limit=time_limit,
        memory_limit=memory_limit,
        scores=tuple(scores(prepared, tested)) if tested else (),
        coverage=dict(zip(map(str, LEVELS), tested.coverage(), strict=True)) if tested else {},
        relevance=tuple(relevances(model.kernel_, model._posterior.inducing_points.cpu().numpy(), recipe)),
        repairs=repairs(model),
        notes=(*prepared.notes, *notes),
        index_like=prepared.index_like,
        far_targets=prepared.far_targets,
        tried=found.choice.trials,
    )


def repairs(model: Model) -> dict[str, float]:
    """What training repaired, by its names in the history."""
    total = asdict(Repairs.sum(stage.repairs for stage in model.history_))
    return {
        **total,
        **{name: sum(getattr(stage, name) for stage in model.history_) for name in ("restarts", "rescues")},
    }
