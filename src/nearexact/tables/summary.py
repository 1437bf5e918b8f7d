"""What came of a fit, in figures: errors next to simple predictors, coverage, certificate, relevance, repairs.

Errors are in the units of the target. Relevance is how much the fitted kernel lets the function change when a column
moves by one standard deviation, relative to the most relevant column.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from scipy.stats import norm
from sklearn.linear_model import LinearRegression
from sklearn.metrics import root_mean_squared_error

from nearexact.estimators import GPRegressor, SGPRegressor
from nearexact.gp.safety import Repairs
from nearexact.kernels import Kernel
from nearexact.tables.kernel_choice import Choice, Trial
from nearexact.tables.recipe import Prepared, Recipe
from nearexact.typing import FloatArray

LEVELS = (0.5, 0.8, 0.9, 0.95, 0.99)
SHOWN_ROWS = 2000  # that were trained on, where none were kept back to test
RELEVANCE_ROWS = 50  # at which it is looked how much the function may change
LEAST_VARIANCE = 1e-20  # of a predictor's noise, relative to the target's own


@dataclass(frozen=True)
class Score:
    """How well test targets were predicted: root mean squared error, and mean negative log predictive density."""

    predictor: str
    rmse: float
    nlpd: float


@dataclass(frozen=True)
class Relevance:
    """How much a column matters, 1 for the one that matters most."""

    column: str
    relevance: float
    lengthscale: float | None  # the shortest of its inputs, in standard deviations of the input; if it has any


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Targets and their predictions."""

    y: FloatArray
    mean: FloatArray
    std: FloatArray
    tested: bool  # on rows that were not trained on

    def coverage(self, levels: Sequence[float] = LEVELS) -> list[float]:
        """The share of targets in the central predictive interval of each level."""
        distance = np.abs(self.y - self.mean) / self.std
        return [float(np.mean(distance <= norm.ppf(0.5 + level / 2.0))) for level in levels]


@dataclass(frozen=True)
class Summary:
    """Figures of a fit."""

    target: str
    rows_train: int
    rows_test: int
    columns: int
    inputs: int
    kernel: str
    m: int
    elbo: float
    lower: float
    upper: float
    gap_per_point: float
    verdict: str
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
        """In words that JSON has."""
        words: dict[str, Any] = plain(asdict(self))
        return words


def summarise(
    model: SGPRegressor,
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
        m=len(model.inducing_points_),
        elbo=model.elbo_,
        lower=certificate.lower,
        upper=certificate.upper,
        gap_per_point=certificate.gap_per_point,
        verdict=certificate.verdict,
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


def evaluate(model: SGPRegressor, prepared: Prepared) -> Evaluation:
    """Predictions for the test rows; for some of the rows that were trained on if there are none."""
    tested = len(prepared.y_test) > 0
    values, y = prepared.test, prepared.y_test
    if not tested:
        values, y = prepared.train[:SHOWN_ROWS], prepared.y_train[:SHOWN_ROWS]
    mean, std = model.predict(prepared.recipe.frame(values), return_std=True)
    return Evaluation(y, mean, std, tested)


def scores(prepared: Prepared, evaluation: Evaluation) -> list[Score]:
    """Of the model, of a linear one and of the constant one."""
    y_train, y_test = prepared.y_train, prepared.y_test
    X_train, X_test = (prepared.recipe.expand(values) for values in (prepared.train, prepared.test))
    shift, scale = X_train.mean(0), np.where(X_train.std(0) > 0.0, X_train.std(0), 1.0)
    linear = LinearRegression().fit((X_train - shift) / scale, y_train)
    least = max(LEAST_VARIANCE * float(y_train.var()), np.finfo(float).tiny)
    noise = math.sqrt(max(float(np.mean((y_train - linear.predict((X_train - shift) / scale)) ** 2)), least))
    predictions = {
        "nearexact": (evaluation.mean, evaluation.std),
        "linear": (linear.predict((X_test - shift) / scale), noise),
        "mean": (np.full(len(y_test), y_train.mean()), math.sqrt(max(float(y_train.var()), least))),
    }
    return [
        Score(name, float(root_mean_squared_error(y_test, mean)), float(-norm.logpdf(y_test, mean, std).mean()))
        for name, (mean, std) in predictions.items()
    ]


def relevances(kernel: Kernel, rows: FloatArray, recipe: Recipe) -> list[Relevance]:
    """Columns by relevance, the most relevant first; rows are some standardised inputs, [n, D]."""
    d = len(recipe.inputs)
    changes, lengthscales = _expected_changes(kernel, rows[:RELEVANCE_ROWS]), _lengthscales(kernel, d)
    found = []
    for name, inputs in recipe.slices().items():
        shortest = float(lengthscales[inputs].min())
        found.append((float(changes[inputs].max()), name, shortest if math.isfinite(shortest) else None))
    largest = max(change for change, _, _ in found) or 1.0
    ranked = sorted(found, key=lambda entry: -entry[0])
    return [Relevance(name, change / largest, lengthscale) for change, name, lengthscale in ranked]


def repairs(model: SGPRegressor | GPRegressor) -> dict[str, float]:
    """What training had to mend, by its names in the history."""
    total = asdict(Repairs.sum(stage.repairs for stage in model.history_))
    return {
        **total,
        **{name: sum(getattr(stage, name) for stage in model.history_) for name in ("restarts", "rescues")},
    }


def _expected_changes(kernel: Kernel, rows: FloatArray) -> FloatArray:
    """How much a draw from the kernel changes when an input moves by a standard deviation, root mean square: [D].

    E(f(x′) − f(x))² = k(x, x) + k(x′, x′) − 2k(x, x′). With a short lengthscale that is √2 times the signal's standard
    deviation and no more; with a long one it falls like its inverse.
    """
    changes = np.empty(rows.shape[1])
    for i in range(len(changes)):
        moved = rows + (np.arange(len(changes)) == i)
        squares = kernel.diag(rows) + kernel.diag(moved) - 2.0 * np.diagonal(kernel(rows, moved))
        changes[i] = math.sqrt(max(float(squares.mean()), 0.0))
    return changes


def _lengthscales(kernel: Kernel, d: int) -> FloatArray:
    """The shortest lengthscale of each input, infinite where there is none: [D]."""
    named = kernel.parameters.items()
    found = [np.broadcast_to(value, d) for name, value in named if name.rpartition(".")[2] == "lengthscales"]
    return np.min(found, axis=0) if found else np.full(d, np.inf)


def plain(value: Any) -> Any:
    """In words that JSON has: what is infinite or no number becomes null."""
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, (float, np.floating)):
        return float(value) if math.isfinite(value) else None
    return value
