"""On which data sets a method is near-exact, and what that took: the paper's Recommendation 4.

The verdict on each run is that of judging.py. Whether the linear model does as well is a column of its own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import get_args

import pandas as pd

from nearexact.bench.analysis.checkpoints import FINAL
from nearexact.bench.analysis.families import BASELINES, ordered
from nearexact.bench.analysis.judging import BASELINE, NO_RESULT, run_verdicts
from nearexact.bench.analysis.losses import LML
from nearexact.bench.analysis.results import Results, Size
from nearexact.certificate import CERTIFIED_GAP, NEAR_EXACT, VERDICT_KINDS, Kind, Verdict

__all__ = [
    "BASELINE", "KINDS", "NO_RESULT", "linear_as_good", "linear_by_dataset", "middle", "near_exact_counts",
    "near_exactness", "run_verdicts",
]  # fmt: skip

KINDS: dict[str, Kind] = {**VERDICT_KINDS, NO_RESULT: "bad", BASELINE: "plain"}
# From worst to best: the verdict on several seeds is the one in the middle, the worse of two in the middle.
RANKS: tuple[str, ...] = (NO_RESULT, *reversed(get_args(Verdict)), BASELINE)


def middle(verdicts: Sequence[str]) -> str:
    """The verdict on several seeds."""
    ranked = sorted(verdicts, key=RANKS.index)
    return ranked[(len(ranked) - 1) // 2]


def near_exactness(results: Results) -> pd.DataFrame:
    """A row for each data set and method: the verdict in the middle of the seeds, and medians over those near-exact."""
    runs, values = run_verdicts(results), results.checkpoint_values
    final = values[values["checkpoint"] == FINAL].groupby(["dataset", "method"])[LML.name].mean()
    rows = []
    for dataset in sorted(runs["dataset"].unique()):
        dataset_runs = runs[runs["dataset"] == dataset]
        size = results.sizes[dataset]
        for method in ordered(dataset_runs["method"]):
            seeds = dataset_runs[dataset_runs["method"] == method]
            verdict = middle(seeds["verdict"].tolist())
            near = seeds[seeds["verdict"].isin(NEAR_EXACT)]
            costs = near if verdict in NEAR_EXACT else near.iloc[:0]
            like = seeds[seeds["verdict"] == verdict]
            with_gap = like[like["gap_per_point"].notna()]
            shown = (with_gap if len(with_gap) else like).iloc[0]  # a run that the gap is of
            loss, linear_loss = (final.get((dataset, name), math.nan) for name in (method, "linear"))
            rows.append(
                {
                    "dataset": dataset,
                    "n": size.n,
                    "inputs": size.inputs,
                    "method": method,
                    "verdict": verdict,
                    "seeds_near_exact": len(near),
                    "seeds": len(seeds),
                    "gap_per_point": like["gap_per_point"].median(),
                    "hyperparameters": shown["hyperparameters"],
                    **{name: costs[name].median() for name in ("m", "seconds", "flops", "peak_memory_mb")},
                    "linear_as_good": "" if method in BASELINES else linear_as_good(loss, linear_loss, size),
                    "basis": shown["basis"],
                }
            )
    return pd.DataFrame(rows)


def linear_as_good(loss: float, linear_loss: float, size: Size) -> str:
    """Whether the linear model's likelihood is at most CERTIFIED_GAP per point below: "yes", "no", "" if not known."""
    if size.n is None or not math.isfinite(loss) or not math.isfinite(linear_loss):
        return ""
    return "yes" if linear_loss <= loss + CERTIFIED_GAP * size.n else "no"


def linear_by_dataset(table: pd.DataFrame, losses: dict[tuple[str, str], float], bounding: set[str]) -> dict[str, str]:
    """Whether the linear model does as well as the best GP on each data set: "yes", "no", "" if not known.

    The best is the near-exact method with the lowest loss (by data set and method, −LML), else the best of `bounding`,
    else of all: a bad approximation is no measure of what a GP can do.
    """
    best: dict[str, tuple[tuple[int, float], str]] = {}
    for row in table.itertuples():
        if row.linear_as_good:
            rank = 0 if row.verdict in NEAR_EXACT else 1 if row.method in bounding else 2
            loss = losses[row.dataset, row.method]
            candidate = ((rank, math.inf if math.isnan(loss) else loss), row.linear_as_good)
            best[row.dataset] = min(candidate, best.get(row.dataset, candidate))
    return {dataset: best[dataset][1] if dataset in best else "" for dataset in table["dataset"].unique()}


def near_exact_counts(table: pd.DataFrame) -> pd.DataFrame:
    """For how many data sets each method is near-exact, and the median of what that took."""
    rows = []
    for method in ordered(table["method"]):
        if method in BASELINES:
            continue
        datasets = table[table["method"] == method]
        near = datasets[datasets["verdict"].isin(NEAR_EXACT)]
        ranks = [name for name in reversed(RANKS) if name != BASELINE]
        rows.append(
            {
                "method": method,
                "near_exact": len(near),
                **{name.replace(" ", "_"): int((datasets["verdict"] == name).sum()) for name in ranks},
                "datasets": len(datasets),
                "seconds": near["seconds"].median(),
                "flops": near["flops"].median(),
                "peak_memory_mb": near["peak_memory_mb"].median(),
            }
        )
    return pd.DataFrame(rows) if rows else pd.DataFrame(columns=["method", "near_exact", "datasets"])
