"""How many verdicts of near-exactness are false where θ is known? On tables that are drawn from GPs.

    python benchmarks/drawn_tables.py [--tables 60] [--first 0] [--wide] [--estimators GPRegressor SGPRegressor]
        [--time-limits 20] [--other-seeds 0] [--output <file>]

Every table has its own number of rows and inputs, its own kinds of inputs (normal, uniform, skewed, few levels, groups
of equal values in no order) and its own θ: lengthscales from a hundredth of a deviation to none at all, noise from
almost none to most of the variance, all drawn from the table's number. What θ of the draw leads to, by L-BFGS on the
exact likelihood, is a likelihood that everybody could have found. A verdict is false where the model's lower bound is
more than 0.01 nats per row below it.

`--wide`: 20 to 128 inputs, mixtures of fewer factors, and 20 to 400 rows. There the likelihood has many optima, and
that of the draw need not be the highest: `--other-seeds` adds what GPRegressor finds with as many other seeds.
"""

from __future__ import annotations

import argparse
import json
import math
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning

import nearexact
from nearexact.certificate import NEAR_EXACT
from nearexact.gp import ExactObjective, NumericalError, minimise
from nearexact.gp.parameters import LogCoordinates
from nearexact.kernels import SquaredExponential

NEAR = 0.01  # nats per row
RESULTS = Path(__file__).with_name("results") / "drawn_tables.jsonl"
KINDS = ("normal", "uniform", "skewed", "levels", "groups")
FEWEST_ROWS, MOST_ROWS = 100, 1200
MOST_INPUTS = 16
WIDE_ROWS, WIDE_INPUTS = (20, 400), (20, 128)
OFF = 1e4  # a lengthscale, in deviations

Array = np.ndarray
Outcome = dict[str, Any]


