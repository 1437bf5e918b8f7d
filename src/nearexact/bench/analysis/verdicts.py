"""On which data sets a method is near-exact, and what it took: the paper's Recommendation 4.

SGPR is judged by its own bounds and by what larger M changed (`nearexact.certificate.judge`), other methods by their
bounds if they have two, else by the best value that is known to be near-exact on the same split; an exact GP also by
whether it was done with training. Linear and mean are no
approximations of a GP and get no verdict; whether the linear model does as well is a column of its own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from nearexact.bench import store
from nearexact.bench.analysis.curves import LML, checkpoint_values, grows, last_at, milestones, run_positions, smooth
from nearexact.bench.analysis.results import KEY, Results, Size
from nearexact.bench.report.method_styles import BASELINES, SPARSE, ordered
from nearexact.certificate import CERTIFIED_GAP, CONVERGED_CHANGE, NEAR_EXACT, judge
from nearexact.gp.noise_only import explains_nothing
from nearexact.gp.stages import FAILED, INTERRUPTED, TIME_LIMIT, UNBEATEN
from nearexact.typing import FloatArray

NO_RESULT, BASELINE = "no result", "baseline"
NEAR_KNOWN = "the best near-exact value"  # what a run may be judged by
# From worst to best: the verdict on several seeds is the one in the middle, the worse of two in the middle.
RANKS = (NO_RESULT, "no better than noise", "not reached", "converged", "certified", BASELINE)
Row = tuple[Any, ...]  # in the order of COLUMNS
COLUMNS = [*KEY, "verdict", "gap_per_point", "m", "seconds", "flops", "peak_memory_mb", "lml", "basis"]


def run_verdicts(results: Results) -> pd.DataFrame:
    """A row for each run: its verdict, and the M and the costs at which near-exactness was reached and kept."""
    smoothed = smooth(results.points)
    growing = {name for name in grows(results.points) if name.startswith(SPARSE)}
    ends = milestones(results.points)
    stages = {key: ends.iloc[rows] for key, rows in run_positions(ends)}
    curves = {key: smoothed.iloc[rows] for key, rows in run_positions(smoothed)}
    rows = [
        _judge_stages(key, stages[key], results.sizes[key[0]])
        if key[1] in growing and key in stages
        else _open(key, curves.get(key))
        for key in results.runs[KEY].itertuples(index=False, name=None)
    ]
    states = dict(zip(results.runs[KEY].itertuples(index=False, name=None), results.runs["status"], strict=True))
    exact = {
        key: exact_training(curve, states[key], results.sizes[key[0]])
        for key, curve in curves.items()
        if curve["upper_bound"].iloc[-1] == curve["elbo"].iloc[-1]
    }
    known = _known_values(pd.DataFrame(rows, columns=COLUMNS), curves, exact, results.sizes)
    for position, (dataset, method, seed, verdict, *_) in enumerate(rows):
        if verdict is None:
            key, size = (dataset, method, seed), results.sizes[dataset]
            rows[position] = _compare(key, curves[key], known.get((dataset, seed)), exact.get(key), size)
    return pd.DataFrame(rows, columns=COLUMNS)


def is_complete(stopped: Sequence[str]) -> list[bool]:
    """Whether each stage was done and led to a model of its own, as `Stage.complete`; nothing said means yes."""
    return [not reason.startswith((TIME_LIMIT, INTERRUPTED, FAILED, UNBEATEN)) for reason in stopped]


def _judge_stages(key: tuple[str, str, int], ends: pd.DataFrame, size: Size) -> Row:
    """The verdict on a run with stages of growing M."""
    if size.n is None:
        return _row(key, NO_RESULT, basis="the size of the data set is not known")
    elbo, lower, upper = ends["elbo"].to_numpy(), lower_bounds(ends), ends["upper_bound"].to_numpy()
    complete = np.array(is_complete(ends["stopped"].tolist()))
    verdicts = [
        judge(lower[k], upper[k], elbo[: k + 1][complete[: k + 1]].tolist(), size.noise_only, size.n, elbo=elbo[k])
        for k in range(len(ends))
    ]
    last = ends.iloc[-1]
    gap = (upper[-1] - lower[-1]) / size.n
    reached = len(verdicts)
    while reached > 0 and verdicts[reached - 1] in NEAR_EXACT:
        reached -= 1
    at = ends.iloc[reached] if reached < len(ends) else None
    return _row(key, verdicts[-1], gap, at, last["elbo"], "its own bounds and the steps up in M")


def lower_bounds(ends: pd.DataFrame) -> FloatArray:
    """The best lower bound on the log marginal likelihood at each point: the ELBO where no better one was recorded."""
    elbo: FloatArray = ends["elbo"].to_numpy(dtype=float)
    if "lower_bound" not in ends:
        return elbo
    recorded: FloatArray = pd.to_numeric(ends["lower_bound"], errors="coerce").to_numpy(dtype=float)
    return np.fmax(recorded, elbo)


def _open(key: tuple[str, str, int], curve: pd.DataFrame | None) -> Row:
    """A row to be filled in later, unless there is nothing to fill it with."""
    if key[1] in BASELINES:
        lml = math.nan if curve is None else float(curve["elbo"].iloc[-1])
        return _row(key, BASELINE if curve is not None else NO_RESULT, lml=lml, basis="no approximation of a GP")
    if curve is None or not np.isfinite(curve["elbo"].iloc[-1]):
        return _row(key, NO_RESULT, basis="no log marginal likelihood at its end")
    if key[1].startswith(SPARSE):
        return _row(key, "not reached", lml=float(curve["elbo"].iloc[-1]), basis="no M was done")
    return _row(key, None)


def exact_training(curve: pd.DataFrame, status: str, size: Size) -> str:
    """The verdict on an exact GP, which has no gap at any hyperparameters: whether it was done with finding good ones.

    If it was cut short, thirds of its training time take the place of steps up in M: it has converged if the second and
    the last third changed the log marginal likelihood as little as these may, and each led to a point of its own.
    """
    if status == store.RunStatus.FINISHED or size.n is None:
        return "certified"
    elapsed, lml = curve["elapsed"].to_numpy(), curve["elbo"].to_numpy()
    at = last_at(elapsed, elapsed[-1] * np.array([1.0 / 3.0, 2.0 / 3.0, 1.0]))
    values = lml[at].tolist() if at[0] >= 0 and (np.diff(at) > 0).all() else []
    return judge(lml[-1], math.nan, values, size.noise_only, size.n)


def _known_values(
    found: pd.DataFrame,
    curves: dict[tuple[str, str, int], pd.DataFrame],
    exact: dict[tuple[str, str, int], str],
    sizes: dict[str, Size],
) -> dict[tuple[str, int], float]:
    """For each data set and seed the best log marginal likelihood that is known to be near the exact one's.

    That is the best of SGPR's near-exact runs and of exact GPs that were, at least in effect, done with training.
    """
    known: dict[tuple[str, int], float] = {}
    sparse = found[found["verdict"].isin(NEAR_EXACT)]
    values = list(sparse[["dataset", "seed", "lml"]].itertuples(index=False, name=None))
    done = [key for key, verdict in exact.items() if verdict in NEAR_EXACT]
    values += [(key[0], key[2], curves[key]["elbo"].iloc[-1]) for key in done]
    for dataset, seed, value in values:
        size = sizes[dataset]
        if size.n is not None and not explains_nothing(value, size.noise_only, size.n):
            known[dataset, seed] = max(value, known.get((dataset, seed), -math.inf))
    return known


def tolerance(value: float, size: Size) -> float:
    """How far from a near-exact value another one may be, in nats: what the verdicts on SGPR allow."""
    assert size.n is not None
    return max(CERTIFIED_GAP * size.n, CONVERGED_CHANGE * abs(value - size.noise_only))


def _compare(
    key: tuple[str, str, int], curve: pd.DataFrame, known: float | None, training: str | None, size: Size
) -> Row:
    """The verdict on a run without stages: by its two bounds if it has them, else by the best near-exact value.

    `training` is the verdict on that of an exact GP.
    """
    last = curve.iloc[-1]
    lml, upper = float(last["elbo"]), float(last["upper_bound"])
    if size.n is None:
        return _row(key, NO_RESULT, lml=lml, basis="the size of the data set is not known")
    gap = (upper - lml) / size.n
    if math.isfinite(upper):
        verdict: str = judge(lml, upper, [], size.noise_only, size.n)
        goal, basis = max(lml, lml if known is None else known), "its own bounds"
        if verdict == "certified" and training == "converged":
            verdict, basis = training, "its training, which no longer changed it"
        elif verdict == "certified" and training == "not reached":  # exact, but at whatever hyperparameters
            near_known = known is not None and abs(lml - known) <= tolerance(known, size)
            verdict, basis = ("converged", NEAR_KNOWN) if near_known else (training, "training was cut short")
    elif explains_nothing(lml, size.noise_only, size.n):
        return _row(key, "no better than noise", lml=lml, basis="the constant predictor")
    elif known is None:
        return _row(key, "not reached", lml=lml, basis="no near-exact value to compare with")
    else:  # an estimate near the right value is what is necessary, not what is sufficient
        verdict = "converged" if abs(lml - known) <= tolerance(known, size) else "not reached"
        goal, basis = known, NEAR_KNOWN
    near = (curve["elbo"] - goal).abs().to_numpy() <= tolerance(goal, size)
    if not near[-1]:
        side = "above" if lml > goal else "below"
        basis = f"{basis}; {abs(lml - goal) / size.n:.2g} nats per point {side} {NEAR_KNOWN}"
    stays = len(near) - int(np.argmin(near[::-1])) if not near.all() else 0  # from here on it is near
    at = curve.iloc[stays] if verdict in NEAR_EXACT and near[-1] else None
    return _row(key, verdict, gap, at, lml, basis.removeprefix(f"{NEAR_KNOWN}; "))


def _row(
    key: tuple[str, str, int],
    verdict: str | None,
    gap: float = math.nan,
    at: pd.Series | None = None,
    lml: float = math.nan,
    basis: str = "",
) -> Row:
    costs = [math.nan] * 4 if at is None else [float(at[c]) for c in ("m", "elapsed", "flops", "peak_memory_mb")]
    return (*key, verdict, float(gap), *costs, float(lml), basis)


# ---- data sets -------------------------------------------------------------------------------------------------------


def middle(verdicts: Sequence[str]) -> str:
    """The verdict on several seeds."""
    ranked = sorted(verdicts, key=RANKS.index)
    return ranked[(len(ranked) - 1) // 2]


def near_exactness(results: Results) -> pd.DataFrame:
    """A row for each data set and method: the verdict in the middle of the seeds, and medians over those near-exact."""
    runs = run_verdicts(results)
    values = checkpoint_values(results.points)
    final = values[values["checkpoint"] == "final"].groupby(["dataset", "method"])[LML.name].mean()
    rows = []
    for dataset in sorted(runs["dataset"].unique()):
        mine = runs[runs["dataset"] == dataset]
        size = results.sizes[dataset]
        for method in ordered(mine["method"]):
            seeds = mine[mine["method"] == method]
            verdict = middle(seeds["verdict"].tolist())
            near = seeds[seeds["verdict"].isin(NEAR_EXACT)]
            shown = near if verdict in NEAR_EXACT else near.iloc[:0]
            like = seeds[seeds["verdict"] == verdict]
            with_gap = like[like["gap_per_point"].notna()]
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
                    **{name: shown[name].median() for name in ("m", "seconds", "flops", "peak_memory_mb")},
                    "linear_as_good": linear_as_good(
                        final.get((dataset, method), math.nan), final.get((dataset, "linear"), math.nan), size
                    )
                    if method not in BASELINES
                    else "",
                    "basis": (with_gap if len(with_gap) else like)["basis"].iloc[0],  # of a run that the gap is of
                }
            )
    return pd.DataFrame(rows)


def linear_as_good(loss: float, linear_loss: float, size: Size) -> str:
    """Whether the linear model's likelihood is no more than 0.01 nats per point below: "yes", "no", "" if not known."""
    if size.n is None or not math.isfinite(loss) or not math.isfinite(linear_loss):
        return ""
    return "yes" if linear_loss <= loss + CERTIFIED_GAP * size.n else "no"


