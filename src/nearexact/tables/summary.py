"""The record of a fit, kept with the model: scores next to baselines, coverage, certificate, relevance, repairs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from nearexact.evidence import Evidence
from nearexact.gp.safety import Repairs
from nearexact.tables.evaluation import LEVELS, Evaluation, Score, scores
from nearexact.tables.kernel_choice import Choice, Trial
from nearexact.tables.predicting import Model
from nearexact.tables.recipe import Prepared
from nearexact.tables.relevance import Relevance, relevances


@dataclass(frozen=True)
class Summary:
    """Figures of a fit."""

    target: str
    rows_train: int
    rows_test: int
    columns: int
    inputs: int
    kernel: str
    method: str  # how the model was trained: GPRegressor's `method_`
    m: int
    elbo: float
    lower: float
    upper: float
    gap_per_point: float
    verdict: str
    doubt: str | None  # a Doubt: why nothing supports the hyperparameters
    about_theta: str  # what speaks for the hyperparameters
    evidence: Evidence | None
    ended: str
    noise_std: float  # in the units of the target
    seconds: float
    scores: tuple[Score, ...]  # none without test rows
    coverage: dict[str, float]
    relevance: tuple[Relevance, ...]
    repairs: dict[str, float]
    notes: tuple[str, ...]
    tried: tuple[Trial, ...]

    def __str__(self) -> str:
        from nearexact.tables.terminal import summary_lines  # which is about models too

        return "\n".join(summary_lines(self.to_json()))

    def to_json(self) -> dict[str, Any]:
        """As JSON-serialisable values."""
        record: dict[str, Any] = plain(asdict(self))
        return record


def summarise(
    model: Model,
    prepared: Prepared,
    choice: Choice,
    evaluation: Evaluation | None,
    seconds: float,
    notes: Sequence[str],
) -> Summary:
    """The figures of a fitted model."""
    certificate, recipe = model.certificate_, prepared.recipe
    tested = evaluation if evaluation is not None and evaluation.tested else None
    return Summary(
        target=recipe.target,
        rows_train=len(prepared.y_train),
        rows_test=len(prepared.y_test),
        columns=len(recipe.columns),
        inputs=len(recipe.inputs),
        kernel=choice.name,
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
        noise_std=math.sqrt(model.noise_variance_) * float(model._scaling_y.scale),
        seconds=seconds,
        scores=tuple(scores(prepared, tested)) if tested else (),
        coverage=dict(zip(map(str, LEVELS), tested.coverage(), strict=True)) if tested else {},
        relevance=tuple(relevances(model.kernel_, model._posterior.inducing_points.cpu().numpy(), recipe)),
        repairs=repairs(model),
        notes=(*prepared.notes, *notes),
        tried=choice.trials,
    )


def repairs(model: Model) -> dict[str, float]:
    """What training repaired, by its names in the history."""
    total = asdict(Repairs.sum(stage.repairs for stage in model.history_))
    return {
        **total,
        **{name: sum(getattr(stage, name) for stage in model.history_) for name in ("restarts", "rescues")},
    }


def plain(value: Any) -> Any:
    """As JSON-serialisable values: what is infinite or no number becomes null."""
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, (float, np.floating)):
        return float(value) if math.isfinite(value) else None
    return value
