"""Results folders and points that no method has made, for tests of the analysis."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from nearexact.bench.analysis.points import KEY, tidy
from nearexact.bench.analysis.results import Results, Size
from nearexact.bench.store import COLUMNS, NUMBERS, RunFolder, RunSpec, RunStatus

N = 1000
NOISE = -0.5 * N * (math.log(2.0 * math.pi) + 1.0)
HOSTILE = "<script>alert(1)</script>"
MS = (10, 20, 50, 100, 200, 500)


def points(rows: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    """Points as the analysis takes them; what a row leaves out is a default."""
    base = {"dataset": "a", "method": "sgpr", "seed": 0, "milestone": False, "status": "finished", "over_budget": False}
    frame = pd.DataFrame([{**base, **row} for row in rows])
    frame = frame.reindex(columns=[*COLUMNS, *(name for name in frame if name not in COLUMNS)])
    frame[NUMBERS] = frame[NUMBERS].astype(float)
    return tidy(frame)


def as_results(table: pd.DataFrame) -> Results:
    """Results of data sets with N rows, with nothing but these points."""
    runs = table[[*KEY, "status"]].drop_duplicates(KEY, ignore_index=True)
    return Results(table, runs, 0, {name: Size(N, 3) for name in table["dataset"].unique()}, [])


def write_run(
    results: Path,
    dataset: str,
    method: str,
    seed: int,
    trace: Iterable[Mapping[str, Any]],
    status: RunStatus = RunStatus.FINISHED,
    reason: str = "",
    n: int | None = N,
    budget: float = 60.0,
) -> None:
    """A run folder with this trace."""
    spec = RunSpec(dataset, method, seed, budget_seconds=budget, hard_limit_seconds=240.0)
    folder = RunFolder(spec.folder(results))
    folder.prepare(spec)
    for point in trace:
        folder.append({"milestone": False, **point})
    data = {} if n is None else {"data": {"n_train": n, "n_test": 100, "inputs": 3}}
    folder.update(status=status, reason=reason, versions={"python": "3"}, hardware={"processor": "abacus"}, **data)


def evidence(*, agreeing: int = 5, gain: float = 0.001, rows: int = N // 2, likelihood: float = 0.0) -> dict[str, Any]:
    """What a point of a trace says of a search with nine starts; as it is, it speaks for the point's θ."""
    return {
        "evidence_rows": rows, "evidence_starts": 9, "evidence_agreeing": agreeing, "evidence_gain_per_row": gain,
        "evidence_likelihood": likelihood, "evidence_price": math.nan,
    }  # fmt: skip


def sgpr_trace(
    seed: int = 0, *, final: float = 300.0, stages: int = 6, steps: int = 4, search: Mapping[str, Any] | None = None
) -> list[dict[str, Any]]:
    """A run of growing M whose bounds close in on `final`: certified at the sixth M, not before.

    `search` is what its milestones say about θ; an empty one is a trace from before that was recorded.
    """
    rng = np.random.default_rng(seed)
    trace: list[dict[str, Any]] = []
    elapsed = 0.0
    for k, m in enumerate(MS[:stages]):
        reached = final - 400.0 * 0.25**k
        for step in range(steps):
            elapsed += 0.1 * 2**k * rng.uniform(0.9, 1.1)
            end = step == steps - 1
            elbo = reached if end else reached - 300.0 * 0.3**step
            trace.append(_point(elapsed, elbo, rng) | {"m": m, "milestone": end, "flops": 1e6 * elapsed * m})
            if end:
                trace[-1] |= {
                    "upper_bound": final + 2000.0 * 0.3**k,
                    "info": {"scheduled_m": m, "stopped": "converged", **(evidence() if search is None else search)},
                }
    return trace


def curve_trace(
    seed: int, *, final: float, seconds: float = 30.0, points: int = 20, exact: bool = False
) -> list[dict[str, Any]]:
    """A run that rises to `final`; an exact one knows its upper bound, and at its end what speaks for its θ."""
    rng = np.random.default_rng(seed)
    times = np.geomspace(1.0, seconds, points)
    elbos = final - (final - NOISE) * np.exp(-6.0 * np.arange(1, points + 1) / points)
    trace = [
        _point(float(t), float(e), rng) | {"flops": 1e9 * float(t)} | ({"upper_bound": float(e)} if exact else {})
        for t, e in zip(times, elbos, strict=True)
    ]
    if exact:
        trace[-1] |= {"milestone": True, "info": evidence(rows=N, gain=0.0, likelihood=float(elbos[-1]))}
    return trace


def constant_trace(elbo: float, rmse: float, nlpd: float) -> list[dict[str, Any]]:
    """A model that is there at once."""
    rng = np.random.default_rng(0)
    return [_point(0.001, elbo, rng) | {"rmse": rmse, "nlpd": nlpd, "flops": 1e3, "milestone": True}]


def _point(elapsed: float, elbo: float, rng: np.random.Generator) -> dict[str, Any]:
    worth = (elbo - NOISE) / (300.0 - NOISE)
    return {
        "elapsed": elapsed, "elbo": elbo, "rmse": 1.0 - 0.7 * worth + 0.01 * rng.normal(), "nlpd": 1.42 - worth,
        "crps": 0.56 - 0.4 * worth,
        "predict_seconds": 0.001 * rng.uniform(0.5, 1.5), "peak_memory_mb": 100.0 + elapsed,
        "coverage_50": 0.5 + 0.02 * rng.normal(), "coverage_90": 0.9 + 0.01 * rng.normal(), "coverage_95": 0.95,
    }  # fmt: skip


def write_results(results: Path, *, seeds: int = 3) -> Path:
    """Two data sets, one with a hostile name, and methods of every kind, among them some that fail."""
    hostile = f"{HOSTILE}.csv:y"
    for seed in range(seeds):
        for dataset in ("alpha", hostile):
            write_run(results, dataset, "sgpr", seed, sgpr_trace(seed, final=300.0 + seed))
            write_run(results, dataset, "linear", seed, constant_trace(-900.0, 0.8, 1.1))
            write_run(results, dataset, "mean", seed, constant_trace(NOISE, 1.0, 1.4189))
        write_run(results, "alpha", "gpr", seed, curve_trace(seed, final=302.0 + seed, exact=True))
        write_run(results, "alpha", f"{HOSTILE}.py:Own", seed, curve_trace(seed, final=250.0), RunStatus.BUDGET)
        write_run(
            results, hostile, "gpr", seed, [], RunStatus.OUT_OF_MEMORY, f"MemoryError: {HOSTILE} & more | than $5"
        )
    explodes = curve_trace(0, final=300.0)[:5]
    explodes.append({**explodes[-1], "elapsed": 5.0, "elbo": math.nan, "rmse": 3.1e9, "nlpd": math.inf})
    write_run(results, "alpha", "itergp", 0, explodes, RunStatus.ERROR, "ZeroDivisionError: what a pity")
    return results
