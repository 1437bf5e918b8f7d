"""How many verdicts of near-exactness are false? On subsets small enough to know the exact GP.

    NEAREXACT_DATA=<folder> python benchmarks/truth.py [--tables <folder>] [--rows 1275 4000] [--seeds 3] [--names a,b]
        [--first-seed 0] [--estimators GPRegressor SGPRegressor] [--time-limits 20 60] [--references <file>]

The reference is the highest exact log marginal likelihood that anybody finds on the same rows: an exact GP from the
search's starts with another seed, and from the hyperparameters of every model under test. A verdict is false where
the model's proved lower bound is more than 0.01 nats per row below it. `--tables` names a folder of gzipped CSV files
without header, the target in the last column. Results are added to those of earlier runs; `--table` only prints them.
The best likelihoods of an earlier file of results, `--references`, take the place of an exact GP with another seed.
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

import torch
from search import Data, problems
from sklearn.exceptions import ConvergenceWarning

import nearexact
from nearexact.certificate import NEAR_EXACT
from nearexact.gp import ExactObjective, ExactTraining, NumericalError, minimise
from nearexact.gp.parameters import LogCoordinates
from nearexact.kernels import SquaredExponential

NEAR = 0.01  # nats per row
RESULTS = Path(__file__).with_name("results") / "truth.jsonl"
REFERENCE_LIMIT = 120.0  # seconds for the exact GP that is the reference
CLIMB_LIMIT = 30.0  # seconds for L-BFGS from the hyperparameters of a model
REFERENCE_SEED = 1000  # another one than that of any model

Outcome = dict[str, Any]


def climbed_from(model: nearexact.GPRegressor, data: Data) -> float:
    """The exact likelihood that is reached from a model's hyperparameters."""
    objective = ExactObjective(model.kernel_, model.noise_variance_, *data)
    try:
        optimum = minimise(
            LogCoordinates.objective(objective), LogCoordinates.from_theta(objective.theta0), time_limit=CLIMB_LIMIT
        )
    except NumericalError:
        return -math.inf
    return -optimum.value


def reference_likelihood(data: Data) -> float:
    """The exact GP's, given more time than any model has."""
    training = ExactTraining(SquaredExponential(), *data, seed=REFERENCE_SEED, time_limit=REFERENCE_LIMIT)
    training.run()
    return training.best_lml


def read(path: Path) -> list[Outcome]:
    """The outcomes in a file; none if it is not there."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def key_of(outcome: Outcome) -> tuple[str, int, int]:
    """Which rows of which problem."""
    return outcome["problem"], outcome["seed"], outcome["asked_rows"]


def outcomes(
    name: str, seed: int, data: Data, estimators: list[str], limits: list[float], known: float | None
) -> Iterator[Outcome]:
    """All models of a problem, compared with the best that is known about it."""
    X, y = data
    models = []
    for limit in limits:
        for estimator in estimators:
            started = time.perf_counter()
            model = getattr(nearexact, estimator)(time_limit=limit, random_state=seed).fit(X, y)
            models.append((estimator, limit, time.perf_counter() - started, model))
    reference = reference_likelihood(data) if known is None else known
    best = max(reference, *(climbed_from(model, data) for *_, model in models))
    for estimator, limit, seconds, model in models:
        certificate = model.certificate_
        missing = (best - certificate.lower) / len(y)
        yield {
            "problem": name,
            "seed": seed,
            "rows": len(y),
            "inputs": X.shape[1],
            "estimator": estimator,
            "time_limit": limit,
            "seconds": round(seconds, 2),
            "method": model.method_,
            "m": len(model.inducing_points_),
            "verdict": certificate.verdict,
            "lower": certificate.lower,
            "upper": certificate.upper,
            "best": best,
            "reference": reference,
            "missing": missing,
            "evidence": certificate.about_theta,
            "false": certificate.verdict in NEAR_EXACT and missing > NEAR,
            "threads": torch.get_num_threads(),
        }


def table(results: list[Outcome]) -> str:
    """A row for each estimator, number of rows, time limit and number of threads."""
    lines = [
        "| estimator | rows | limit (s) | threads | models | near-exact | of these false | miss more than 0.01 |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    by_setting: dict[tuple[Any, ...], list[Outcome]] = {}
    for r in results:
        by_setting.setdefault((r["estimator"], r["asked_rows"], r["time_limit"], r["threads"]), []).append(r)
    for (estimator, rows, limit, threads), own in sorted(by_setting.items()):
        near = [r for r in own if r["verdict"] in NEAR_EXACT]
        false, missed = sum(r["false"] for r in near), sum(r["missing"] > NEAR for r in own)
        figures = [estimator, rows, f"{limit:g}", threads, len(own), len(near), false, missed]
        lines.append("| " + " | ".join(str(figure) for figure in figures) + " |")
    return "\n".join(lines)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--tables", type=Path)
    options.add_argument("--rows", type=int, nargs="+", default=[1275])
    options.add_argument("--seeds", type=int, default=1)
    options.add_argument("--first-seed", type=int, default=0)
    options.add_argument("--names", default="")
    options.add_argument("--estimators", nargs="+", default=["GPRegressor", "SGPRegressor"])
    options.add_argument("--time-limits", type=float, nargs="+", default=[20.0])
    options.add_argument("--references", type=Path, help="results of an earlier run, whose best likelihoods count")
    options.add_argument("--output", type=Path, default=RESULTS)
    options.add_argument("--table", action="store_true", help="print the table of what is there, and nothing else")
    given = options.parse_args()
    warnings.simplefilter("ignore", ConvergenceWarning)
    results = read(given.output)
    known: dict[tuple[str, int, int], float] = {}
    for outcome in [] if given.references is None else read(given.references):
        known[key_of(outcome)] = max(outcome["best"], known.get(key_of(outcome), -math.inf))
    here = [r for r in results if r["threads"] == torch.get_num_threads()]
    done = {(r["problem"], r["seed"], r["asked_rows"], r["time_limit"], r["estimator"]) for r in here}
    for rows in [] if given.table else given.rows:
        for seed in range(given.first_seed, given.first_seed + given.seeds):
            for name, data in problems(rows, seed, given.tables):
                if given.names and name not in given.names.split(","):
                    continue
                wanted = [
                    (limit, e) for limit in given.time_limits for e in given.estimators
                    if (name, seed, rows, limit, e) not in done
                ]  # fmt: skip
                if not wanted or (rows != min(given.rows) and len(data[1]) <= min(given.rows)):
                    continue  # a small table has no more rows to take
                limits, estimators = sorted({limit for limit, _ in wanted}), sorted({e for _, e in wanted})
                for outcome in outcomes(name, seed, data, estimators, limits, known.get((name, seed, rows))):
                    results.append({"asked_rows": rows, **outcome})
                    with given.output.open("a", encoding="utf-8") as file:
                        file.write(json.dumps(results[-1]) + "\n")
                    print(
                        f"{name:14s} seed {seed} rows {outcome['rows']:4d} {outcome['estimator']:12s}"
                        f" {outcome['time_limit']:3g} s {outcome['seconds']:5.1f} s M {outcome['m']:4d}"
                        f" {outcome['verdict']:20s} missing {outcome['missing']:8.4f}"
                        f" (reference {(outcome['best'] - outcome['reference']) / outcome['rows']:.4f})"
                        f"{'  FALSE' if outcome['false'] else ''}",
                        flush=True,
                    )
    print(table(results))


if __name__ == "__main__":
    main()
