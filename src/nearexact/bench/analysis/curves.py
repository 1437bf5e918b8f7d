"""From traces to numbers that can be compared: smoothed curves, medians over seeds, checkpoints, compute to a target.

Losses are what tables show: the lower the better, so the log marginal likelihood comes with its sign turned. A point is
a row of `store.load`; raw points stay as they are, smoothing gives new ones.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from nearexact.bench.analysis.results import COVERAGE, KEY, LOG_TWO_PI_E
from nearexact.bench.report.method_styles import BASELINES, REFERENCE, SPARSE, is_lower_bound, ordered
from nearexact.gp.stages import StageEnd
from nearexact.typing import FloatArray

IntArray = NDArray[np.intp]

SMOOTHING_TOLERANCE = 0.001  # of the ELBO's range, as in the paper's appendix E
SMOOTHED = ["elbo", "upper_bound", "rmse", "nlpd", "predict_seconds", *COVERAGE]
AT_ONCE = 0.01  # of the longest training time
FINAL = "final"
COSTS = {  # column: what it is called
    "elapsed": "training seconds",
    "flops": "floating point operations",
    "peak_memory_mb": "peak memory in MB",
    "predict_seconds": "prediction seconds",
}


@dataclass(frozen=True)
class Metric:
    """A loss, which a lower value makes better."""

    name: str
    label: str
    column: str
    sign: float  # loss = sign · column

    def loss(self, points: pd.DataFrame) -> pd.Series:
        """Of each point."""
        return self.sign * points[self.column]

    def constant(self, n: int | None) -> float:
        """Of the constant predictor on standardised targets, which a model has to beat."""
        if self.name == "rmse":
            return 1.0
        return 0.5 * LOG_TWO_PI_E * (1.0 if self.name == "nlpd" else (n or math.nan))


LML = Metric("lml", "−LML or −ELBO", "elbo", -1.0)
RMSE = Metric("rmse", "RMSE", "rmse", 1.0)
NLPD = Metric("nlpd", "NLPD", "nlpd", 1.0)
METRICS = (LML, RMSE, NLPD)


# ---- curves ----------------------------------------------------------------------------------------------------------


def grows(points: pd.DataFrame) -> set[str]:
    """The methods whose M grows, each time from the beginning: the SGPR family, and those that record a schedule."""
    scheduled = points.loc[points["scheduled_m"].notna(), "method"].unique()
    return {name for name in points["method"].unique() if name.startswith(SPARSE)} | set(scheduled)


def held_positions(m: FloatArray, elbo: FloatArray, done: NDArray[np.bool_], *, is_bound: bool = True) -> IntArray:
    """For each point of a run, the point whose values the smoothed curve shows there.

    After a restart that is the last one before, until the ELBO has caught up to within 0.1 % of its range; or until the
    next M is done, if the ELBO is no bound and need not rise with M. A restart comes after each M that is `done`,
    whether or not the model then has more points: selection may find no use for as many as were asked for.
    """
    finite = elbo[np.isfinite(elbo)]
    tolerance = SMOOTHING_TOLERANCE * (finite.max() - finite.min()) if len(finite) else 0.0
    positions = np.arange(len(m))
    held: int | None = None
    for i in range(1, len(m)):
        if held is None and (done[i - 1] or abs(m[i] - m[i - 1]) > 0.0):
            held = i - 1
        if held is not None:
            caught_up = elbo[i] >= elbo[held] - tolerance or not math.isfinite(elbo[held])
            if caught_up or (done[i] and not is_bound):
                held = None
            else:
                positions[i] = held
    return positions


def smooth(points: pd.DataFrame) -> pd.DataFrame:
    """Points with the values of the smoothed curves, for methods whose M grows; the others' as they are."""
    growing = grows(points)
    rows = np.arange(len(points))
    m, elbo, done = points["m"].to_numpy(), points["elbo"].to_numpy(), points["milestone"].to_numpy()
    for (_, method, _), mine in run_positions(points):
        if method in growing:
            rows[mine] = mine[held_positions(m[mine], elbo[mine], done[mine], is_bound=method.startswith(SPARSE))]
    made = points.copy()
    made[SMOOTHED] = points[SMOOTHED].to_numpy()[rows]
    return made


def run_positions(points: pd.DataFrame) -> Iterator[tuple[tuple[str, str, int], IntArray]]:
    """Data set, method, seed of each run, and where its points are, in the order of time."""
    for key, rows in points.groupby(KEY, sort=False).indices.items():
        yield key, np.asarray(rows)


