"""How many verdicts of near-exactness are false where θ is known? On tables that are drawn from GPs.

    python benchmarks/drawn_tables.py [--tables 60] [--first 0] [--estimators GPRegressor SGPRegressor]
        [--time-limits 20] [--output <file>]

Every table has its own number of rows and inputs, its own kinds of inputs (normal, uniform, skewed, few levels, groups
of equal values in no order) and its own θ: lengthscales from a hundredth of a deviation to none at all, noise from
almost none to most of the variance, all drawn from the table's number. What θ of the draw leads to, by L-BFGS on the
exact likelihood, is a likelihood that everybody could have found. A verdict is false where the model's lower bound is
more than 0.01 nats per row below it.
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


def drawn(number: int) -> tuple[Array, Array, Array, float, list[str]]:
    """Inputs, targets, lengthscales, noise variance, kinds of the inputs."""
    random = np.random.default_rng([number, 2024])
    rows = int(math.exp(random.uniform(math.log(FEWEST_ROWS), math.log(MOST_ROWS))))
    inputs = int(random.integers(1, MOST_INPUTS + 1))
    kinds = [str(kind) for kind in random.choice(KINDS, size=inputs)]
    X = np.column_stack([column(kind, rows, random) for kind in kinds])
    relevant = random.permutation(inputs)[: int(random.integers(1, min(inputs, 5) + 1))]
    lengthscales = np.full(inputs, OFF)
    lengthscales[relevant] = np.exp(random.uniform(math.log(0.3), math.log(6.0), size=len(relevant)))
    if random.uniform() < 0.5:  # details in one input, or in groups of equal values
        lengthscales[relevant[0]] = math.exp(random.uniform(math.log(0.003), math.log(0.3)))
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


def outcomes(number: int, estimators: list[str], limits: list[float]) -> Iterator[Outcome]:
    X, y, lengthscales, noise, kinds = drawn(number)
    models = []
    for limit in limits:
        for estimator in estimators:
            started = time.perf_counter()
            model = getattr(nearexact, estimator)(time_limit=limit, random_state=number).fit(X, y)
            models.append((estimator, limit, time.perf_counter() - started, model))
    scaled = (y - y.mean()) / y.std()
    truth = climbed(X, scaled, SquaredExponential(lengthscales, variance=1.0 / y.var()), noise / y.var())
    # Certificates, too, are about standardised targets.
    best = max(truth, *(climbed(X, scaled, model.kernel_, model.noise_variance_) for *_, model in models))
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
    options.add_argument("--output", type=Path, default=RESULTS, help="written anew")
    given = options.parse_args()
    warnings.simplefilter("ignore", ConvergenceWarning)
    results = []
    with given.output.open("w", encoding="utf-8") as file:
        for number in range(given.first, given.first + given.tables):
            for outcome in outcomes(number, given.estimators, given.time_limits):
                results.append(outcome)
                file.write(json.dumps(outcome) + "\n")
                file.flush()
                print(
                    f"{number:4d} {outcome['rows']:4d} rows {outcome['inputs']:2d} inputs {outcome['estimator']:12s}"
                    f" {outcome['seconds']:5.1f} s {outcome['verdict']:20s} missing {outcome['missing']:8.4f}"
                    f"{'  FALSE' if outcome['false'] else ''}",
                    flush=True,
                )
    print(table(results))


if __name__ == "__main__":
    main()
