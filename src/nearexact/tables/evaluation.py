"""How well a fitted model predicts the rows that were kept back, next to baselines, in the units of the target."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from nearexact.baselines import fit_constant, fit_linear
from nearexact.bench import metrics
from nearexact.scaling import Scaling
from nearexact.tables.recipe import Prepared
from nearexact.typing import FloatArray

if TYPE_CHECKING:
    from nearexact.base_estimator import Regressor

LEVELS = (0.5, 0.8, 0.9, 0.95, 0.99)
MODEL = "nearexact"  # its name among the predictors
SHOWN_ROWS = 2000  # of those trained on, where none were kept back to test


@dataclass(frozen=True)
class Score:
    """How well test targets were predicted: root mean squared error, and mean negative log predictive density."""

    predictor: str
    rmse: float
    nlpd: float
    # Standard errors by which the model's mean squared error is below this one's; None for the model, or if not known.
    model_lead: float | None = None
    # The same of ranks instead of squares: what most rows say, where a few with large errors hide it.
    model_rank_lead: float | None = None


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Targets and their predictions, with a column for each of several targets."""

    y: FloatArray
    mean: FloatArray
    std: FloatArray
    tested: bool  # on rows that were not trained on

    def coverage(self, levels: Sequence[float] = LEVELS) -> list[float]:
        """The share of targets in the central predictive interval of each level."""
        errors = (self.y - self.mean) / self.std
        zeros, ones = np.zeros_like(errors), np.ones_like(errors)
        return [metrics.coverage(errors, zeros, ones, 100.0 * level) for level in levels]


def evaluate(model: Regressor, prepared: Prepared) -> Evaluation:
    """Predictions for the test rows; for some of the rows that were trained on if there are none."""
    tested = len(prepared.y_test) > 0
    values, y, noise = prepared.test, prepared.y_test, prepared.noise_test
    if not tested:
        values, y = prepared.train[:SHOWN_ROWS], prepared.y_train[:SHOWN_ROWS]
        noise = {name: part[:SHOWN_ROWS] for name, part in prepared.noise_train.items()}
    mean, std = model.predict(prepared.recipe.frame(values), return_std=True, noise=not noise)
    if noise:  # what is known about these rows is a part of what is expected of them
        std = np.sqrt(std**2 + model._noise_of_rows(y, **noise))
    return Evaluation(y, mean, std, tested)


def scores(prepared: Prepared, evaluation: Evaluation) -> list[Score]:
    """Of the model, of a linear function and of a constant.

    Several targets are scored together, each in units of its own standard deviation.
    """
    X_train, X_test = (prepared.recipe.expand(values) for values in (prepared.train, prepared.test))
    scaling_X, scaling_y = Scaling.of(X_train), Scaling.of(prepared.y_train)
    X_train, X_test = scaling_X.apply(X_train), scaling_X.apply(X_test)
    y_train, y_test = scaling_y.apply(prepared.y_train), scaling_y.apply(prepared.y_test)
    scale = 1.0 if prepared.recipe.several else float(scaling_y.scale)
    predictions = {
        MODEL: (scaling_y.apply(evaluation.mean), (evaluation.std / scaling_y.scale) ** 2),
        "linear": _by_target(lambda y: fit_linear(X_train, y).predict(X_test), y_train),
        "mean": _by_target(lambda y: fit_constant(y).predict(X_test), y_train),
    }
    squares = {name: (y_test - mean) ** 2 for name, (mean, _) in predictions.items()}
    return [
        Score(
            name,
            scale * metrics.rmse(y_test, mean),
            metrics.nlpd(y_test, mean, variance) + math.log(scale),
            *((None, None) if name == MODEL else _leads(squares[MODEL], squares[name])),
        )
        for name, (mean, variance) in predictions.items()
    ]


def _by_target(
    predict: Callable[[FloatArray], tuple[FloatArray, FloatArray]], y_train: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Mean and variance from the targets of the rows to train on, with a column for each of several targets."""
    if y_train.ndim == 1:
        return predict(y_train)
    means, variances = zip(*(predict(y) for y in y_train.T), strict=True)
    return np.column_stack(means), np.column_stack(variances)


def _leads(squares: FloatArray, others: FloatArray) -> tuple[float | None, float | None]:
    """By how many standard errors these squared errors are lower than others of the same rows: their mean, their ranks.

    The second is Wilcoxon's signed rank statistic.
    """
    from scipy.stats import rankdata  # here, since importing it takes long, and commands should answer at once

    differences = np.ravel(others - squares)
    spread = float(differences.std(ddof=1)) if len(differences) > 1 else 0.0
    if not spread > 0.0:
        return None, None
    ranks = rankdata(np.abs(differences)) * (differences != 0.0)
    by_rank = float(np.sign(differences) @ ranks / np.linalg.norm(ranks))
    return float(differences.mean()) / (spread / math.sqrt(len(differences))), by_rank
