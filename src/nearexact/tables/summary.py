"""The record of a fit, kept with the model: scores next to baselines, coverage, certificate, relevance, repairs."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from nearexact.evidence import Evidence
from nearexact.tables.evaluation import Score

if TYPE_CHECKING:  # they need torch
    from nearexact.tables.kernel_choice import Trial
    from nearexact.tables.relevance import Relevance


@dataclass(frozen=True)
class Summary:
    """Figures of a fit."""

    target: str
    rows: int  # that the model was trained on
    rows_train: int  # that the model was trained on which was tested
    rows_test: int
    refitted: bool  # whether the model is not the one that was tested, but was trained on all rows after that
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
    interrupted: bool  # by Ctrl-C; before the test if there are no scores
    noise_std: float  # of the learnt noise, in the units of the target; of several, in their standard deviations
    known_noise_std: float  # of the noise that is known of the rows: its root mean square; 0 where none is known
    seconds: float
    time_limit: str | None  # as it was given
    memory_limit: str | None
    scores: tuple[Score, ...]  # none without test rows; in the same units
    coverage: dict[str, float]
    relevance: tuple[Relevance, ...]
    repairs: dict[str, float]
    notes: tuple[str, ...]
    index_like: tuple[str, ...]  # columns that may do no more than number the rows
    far_targets: tuple[str, ...]  # which targets may be mistyped, in words
    tried: tuple[Trial, ...]

    def __str__(self) -> str:
        from nearexact.tables.terminal import summary_lines  # which is about models too

        return "\n".join(summary_lines(self.to_json()))

    def to_json(self) -> dict[str, Any]:
        """As JSON-serialisable values."""
        record: dict[str, Any] = plain(asdict(self))
        return record


def plain(value: Any) -> Any:
    """As JSON-serialisable values: what is infinite or no number becomes null."""
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, (float, np.floating)):
        return float(value) if math.isfinite(value) else None
    return value