def column(kind: str, rows: int, random: np.random.Generator) -> Array:
    """An input with mean 0 and variance 1."""
    if kind == "normal":
        values = random.normal(size=rows)
    elif kind == "uniform":
        values = random.uniform(size=rows)
    elif kind == "skewed":
        values = np.exp(random.normal(size=rows))
    elif kind == "levels":
        values = random.integers(0, random.integers(2, 12), size=rows).astype(float)
    else:
        places = random.normal(size=max(rows // int(random.integers(3, 30)), 3))
        values = random.choice(places, size=rows)
    deviation = values.std()
    standardised: Array = (values - values.mean()) / (deviation if deviation > 0.0 else 1.0)
    return standardised


def between(least: float, most: float, random: np.random.Generator) -> float:
    """Uniform in the logarithm."""
    return math.exp(random.uniform(math.log(least), math.log(most)))


def narrow_inputs(random: np.random.Generator) -> tuple[Array, list[str]]:
    rows = int(between(FEWEST_ROWS, MOST_ROWS, random))
    inputs = int(random.integers(1, MOST_INPUTS + 1))
    kinds = [str(kind) for kind in random.choice(KINDS, size=inputs)]
    return np.column_stack([column(kind, rows, random) for kind in kinds]), kinds


def wide_inputs(random: np.random.Generator) -> tuple[Array, list[str]]:
    """Many inputs that are mixtures of fewer factors, and a part of their own: a hundredth of the variance, or more."""
    rows, inputs = int(between(*WIDE_ROWS, random)), int(between(*WIDE_INPUTS, random))
    factors = random.normal(size=(rows, int(random.integers(2, inputs))))
    own = 10.0 ** random.uniform(-2.0, 0.0, size=inputs)
    X = factors @ random.normal(size=(factors.shape[1], inputs)) / math.sqrt(factors.shape[1])
    X += np.sqrt(own) * random.normal(size=X.shape)
    kinds = [str(kind) for kind in random.choice(["mixture", "levels"], size=inputs, p=[0.8, 0.2])]
    levels = [d for d, kind in enumerate(kinds) if kind == "levels"]
    X[:, levels] = np.round(X[:, levels])
    deviations = X.std(0)
    return (X - X.mean(0)) / np.where(deviations > 0.0, deviations, 1.0), kinds


def drawn(number: int, *, wide: bool = False) -> tuple[Array, Array, Array, float, list[str]]:
    """Inputs, targets, lengthscales, noise variance, kinds of the inputs."""
    random = np.random.default_rng([number, 2024])
    X, kinds = wide_inputs(random) if wide else narrow_inputs(random)
    rows, inputs = X.shape
    relevant = random.permutation(inputs)[: int(random.integers(1, min(inputs, 5) + 1))]
    lengthscales = np.full(inputs, OFF)
    lengthscales[relevant] = np.exp(random.uniform(math.log(0.3), math.log(6.0), size=len(relevant)))
    if wide and random.uniform() < 0.5:  # all of them matter, each a little
        lengthscales = np.exp(random.uniform(math.log(0.5), math.log(5.0), size=inputs)) * math.sqrt(inputs)
    elif random.uniform() < 0.5:  # details in one input, or in groups of equal values
        lengthscales[relevant[0]] = between(0.003, 0.3, random)
    noise = 10.0 ** random.uniform(-4.0, 0.0)
    scaled = X / lengthscales
    squares = (scaled**2).sum(1)
    K = np.exp(-0.5 * np.maximum(squares[:, None] + squares[None] - 2.0 * scaled @ scaled.T, 0.0))
    values, vectors = np.linalg.eigh(K)
    y = vectors @ (np.sqrt(np.maximum(values, 0.0)) * random.normal(size=rows))
    y += math.sqrt(noise) * random.normal(size=rows)
    return X, y, lengthscales, noise, kinds


def climbed(X: Array, y: Array, kernel: SquaredExponential, noise: float) -> float:
    """The exact likelihood that is reached from here."""
    objective = ExactObjective(kernel, max(noise, 2e-5), X, y)
    try:
        optimum = minimise(LogCoordinates.objective(objective), LogCoordinates.from_theta(objective.theta0))
    except NumericalError:
        return -math.inf
    return -optimum.value


def outcomes(
    number: int, estimators: list[str], limits: list[float], *, wide: bool, other_seeds: int
) -> Iterator[Outcome]:
    X, y, lengthscales, noise, kinds = drawn(number, wide=wide)
    models = []
    for limit in limits:
        for estimator in estimators:
            started = time.perf_counter()
            model = getattr(nearexact, estimator)(time_limit=limit, random_state=number).fit(X, y)
            models.append((estimator, limit, time.perf_counter() - started, model))
    scaled = (y - y.mean()) / y.std()
    truth = climbed(X, scaled, SquaredExponential(lengthscales, variance=1.0 / y.var()), noise / y.var())
    others = [
        nearexact.GPRegressor(time_limit=max(limits), random_state=seed).fit(X, y)
        for seed in range(number + 1, number + 1 + other_seeds)
    ]
    fitted = [model for *_, model in models] + others
    # Certificates, too, are about standardised targets.
    best = max(truth, *(climbed(X, scaled, model.kernel_, model.noise_variance_) for model in fitted))
    for estimator, limit, seconds, model in models:
        certificate = model.certificate_
        missing = (best - certificate.lower) / len(y)
        yield {
            "table": number,
            "rows": len(y),
            "inputs": X.shape[1],
            "kinds": kinds,
            "lengthscales": [round(float(value), 4) for value in lengthscales],
            "noise": noise,
            "estimator": estimator,
            "time_limit": limit,
            "seconds": round(seconds, 2),
            "verdict": certificate.verdict,
            "lower": certificate.lower,
            "best": best,
            "truth": truth,
            "missing": missing,
            "false": certificate.verdict in NEAR_EXACT and missing > NEAR,
        }


def table(results: list[Outcome]) -> str:
    """A row for each estimator and time limit."""
    lines = [
        "| estimator | limit (s) | tables | near-exact verdicts | of these false | miss more than 0.01 |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for estimator, limit in sorted({(r["estimator"], r["time_limit"]) for r in results}):
        own = [r for r in results if (r["estimator"], r["time_limit"]) == (estimator, limit)]
        near = [r for r in own if r["verdict"] in NEAR_EXACT]
        figures = [estimator, f"{limit:g}", len(own), len(near), sum(r["false"] for r in near)]
        lines.append("| " + " | ".join(map(str, [*figures, sum(r["missing"] > NEAR for r in own)])) + " |")
    return "\n".join(lines)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--tables", type=int, default=60)
    options.add_argument("--first", type=int, default=0, help="number of the first table")
    options.add_argument("--estimators", nargs="+", default=["GPRegressor", "SGPRegressor"])
    options.add_argument("--time-limits", type=float, nargs="+", default=[20.0])
    options.add_argument("--wide", action="store_true", help="many inputs, few rows")
    options.add_argument("--other-seeds", type=int, default=0, help="of GPRegressor, to compare with")
    options.add_argument("--output", type=Path, default=RESULTS, help="written anew")
    given = options.parse_args()
    warnings.simplefilter("ignore", ConvergenceWarning)
    results = []
    with given.output.open("w", encoding="utf-8") as file:
        for number in range(given.first, given.first + given.tables):
            found = outcomes(
                number, given.estimators, given.time_limits, wide=given.wide, other_seeds=given.other_seeds
            )
            for outcome in found:
                results.append(outcome)
                file.write(json.dumps(outcome) + "\n")
                file.flush()
                print(
                    f"{number:4d} {outcome['rows']:4d} rows {outcome['inputs']:3d} inputs {outcome['estimator']:12s}"
                    f" {outcome['seconds']:5.1f} s {outcome['verdict']:20s} missing {outcome['missing']:8.4f}"
                    f"{'  FALSE' if outcome['false'] else ''}",
                    flush=True,
                )
    print(table(results))


if __name__ == "__main__":
    main()
