"""Which starts find the best exact likelihood? Strategies side by side, on data sets, tables and generated traps.

    NEAREXACT_DATA=<folder> python benchmarks/search.py [--tables <folder>] [--rows 500 1275] [--limit 60] [--names a,b]

For each problem the best known likelihood is the highest that any strategy reaches, or that results/truth.jsonl has.
The table says how often each strategy comes within 0.01 nats per row of it, and what it takes; each has as many seconds
as `--limit` says. `--tables` names a folder of gzipped CSV files without header, the target in the last column. Results
are added to those of earlier runs; `--table` only prints them.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch

from nearexact.bench import datasets
from nearexact.gp import ExactObjective, ExactTraining, NumericalError, minimise
from nearexact.gp.parameters import LogCoordinates
from nearexact.gp.starts import SMOOTH_NOISE, START_NOISE, random_start, with_less_influence
from nearexact.kernels import SquaredExponential
from nearexact.noise_only import explains_nothing, noise_only_likelihood
from nearexact.scaling import Scaling
from nearexact.typing import FloatArray

NEAR = 0.01  # nats per row
RESULTS = Path(__file__).with_name("results") / "search.json"
KNOWN = Path(__file__).with_name("results") / "truth.jsonl"  # likelihoods that others have reached on the same rows
RANDOM_STARTS = 10

Data = tuple[FloatArray, FloatArray]


@dataclass(frozen=True)
class Outcome:
    """What a strategy has reached on a problem."""

    problem: str
    asked_rows: int
    rows: int
    inputs: int
    strategy: str
    limit: float
    likelihood: float
    evaluations: int
    seconds: float


class Problem:
    """The exact likelihood of some rows, counting its evaluations."""

    def __init__(self, X: FloatArray, y: FloatArray, limit: float) -> None:
        self.X, self.y, self.limit, self.started = X, y, limit, time.perf_counter()
        self.objective = ExactObjective(SquaredExponential(), START_NOISE, X, y)
        self.layout, self.theta0 = self.objective.layout, self.objective.theta0
        kernel, _ = self.layout.unpack(with_less_influence(self.layout, self.theta0))
        self.smooth = self.layout.pack(kernel, SMOOTH_NOISE)
        self.evaluations = 0

    def climb(self, theta: FloatArray, *, logs: bool) -> float:
        """The likelihood that L-BFGS reaches from here in the time that is left; none if there is none."""
        left = self.limit - (time.perf_counter() - self.started)
        if left <= 0.0:
            return -math.inf
        try:
            if logs:
                objective = LogCoordinates.objective(self.objective)
                optimum = minimise(objective, LogCoordinates.from_theta(theta), time_limit=left)
            else:
                optimum = minimise(self.objective, theta, time_limit=left)
        except NumericalError:
            return -math.inf
        self.evaluations += optimum.evaluations
        return -optimum.value

    def is_noise(self, likelihood: float) -> bool:
        """Whether a likelihood is no better than that of noise alone."""
        return explains_nothing(likelihood, noise_only_likelihood(self.objective.y), len(self.y))


def usual(problem: Problem, *, logs: bool) -> float:
    """Unit lengthscales, and a smooth start where that ends in noise: as before there was a search."""
    likelihood = problem.climb(problem.theta0, logs=logs)
    return max(likelihood, problem.climb(problem.smooth, logs=logs)) if problem.is_noise(likelihood) else likelihood


def at_random(problem: Problem) -> float:
    """The best of several random starts on all rows."""
    random = np.random.default_rng(0)
    starts = [random_start(problem.layout, problem.smooth, random) for _ in range(RANDOM_STARTS)]
    return max(problem.climb(start, logs=True) for start in starts)


def searched(problem: Problem) -> float:
    """The search on subsets, then all rows."""
    training = ExactTraining(
        SquaredExponential(), problem.X, problem.y, seed=0, time_limit=problem.limit, memory_limit="8GB"
    )
    training.run()
    problem.evaluations += sum(stage.evaluations for stage in training.history)
    return training.best_lml


STRATEGIES: dict[str, Callable[[Problem], float]] = {
    "usual starts, softplus": lambda problem: usual(problem, logs=False),
    "usual starts, logarithms": lambda problem: usual(problem, logs=True),
    "smooth start, logarithms": lambda problem: problem.climb(problem.smooth, logs=True),
    f"{RANDOM_STARTS} random starts, logarithms": at_random,
    "search on subsets": searched,
}


def traps(rows: int, seed: int) -> Iterator[tuple[str, Data]]:
    """Generated data on which smooth hyperparameters look good."""
    random = np.random.default_rng(seed)
    X = random.normal(size=(rows, 32))
    yield "few of many", (X, np.sin(2 * X[:, 0]) + X[:, 1] * X[:, 2] + 0.5 * X[:, 3] + 0.1 * random.normal(size=rows))
    X = random.uniform(-3.0, 3.0, size=(rows, 2))
    y = X[:, 0] + 0.5 * X[:, 1] ** 2 + 0.2 * np.sin(15.0 * X[:, 0]) + 0.02 * random.normal(size=rows)
    yield "ripples", (X, y)
    member = random.integers(0, rows // 4, size=rows)
    X = random.normal(size=(rows // 4, 5))[member] + 1e-3 * random.normal(size=(rows, 5))
    yield "groups", (X, random.normal(size=rows // 4)[member] + 0.05 * random.normal(size=rows))
    X = random.uniform(-2.0, 2.0, size=(rows, 2))
    yield "step", (X, (X[:, 0] > 0.3) + 0.05 * random.normal(size=rows))


def problems(rows: int, seed: int, tables: Path | None) -> Iterator[tuple[str, Data]]:
    """Names and standardised data of at most so many rows."""
    for name in datasets.PAPER:
        split = datasets.load_split(name, seed)
        yield name, _standardised(split.X_train[:rows], split.y_train[:rows])
    for path in sorted(tables.glob("*.csv.gz")) if tables else []:
        table = np.loadtxt(path, delimiter=",")
        chosen = table[np.random.default_rng(seed).permutation(len(table))[: int(0.85 * len(table))]][:rows]
        yield path.name.removesuffix(".csv.gz"), _standardised(chosen[:, :-1], chosen[:, -1])
    for name, (X, y) in traps(rows, seed):
        yield name, _standardised(X, y)


def _standardised(X: FloatArray, y: FloatArray) -> Data:
    return Scaling.of(X).apply(X), Scaling.of(y).apply(y)


def best_known(outcomes: list[Outcome]) -> dict[tuple[str, int], float]:
    """The highest likelihood of each problem, by its name and the rows that were asked for."""
    best: dict[tuple[str, int], float] = {}
    for line in KNOWN.read_text().splitlines() if KNOWN.exists() else []:
        known = json.loads(line)
        if known["seed"] == 0:
            key = known["problem"], known["asked_rows"]
            best[key] = max(best.get(key, -math.inf), known["best"])
    for outcome in outcomes:
        key = outcome.problem, outcome.asked_rows
        best[key] = max(best.get(key, -math.inf), outcome.likelihood)
    return best


def table(outcomes: list[Outcome]) -> str:
    """A row for each number of rows and strategy."""
    best = best_known(outcomes)
    lines = [
        "| rows | seconds at most | strategy | within 0.01 nats per row of the best | evaluations | seconds |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for rows, limit in sorted({(outcome.asked_rows, outcome.limit) for outcome in outcomes}):
        for name in STRATEGIES:
            own = [o for o in outcomes if (o.asked_rows, o.limit, o.strategy) == (rows, limit, name)]
            near = sum(o.likelihood >= best[o.problem, rows] - NEAR * o.rows for o in own)
            evaluations = sum(o.evaluations for o in own) / max(len(own), 1)
            seconds = sum(o.seconds for o in own) / max(len(own), 1)
            lines.append(f"| {rows} | {limit:g} | {name} | {near} of {len(own)} | {evaluations:.0f} | {seconds:.1f} |")
    return "\n".join(lines)


def read(path: Path) -> list[Outcome]:
    """Those of earlier runs."""
    return [Outcome(**outcome) for outcome in json.loads(path.read_text())["outcomes"]] if path.exists() else []


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--tables", type=Path)
    options.add_argument("--rows", type=int, nargs="+", default=[500])
    options.add_argument("--limit", type=float, default=60.0)
    options.add_argument("--names", default="")
    options.add_argument("--output", type=Path, default=RESULTS)
    options.add_argument("--table", action="store_true", help="print the table of what is there, and nothing else")
    given = options.parse_args()
    outcomes = read(given.output)
    done = {(o.problem, o.asked_rows, o.limit, o.strategy) for o in outcomes}
    for rows in [] if given.table else given.rows:
        for name, (X, y) in problems(rows, 0, given.tables):
            if len(y) < rows / 2 or (given.names and name not in given.names.split(",")):
                continue  # a small table has no more rows to take
            for strategy, run in STRATEGIES.items():
                if (name, rows, given.limit, strategy) in done:
                    continue
                problem = Problem(X, y, given.limit)
                likelihood, seconds = run(problem), time.perf_counter() - problem.started
                shape, spent = (len(y), X.shape[1]), (problem.evaluations, seconds)
                outcomes.append(Outcome(name, rows, *shape, strategy, given.limit, likelihood, *spent))
                print(f"{name} {len(y)} {strategy}: {likelihood:.1f}, {seconds:.1f} s", flush=True)
            written = {"threads": torch.get_num_threads(), "outcomes": [asdict(o) for o in outcomes]}
            given.output.write_text(json.dumps(written, indent=1) + "\n")
    print(table(outcomes))


if __name__ == "__main__":
    main()
