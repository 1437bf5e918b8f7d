"""Checkpoints: the moments at which SGPR finished each M, and what every method had reached by then.

The SGPR whose M they are is the paper's own procedure where it was run (Ober et al., Algorithm 1). A milestone is the
recorded end of a stage, that is of one M of the schedule.
"""

from __future__ import annotations

import math

import numpy as np
import pandas as pd

from nearexact.bench.analysis.families import REFERENCES, bases_of, growing_methods, ordered
from nearexact.bench.analysis.losses import METRICS
from nearexact.bench.analysis.points import KEY, last_at, run_positions

FINAL = "final"  # the checkpoint at the end of a run


def milestones(points: pd.DataFrame) -> pd.DataFrame:
    """The ends of stages that were not cut short; `scheduled_m` is M where none was recorded."""
    ends = points[points["milestone"]].copy()
    ends["scheduled_m"] = ends["scheduled_m"].fillna(ends["m"])
    ends = ends[ends["scheduled_m"].notna() & ~ends["cut_short"]]
    return ends.drop_duplicates([*KEY, "scheduled_m"], keep="last")


def reference_methods(points: pd.DataFrame) -> dict[str, str]:
    """For each data set the method whose milestones are its checkpoints; none where no method has any.

    The paper's procedure, else SGPR, else the first of its family that has any, else the first of all that grow M.
    """
    bases, growing = bases_of(points), growing_methods(points)
    rank = {name: position for position, name in enumerate(REFERENCES)}
    chosen = {}
    for dataset, ends in milestones(points).groupby("dataset"):
        candidates = ordered(set(ends["method"]) & growing, bases)
        if candidates:
            chosen[str(dataset)] = min(candidates, key=lambda name: rank.get(bases[name], len(rank)))
    return chosen


def checkpoints(points: pd.DataFrame) -> pd.DataFrame:
    """For each data set the M of the reference, and the median second at which its runs finished it.

    A run that did not finish an M counts as never, so that a checkpoint needs most of the runs: a median over the fast
    ones alone could be before that of a smaller M. `seeds` is how many finished, `reference` whose M they are.
    """
    references = reference_methods(points)
    reference_points = points[points["method"] == points["dataset"].map(references)]
    run_counts = reference_points.groupby("dataset")["seed"].nunique()
    rows = []
    for (dataset, m), seconds in milestones(reference_points).groupby(["dataset", "scheduled_m"])["elapsed"]:
        middle = float(np.median([*seconds, *[math.inf] * (run_counts[dataset] - len(seconds))]))
        if math.isfinite(middle):
            rows.append((dataset, int(m), middle, len(seconds), references[dataset]))
    return pd.DataFrame(rows, columns=["dataset", "m", "seconds", "seeds", "reference"])


def checkpoint_values(points: pd.DataFrame, smoothed: pd.DataFrame, marks: pd.DataFrame) -> pd.DataFrame:
    """What each run had at each checkpoint of its data set, and at its end: KEY, `checkpoint`, and the losses.

    `checkpoint` is an M, or "final". The reference's values are those at the end of that M, the others' the last
    smoothed ones at or before the moment; where a run had nothing yet, there is no row. `marks` are the checkpoints.
    """
    references = dict(zip(marks["dataset"], marks["reference"], strict=True))
    moments = {dataset: (rows["m"].to_list(), rows["seconds"].to_list()) for dataset, rows in marks.groupby("dataset")}
    elapsed = smoothed["elapsed"].to_numpy()
    rows: list[int] = []
    names: list[int | str] = []
    for (dataset, method, _), run in run_positions(smoothed):
        rows.append(run[-1])
        names.append(FINAL)
        if dataset in moments and method != references[dataset]:
            sizes, seconds = moments[dataset]
            last = last_at(elapsed[run], seconds)
            rows += [run[position] for position in last if position >= 0]
            names += [size for size, position in zip(sizes, last, strict=True) if position >= 0]
    values = smoothed.iloc[rows].assign(checkpoint=names)
    ends = milestones(points[points["method"] == points["dataset"].map(references)])
    if len(ends):
        pairs = zip(ends["dataset"], ends["scheduled_m"], strict=True)
        ends = ends[[dataset in moments and m in moments[dataset][0] for dataset, m in pairs]]
        values = pd.concat([values, ends.assign(checkpoint=ends["scheduled_m"].astype(int).astype(object))])
    return values[KEY].assign(
        checkpoint=values["checkpoint"],
        over_budget=values["over_budget"],
        **{metric.name: metric.loss(values) for metric in METRICS},
    ).reset_index(drop=True)  # fmt: skip