def linear_by_dataset(table: pd.DataFrame, losses: dict[tuple[str, str], float], bounds: set[str]) -> dict[str, str]:
    """Whether the linear model does as well as the best GP on each data set: "yes", "no", "" if not known.

    The best is the near-exact method with the lowest loss (by data set and method, −LML), else the best of `bounds`,
    else of all: a bad approximation is no measure of what a GP can do.
    """
    found: dict[str, tuple[tuple[int, float], str]] = {}
    for row in table.itertuples():
        if row.linear_as_good:
            rank = 0 if row.verdict in NEAR_EXACT else 1 if row.method in bounds else 2
            loss = losses[row.dataset, row.method]
            mine = ((rank, math.inf if math.isnan(loss) else loss), row.linear_as_good)
            found[row.dataset] = min(mine, found.get(row.dataset, mine))
    return {dataset: found[dataset][1] if dataset in found else "" for dataset in table["dataset"].unique()}


def near_exact_counts(table: pd.DataFrame) -> pd.DataFrame:
    """For how many data sets each method is near-exact, and the median of what that took."""
    rows = []
    for method in ordered(table["method"]):
        if method in BASELINES:
            continue
        mine = table[table["method"] == method]
        near = mine[mine["verdict"].isin(NEAR_EXACT)]
        rows.append(
            {
                "method": method,
                "near_exact": len(near),
                **{
                    name.replace(" ", "_"): int((mine["verdict"] == name).sum())
                    for name in reversed(RANKS)
                    if name != BASELINE
                },
                "datasets": len(mine),
                "seconds": near["seconds"].median(),
                "flops": near["flops"].median(),
                "peak_memory_mb": near["peak_memory_mb"].median(),
            }
        )
    columns = ["method", "near_exact", "datasets"]
    return pd.DataFrame(rows) if rows else pd.DataFrame(columns=columns)