def median_curve(curves: Sequence[tuple[FloatArray, FloatArray]]) -> tuple[FloatArray, FloatArray]:
    """The median over runs of what each had last, wherever one of them changes, from where at least half have a value.

    A curve is costs that do not fall, and values; a run that has ended keeps its last value.
    """
    curves = [(x[keep], y[keep]) for x, y in curves if (keep := np.isfinite(x) & ~np.isnan(y)).any()]
    if not curves:
        return np.empty(0), np.empty(0)
    grid = np.unique(np.concatenate([x for x, _ in curves]))
    values = np.full((len(curves), len(grid)), np.nan)
    for row, (x, y) in enumerate(curves):
        last = np.searchsorted(x, grid, side="right") - 1
        values[row, last >= 0] = y[last[last >= 0]]
    enough = 2 * (~np.isnan(values)).sum(0) >= len(curves)
    return grid[enough], np.nanmedian(values[:, enough], axis=0)


def levels(points: pd.DataFrame) -> set[str]:
    """The methods on a data set that are drawn as a level: baselines, and whatever is done almost at once."""
    longest = points["elapsed"].max()
    found = {name for name in points["method"].unique() if name in BASELINES}
    for name, mine in points.groupby("method"):
        if mine["seed"].value_counts().max() <= 2 and mine["elapsed"].max() < AT_ONCE * longest:
            found.add(name)
    return found


def trained(points: pd.DataFrame) -> pd.DataFrame:
    """The points of a data set over which something is trained."""
    found = points[~points["method"].isin(levels(points))]
    return found if len(found) else points


def limits(points: pd.DataFrame, metric: Metric, n: int | None) -> tuple[float, float]:
    """From the best to the constant predictor: what has exploded does not set a chart's scale."""
    losses = metric.loss(points)
    losses = losses[np.isfinite(losses)]
    if losses.empty:
        return 0.0, 1.0
    best, worst = float(losses.min()), metric.constant(n)
    worst = worst if math.isfinite(worst) else float(losses.quantile(0.9))
    worst = max(worst, best + 1e-6 * max(abs(best), 1.0))
    if metric is LML and points["upper_bound"].notna().any():  # upper bounds far away are cut off
        best = max(min(best, float(-points["upper_bound"].max())), best - 0.5 * (worst - best))
    margin = 0.06 * (worst - best)
    return best - margin, worst + 2.0 * margin


def coverage_limits(points: pd.DataFrame, column: str) -> tuple[float, float]:
    """Around the level that the coverage should have, as far as the coverage that was found."""
    aim = int(column.rpartition("_")[2]) / 100.0
    found = trained(points)[column].dropna()
    low, high = (float(found.quantile(0.02)), float(found.quantile(0.98))) if len(found) else (aim, aim)
    return max(min(aim - 0.1, low - 0.03), -0.02), min(max(aim + 0.1, high + 0.03), 1.02)


# ---- checkpoints -----------------------------------------------------------------------------------------------------


def last_at(times: FloatArray, moments: Iterable[float]) -> IntArray:
    """The position of the last time at or before each moment; −1 where there is none. Times do not fall."""
    return np.searchsorted(times, np.asarray(list(moments), dtype=float), side="right") - 1


def milestones(points: pd.DataFrame) -> pd.DataFrame:
    """The ends of stages that were not cut short, with the M that was to be reached as `stage_m`."""
    ends = points[points["milestone"]].copy()
    ends["stage_m"] = ends["scheduled_m"].fillna(ends["m"])
    cut_short = [reason.startswith((StageEnd.TIME_LIMIT, StageEnd.INTERRUPTED)) for reason in ends["stopped"]]
    ends = ends[ends["stage_m"].notna() & ~np.array(cut_short, dtype=bool)]
    return ends.drop_duplicates([*KEY, "stage_m"], keep="last")


def reference_method(points: pd.DataFrame) -> str | None:
    """Whose M make the checkpoints: SGPR, else the first of its family that has finished an M."""
    having = set(milestones(points)["method"]) & grows(points)
    return next(iter(sorted(having, key=lambda name: (name != REFERENCE, ordered(having).index(name)))), None)


def checkpoints(points: pd.DataFrame) -> pd.DataFrame:
    """For each data set the M of the reference, and the median second at which its runs finished it.

    A run that did not finish an M counts as never, so that a checkpoint needs most of the runs: a median over the fast
    ones alone could be before that of a smaller M. `seeds` is how many finished.
    """
    reference = reference_method(points)
    if reference is None:
        return pd.DataFrame({"dataset": [], "m": [], "seconds": [], "seeds": []})
    mine = points[points["method"] == reference]
    runs = mine.groupby("dataset")["seed"].nunique()
    rows = []
    for (dataset, m), seconds in milestones(mine).groupby(["dataset", "stage_m"])["elapsed"]:
        middle = float(np.median([*seconds, *[math.inf] * (runs[dataset] - len(seconds))]))
        if math.isfinite(middle):
            rows.append((dataset, int(m), middle, len(seconds)))
    return pd.DataFrame(rows, columns=["dataset", "m", "seconds", "seeds"])


