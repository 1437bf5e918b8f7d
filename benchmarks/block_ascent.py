"""What a climb on the likelihood of rows in blocks gains, and whether it knows where it must not be believed.

    NEAREXACT_DATA=<folder> python benchmarks/block_ascent.py [--rows 10000] [--datasets power,pol]

From the best θ of a search on half of the rows or 2,048 of them. "nearly exact" is what the climb says of itself; the
exact likelihoods before and after, by Cholesky, say what is true.
"""

from __future__ import annotations

import argparse
import math
import time
from dataclasses import dataclass

import torch
from log_det_bounds import standardised
from result_files import earlier, write

from nearexact.gp import ExactObjective, NumericalError
from nearexact.gp.block_ascent import climbed_in_blocks
from nearexact.gp.search import Search
from nearexact.kernels import SquaredExponential
from nearexact.typing import FloatArray

RESULTS = "block_ascent.json"
DATASETS = "skillcraft,kin8nm,power,naval,pol,elevators,bike,kin40k,protein,tamielectric,keggdirected,keggundirected"
SEARCH_ROWS, SEARCH_SECONDS = 2048, 40.0


@dataclass(frozen=True)
class Outcome:
    """Likelihoods in nats per row."""

    rows: int
    before: float
    after: float
    in_blocks: float  # with 512 rows given
    is_nearly_exact: bool
    search_seconds: float
    seconds: float
    exact_seconds: float  # of one likelihood, without its gradient


def compare(name: str, rows: int) -> Outcome:
    """One data set."""
    X, y = standardised(name, rows)
    started = time.perf_counter()
    search = Search(
        SquaredExponential(), X, y, time_limit=SEARCH_SECONDS, seed=0, most_rows=min(SEARCH_ROWS, rows // 2)
    )
    search.run()
    searched = time.perf_counter()
    theta = search.candidates[0].theta
    optimum = climbed_in_blocks(search, theta, math.inf)
    climbed = time.perf_counter()
    before = exact(search, X, y, theta)
    seconds = time.perf_counter() - climbed
    after = math.nan if optimum is None else exact(search, X, y, optimum.theta)
    n = len(y)
    return Outcome(
        n,
        before / n,
        after / n,
        math.nan if optimum is None else optimum.likelihood / n,
        optimum is not None and optimum.is_nearly_exact,
        searched - started,
        climbed - searched,
        seconds,
    )


def exact(search: Search, X: torch.Tensor, y: torch.Tensor, theta: FloatArray) -> float:
    """The exact likelihood."""
    kernel, noise = search.layout.unpack(theta)
    try:
        return ExactObjective(kernel, noise, X, y).factorise(kernel, noise).sure_lml
    except NumericalError:
        return -math.inf


def table(outcomes: dict[str, Outcome]) -> str:
    """A row for each data set."""
    lines = [
        "| data: rows | before | after | in blocks | nearly exact | search (s) | climb (s) | one likelihood (s) |",
        "|" + " --- |" * 8,
    ]
    for name, o in outcomes.items():
        given_up = math.isnan(o.after)
        reached = ["given up", "", ""] if given_up else [f"{o.after:.4f}", f"{o.in_blocks:.4f}", str(o.is_nearly_exact)]
        seconds = [f"{s:.1f}" for s in (o.search_seconds, o.seconds, o.exact_seconds)]
        lines.append("| " + " | ".join([f"{name}: {o.rows}", f"{o.before:.4f}", *reached, *seconds]) + " |")
    return "\n".join(lines)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--rows", type=int, default=10_000)
    options.add_argument("--datasets", default=DATASETS)
    given = options.parse_args()
    outcomes = {name: Outcome(**values) for name, values in (earlier(RESULTS) or {}).items()}
    for name in given.datasets.split(","):
        outcomes[name] = compare(name, given.rows)
        print(table({name: outcomes[name]}).splitlines()[-1], flush=True)
        write(RESULTS, {name: vars(outcome) for name, outcome in outcomes.items()})
    print(table(outcomes))


if __name__ == "__main__":
    main()
