"""On which data sets a method is near-exact, and what that took: the paper's Recommendation 4.

The verdict on each run is that of judging.py. Whether the linear model does as well is a column of its own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import get_args

import pandas as pd

from nearexact.bench.analysis.checkpoints import FINAL
from nearexact.bench.analysis.families import BASELINES
from nearexact.bench.analysis.judging import BASELINE, NO_RESULT, run_verdicts
from nearexact.bench.analysis.losses import LML
from nearexact.bench.analysis.results import Results, Size
from nearexact.bench.analysis.statistics import bootstrap, lower_middle, median
from nearexact.certificate import NEAR_EXACT, Verdict
from nearexact.evidence import CERTIFIED_GAP
from nearexact.typing import FloatArray
from nearexact.verdict_colours import VERDICT_KINDS, Kind

__all__ = [
    "BASELINE", "KINDS", "NO_RESULT", "linear_as_good", "linear_by_dataset", "middle", "near_exact_counts",
    "near_exactness", "run_verdicts",
]  # fmt: skip

LINEAR = "linear"  # the baseline that "linear as good?" asks of
KINDS: dict[str, Kind] = {**VERDICT_KINDS, NO_RESULT: "bad", BASELINE: "plain"}
# From worst to best: the verdict on several seeds is the one in the middle, the worse of two in the middle.
RANKS: tuple[str, ...] = (NO_RESULT, *reversed(get_args(Verdict)), BASELINE)


def middle(verdicts: Sequence[str]) -> str:
    """The verdict on several seeds."""
    ranked = sorted(verdicts, key=RANKS.index)
    return ranked[(len(ranked) - 1) // 2]


def near_exactness(results: Results, judged: pd.DataFrame | None = None) -> pd.DataFrame:
    """A row for each data set and method: the verdict in the middle of the seeds, and medians over those near-exact.

    `judged` are the verdicts on the runs, if they are known already.
    """
    runs, values = run_verdicts(results) if judged is None else judged, results.checkpoint_values
    final = values[values["checkpoint"] == FINAL].groupby(["dataset", "method"])[LML.name].mean()
    rows = []
    for dataset in sorted(runs["dataset"].unique()):
        dataset_runs = runs[runs["dataset"] == dataset]
        size = results.sizes[dataset]
        for method in results.ordered(dataset_runs["method"]):
            seeds = dataset_runs[dataset_runs["method"] == method]
            verdict = middle(seeds["verdict"].tolist())
            near = seeds[seeds["verdict"].isin(NEAR_EXACT)]
            costs = near if verdict in NEAR_EXACT else near.iloc[:0]
            like = seeds[seeds["verdict"] == verdict]
            with_gap = like[like["gap_per_point"].notna()]
            shown = (with_gap if len(with_gap) else like).iloc[0]  # a run that the gap is of
            loss, linear_loss = (final.get((dataset, name), math.nan) for name in (method, LINEAR))
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
                    "linear_as_good": ""
                    if results.bases[method] in BASELINES
                    else linear_as_good(loss, linear_loss, size),
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


def near_exact_counts(results: Results, table: pd.DataFrame, judged: pd.DataFrame) -> pd.DataFrame:
    """For how many data sets each method is near-exact, and the median of what that took; both with 95 % intervals.

    Intervals are over data sets and seeds; that of the seconds over those where the method is near-exact.
    """
    rows = []
    for method in results.ordered(table["method"]):
        if results.bases[method] in BASELINES:
            continue
        datasets = table[table["method"] == method]
        near = datasets[datasets["verdict"].isin(NEAR_EXACT)]
        ranks = [name for name in reversed(RANKS) if name != BASELINE]
        runs = judged[judged["method"] == method]
        counts = bootstrap(_groups(runs, runs["verdict"].map(RANKS.index)), lower_middle, _count_near_exact)
        fast = runs[runs["dataset"].isin(near["dataset"]) & runs["verdict"].isin(NEAR_EXACT)]
        seconds = bootstrap(_groups(fast, fast["seconds"]), median, median)
        rows.append(
            {
                "method": method,
                "near_exact": len(near),
                "near_exact_low": counts[0],
                "near_exact_high": counts[1],
                **{name.replace(" ", "_"): int((datasets["verdict"] == name).sum()) for name in ranks},
                "datasets": len(datasets),
                "seconds": near["seconds"].median(),
                "seconds_low": seconds[0],
                "seconds_high": seconds[1],
                "flops": near["flops"].median(),
                "peak_memory_mb": near["peak_memory_mb"].median(),
            }
        )
    columns = ["method", "near_exact", "near_exact_low", "near_exact_high", "datasets", "seconds", "seconds_low"]
    return pd.DataFrame(rows) if rows else pd.DataFrame(columns=[*columns, "seconds_high"])


def _groups(runs: pd.DataFrame, values: pd.Series) -> list[FloatArray]:
    """The values of each data set."""
    return [group.to_numpy(dtype=float) for _, group in values.groupby(runs["dataset"])]


def _count_near_exact(ranks: FloatArray) -> FloatArray:
    """How many of the last axis are near-exact."""
    near: FloatArray = (ranks >= min(RANKS.index(verdict) for verdict in NEAR_EXACT)).sum(-1).astype(float)
    return near
