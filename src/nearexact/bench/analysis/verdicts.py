"""On which data sets a method is near-exact, and what that took: the paper's Recommendation 4.

SGPR is judged by its own bounds and by what larger M changed (`nearexact.certificate.judge`). Other methods are judged
by their bounds if they have two, else by the best near-exact value on the same split; an exact GP also by whether its
training had ended. Linear and mean are no approximations of a GP and get no verdict; whether the linear model does as
well is a column of its own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, get_args

import numpy as np
import pandas as pd

from nearexact.bench import store
from nearexact.bench.analysis.checkpoints import FINAL
from nearexact.bench.analysis.families import BASELINES, is_sparse, ordered
from nearexact.bench.analysis.losses import LML
from nearexact.bench.analysis.points import KEY, RunKey, last_at, run_positions
from nearexact.bench.analysis.results import Results, Size
from nearexact.certificate import CERTIFIED_GAP, CONVERGED_CHANGE, NEAR_EXACT, VERDICT_KINDS, Kind, Verdict, judge
from nearexact.noise_only import explains_nothing

NO_RESULT, BASELINE = "no result", "baseline"
BEST_VALUE = "the best near-exact value"  # what a run may be judged by
SIZE_UNKNOWN = "the size of the data set is not known"
KINDS: dict[str, Kind] = {**VERDICT_KINDS, NO_RESULT: "bad", BASELINE: "plain"}
# From worst to best: the verdict on several seeds is the one in the middle, the worse of two in the middle.
RANKS: tuple[str, ...] = (NO_RESULT, *reversed(get_args(Verdict)), BASELINE)
Row = tuple[Any, ...]  # in the order of COLUMNS
COLUMNS = [*KEY, "verdict", "gap_per_point", "m", "seconds", "flops", "peak_memory_mb", "lml", "basis"]


# ---- runs ------------------------------------------------------------------------------------------------------------


def run_verdicts(results: Results) -> pd.DataFrame:
    """A row for each run: its verdict, and the M and the costs at which near-exactness was reached and kept."""
    curves = {key: results.smoothed.iloc[rows] for key, rows in run_positions(results.smoothed)}
    ends = results.milestones
    stages = {key: ends.iloc[rows] for key, rows in run_positions(ends) if is_sparse(key[1])}
    keys: list[RunKey] = list(results.runs[KEY].itertuples(index=False, name=None))
    statuses = dict(zip(keys, results.runs["status"], strict=True))
    exact = {
        key: exact_training(curve, statuses[key], results.sizes[key[0]])
        for key, curve in curves.items()
        if curve["upper_bound"].iloc[-1] == curve["elbo"].iloc[-1]
    }
    rows = {key: _judge_stages(key, stages[key], results.sizes[key[0]]) for key in keys if key in stages}
    best = _best_values(rows, curves, exact, results.sizes)
    for key in keys:
        if key not in stages:
            rows[key] = _without_likelihood(key, curves.get(key)) or _judge_curve(
                key, curves[key], best.get((key[0], key[2])), exact.get(key), results.sizes[key[0]]
            )
    return pd.DataFrame([rows[key] for key in keys], columns=COLUMNS)


def _judge_stages(key: RunKey, ends: pd.DataFrame, size: Size) -> Row:
    """The verdict on a run with stages of growing M."""
    if size.n is None:
        return _row(key, NO_RESULT, basis=SIZE_UNKNOWN)
    elbo, lower, upper = ends["elbo"].tolist(), lower_bounds(ends), ends["upper_bound"].tolist()
    verdicts, steps = [], []  # the steps are the ELBOs of complete stages
    for k, complete in enumerate(ends["complete"]):
        steps += [elbo[k]] if complete else []
        verdicts.append(judge(lower[k], upper[k], steps, size.noise_only, size.n, elbo=elbo[k]))
    first = len(verdicts)  # the stage from which on all are near-exact
    while first > 0 and verdicts[first - 1] in NEAR_EXACT:
        first -= 1
    at = ends.iloc[first] if first < len(ends) else None
    gap = (upper[-1] - lower[-1]) / size.n
    return _row(key, verdicts[-1], gap, at, elbo[-1], "its own bounds and the steps up in M")


def lower_bounds(ends: pd.DataFrame) -> list[float]:
    """The best lower bound on the log marginal likelihood at each point: the ELBO where no better one was recorded."""
    bounds: list[float] = np.fmax(ends["lower_bound"].to_numpy(), ends["elbo"].to_numpy()).tolist()
    return bounds


def _without_likelihood(key: RunKey, curve: pd.DataFrame | None) -> Row | None:
    """The row of a run whose log marginal likelihood is not to be judged; None if it is."""
    lml = math.nan if curve is None else float(curve["elbo"].iloc[-1])
    if key[1] in BASELINES:
        return _row(key, NO_RESULT if curve is None else BASELINE, lml=lml, basis="no approximation of a GP")
    if not math.isfinite(lml):
        return _row(key, NO_RESULT, basis="no log marginal likelihood at its end")
    if is_sparse(key[1]):
        return _row(key, "not reached", lml=lml, basis="no M was done")
    return None


def exact_training(curve: pd.DataFrame, status: str, size: Size) -> str:
    """The verdict on the training of an exact GP, which has no gap at whatever hyperparameters.

    If training was cut short, thirds of its time take the place of steps up in M: it has converged if the second and
    the last third changed the log marginal likelihood as little as such steps may, and each led to a point of its own.
    """
    if status == store.RunStatus.FINISHED or size.n is None:
        return "certified"
    elapsed, lml = curve["elapsed"].to_numpy(), curve["elbo"].to_numpy()
    at = last_at(elapsed, elapsed[-1] * np.array([1.0 / 3.0, 2.0 / 3.0, 1.0]))
    values = lml[at].tolist() if at[0] >= 0 and (np.diff(at) > 0).all() else []
    return judge(float(lml[-1]), math.nan, values, size.noise_only, size.n)


def _best_values(
    sparse: dict[RunKey, Row], curves: dict[RunKey, pd.DataFrame], exact: dict[RunKey, str], sizes: dict[str, Size]
) -> dict[tuple[str, int], float]:
    """For each data set and seed the best log marginal likelihood that is known to be near the exact one's.

    That is the best of SGPR's near-exact runs and of exact GPs whose training had ended or no longer changed them.
    """
    rows = pd.DataFrame(list(sparse.values()), columns=COLUMNS)
    near = rows[rows["verdict"].isin(NEAR_EXACT)]
    values = list(near[["dataset", "seed", "lml"]].itertuples(index=False, name=None))
    trained = [key for key, verdict in exact.items() if verdict in NEAR_EXACT]
    values += [(key[0], key[2], curves[key]["elbo"].iloc[-1]) for key in trained]
    best: dict[tuple[str, int], float] = {}
    for dataset, seed, value in values:
        size = sizes[dataset]
        if size.n is not None and not explains_nothing(value, size.noise_only, size.n):
            best[dataset, seed] = max(value, best.get((dataset, seed), -math.inf))
    return best


def tolerance(value: float, size: Size) -> float:
    """How far from a near-exact value another one may be, in nats: as much as the verdicts on SGPR allow."""
    assert size.n is not None
    return max(CERTIFIED_GAP * size.n, CONVERGED_CHANGE * abs(value - size.noise_only))


def _judge_curve(key: RunKey, curve: pd.DataFrame, best: float | None, training: str | None, size: Size) -> Row:
    """The verdict on a run without stages: by its two bounds if it has them, else by the best near-exact value.

    `training` is the verdict on the training of an exact GP, None for other methods.
    """
    last = curve.iloc[-1]
    lml, upper = float(last["elbo"]), float(last["upper_bound"])
    if size.n is None:
        return _row(key, NO_RESULT, lml=lml, basis=SIZE_UNKNOWN)
    if math.isfinite(upper):
        verdict: str = judge(lml, upper, [], size.noise_only, size.n)
        goal, basis = max(lml, lml if best is None else best), "its own bounds"
        if verdict == "certified" and training == "converged":
            verdict, basis = training, "its training, which no longer changed it"
        elif verdict == "certified" and training == "not reached":  # exact, but at arbitrary hyperparameters
            is_near = best is not None and abs(lml - best) <= tolerance(best, size)
            verdict, basis = ("converged", BEST_VALUE) if is_near else (training, "training was cut short")
    elif explains_nothing(lml, size.noise_only, size.n):
        return _row(key, "no better than noise", lml=lml, basis="the constant predictor")
    elif best is None:
        return _row(key, "not reached", lml=lml, basis="no near-exact value to compare with")
    else:  # that an estimate is near the right value is necessary, not sufficient
        verdict = "converged" if abs(lml - best) <= tolerance(best, size) else "not reached"
        goal, basis = best, BEST_VALUE
    near = (curve["elbo"] - goal).abs().to_numpy() <= tolerance(goal, size)
    if not near[-1]:
        side = "above" if lml > goal else "below"
        basis = f"{basis}; {abs(lml - goal) / size.n:.2g} nats per point {side} {BEST_VALUE}"
    first = len(near) - int(np.argmin(near[::-1])) if not near.all() else 0  # the point from which on all are near
    at = curve.iloc[first] if verdict in NEAR_EXACT and near[-1] else None
    return _row(key, verdict, (upper - lml) / size.n, at, lml, basis.removeprefix(f"{BEST_VALUE}; "))


def _row(
    key: RunKey,
    verdict: str,
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
                    **{name: costs[name].median() for name in ("m", "seconds", "flops", "peak_memory_mb")},
                    "linear_as_good": "" if method in BASELINES else linear_as_good(loss, linear_loss, size),
                    "basis": (with_gap if len(with_gap) else like)["basis"].iloc[0],  # of a run that the gap is of
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