def checkpoint_values(points: pd.DataFrame) -> pd.DataFrame:
    """What each run had at each checkpoint of its data set, and at its end: KEY, `checkpoint`, and the losses.

    `checkpoint` is an M, or "final". The reference's values are those at the end of that M, the others' the last ones
    at or before the moment; where a run had nothing yet, there is no row. Methods whose M grows are smoothed.
    """
    reference = reference_method(points)
    smoothed = smooth(points)
    marks = {
        name: (mine["m"].to_list(), mine["seconds"].to_list()) for name, mine in checkpoints(points).groupby("dataset")
    }
    elapsed = smoothed["elapsed"].to_numpy()
    rows: list[int] = []
    names: list[int | str] = []
    for (dataset, method, _), mine in run_positions(smoothed):
        rows.append(mine[-1])
        names.append(FINAL)
        if method != reference and dataset in marks:
            sizes, seconds = marks[dataset]
            last = last_at(elapsed[mine], seconds)
            rows += [mine[position] for position in last if position >= 0]
            names += [size for size, position in zip(sizes, last, strict=True) if position >= 0]
    found = smoothed.iloc[rows].assign(checkpoint=names)
    ends = milestones(points[points["method"] == reference]) if reference else points.iloc[:0]
    if len(ends):
        pairs = zip(ends["dataset"], ends["stage_m"], strict=True)
        ends = ends[[dataset in marks and m in marks[dataset][0] for dataset, m in pairs]]
        found = pd.concat([found, ends.assign(checkpoint=ends["stage_m"].astype(int).astype(object))])
    return found[KEY].assign(
        checkpoint=found["checkpoint"], **{metric.name: metric.loss(found) for metric in METRICS}
    ).reset_index(drop=True)  # fmt: skip


# ---- compute to a target ---------------------------------------------------------------------------------------------


def bounded(points: pd.DataFrame) -> set[str]:
    """The methods whose `elbo` is a lower bound on, or the value of, the exact log marginal likelihood."""
    has_upper = set(points.loc[points["upper_bound"].notna(), "method"])
    return {name for name in points["method"].unique() if is_lower_bound(name, has_upper=name in has_upper)}


def best_losses(points: pd.DataFrame, metric: Metric) -> pd.Series:
    """The best that any method ended with, for each data set and seed.

    For the log marginal likelihood only those that bound it count: others estimate it, or are other models. Only where
    there is no bound the estimates count, and where there is no estimate the other models.
    """
    final = smooth(points).groupby(KEY, sort=False).tail(1)
    losses = metric.loss(final).replace([np.inf, -np.inf], np.nan)
    split = [final["dataset"], final["seed"]]
    if metric is LML:
        bounds = bounded(points)
        rank = final["method"].map(lambda name: 0 if name in bounds else 2 if name in BASELINES else 1)
        rank = rank.where(losses.notna())
        losses = losses.where(rank == rank.groupby(split).transform("min"))
    return losses.groupby(split).min()


def first_within(losses: FloatArray, low: float, high: float) -> int:
    """The position of the first loss from low to high; −1 if there is none."""
    inside = np.flatnonzero((losses >= low) & (losses <= high))
    return int(inside[0]) if len(inside) else -1


def compute_to_target(points: pd.DataFrame, metric: Metric, share: float, sizes: dict[str, int | None]) -> pd.DataFrame:
    """What each run needed to come within a share of the best: KEY and the costs, inf where it never did.

    The share is of the way from the best to the constant predictor. An estimate of the log marginal likelihood may be
    off on either side; a lower bound above the best has reached it.
    """
    best = best_losses(points, metric).to_dict()
    bounds = bounded(points)
    losses = metric.loss(points).to_numpy()
    costs = [column for column in COSTS if column != "predict_seconds"]
    spent = points[costs].to_numpy()
    found: list[tuple[object, ...]] = []
    for (dataset, method, seed), mine in run_positions(points):
        goal = best.get((dataset, seed), math.nan)
        slack = share * max(metric.constant(sizes.get(dataset)) - goal, 0.0)
        lowest = goal - slack if metric is LML and method not in bounds else -math.inf
        position = first_within(losses[mine], lowest, goal + slack)
        reached = spent[mine[position]] if position >= 0 else np.full(len(costs), np.inf)
        found.append((dataset, method, seed, *reached))
    return pd.DataFrame(found, columns=[*KEY, *costs])
