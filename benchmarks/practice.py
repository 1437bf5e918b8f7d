"""What a person in a hurry would get: `nearexact fit` next to what they would otherwise pick, on equal processor time.

    NEAREXACT_DATA=<folder> python benchmarks/practice.py --peers-python <python with gpboost and lightgbm>
        [--seconds 30] [--tables diabetes,bike] [--fits nearexact,linear] [--output <file>] [--table]

Each fit is a process of its own on one thread, and has so many seconds of the processor; imports and predictions are
not counted. Scores are of the test rows, on standardised targets. Runs are written one by one, and those that are there
already are not done again; `--table` only prints them. `make bench-practice` does it all.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
from sklearn.datasets import make_friedman1, make_friedman2, make_friedman3

from nearexact.bench import metrics
from nearexact.bench.datasets import Split, find, split
from nearexact.typing import FloatArray

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "practice.json"
SPLITS = {"diabetes": 5}  # scores are averages of so many: the test rows of one are too few to tell fits apart
# Data sets of the registry, and how many of their rows at most: training rows are 85 % of them.
REGISTRY = {
    "diabetes": 442,
    "skillcraft": 3338,
    "kin8nm": 8192,
    "power": 9568,
    "elevators": 5000,
    "bike": 4000,
    "pol": 3000,
    "naval": 2000,
    "protein": 15000,
    "kin40k": 10000,
}
GENERATED = {  # with noise of about a fifth of the target's standard deviation
    "friedman1": lambda: make_friedman1(1000, n_features=10, noise=1.0, random_state=0),
    "friedman2": lambda: make_friedman2(2000, noise=75.0, random_state=0),
    "friedman3": lambda: make_friedman3(2000, noise=0.07, random_state=0),
}
OURS = "nearexact"
FITS = ("nearexact", "gpboost-vecchia", "gpytorch-svgp", "scikit-learn-gp", "lightgbm-quantiles", "linear")
PEERS = ("gpboost-vecchia", "lightgbm-quantiles")  # that run in the other environment
TREES = "lightgbm-quantiles"
GAUSSIAN_PROCESSES = ("nearexact", "gpboost-vecchia", "gpytorch-svgp", "scikit-learn-gp")
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
RUNAWAY = 4.0  # times the limit of processor time, at which a process is ended whatever it does
LEAST_STD = 1e-3  # of a Gaussian that is fitted to quantiles: in favour of those that coincide
AS_GOOD = 0.02  # nats


def load(name: str) -> list[Split]:
    """The table in two parts, at random, once or several times."""
    X, y = GENERATED[name]() if name in GENERATED else find(name).load()
    rows = np.random.default_rng(0).permutation(len(y))[: REGISTRY.get(name)]
    return [split(X[rows], y[rows], seed) for seed in range(SPLITS.get(name, 1))]


def run_all(fit: str, splits: list[Split], seconds: float, peers: Path | None) -> dict[str, Any]:
    """The mean scores of a fit; what it says of the first split."""
    scores = [run(fit, data, seconds, peers) for data in splits]
    failed = [score for score in scores if "failed" in score]
    if failed:
        return failed[0]
    figures = [what for what in scores[0] if what != "note"]
    return {**{what: float(np.mean([score[what] for score in scores])) for what in figures}, "note": scores[0]["note"]}


def run(fit: str, data: Split, seconds: float, peers: Path | None) -> dict[str, Any]:
    """Fit in a process, and score what it has written; why there is no score, if there is none."""
    python, script = (peers, "practice_peers.py") if fit in PEERS else (Path(sys.executable), "practice_fits.py")
    with tempfile.TemporaryDirectory() as folder:
        problem, output = Path(folder) / "problem.npz", Path(folder) / "predictions.npz"
        np.savez(problem, X=data.X_train, y=data.y_train, X_test=data.X_test)
        command = [python, HERE / "cpu_clock.py", HERE / script, fit, problem, output, "--seconds", seconds]
        ended = subprocess.run(
            [str(part) for part in command],
            env={**os.environ, **ONE_THREAD},
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, (int(RUNAWAY * seconds + 60),) * 2),
            capture_output=True,
            text=True,
            check=False,
        )
        if not output.exists():
            reason = ended.stderr.strip().splitlines()[-1:] or [f"ended with {ended.returncode} before any model"]
            return {"failed": reason[0]}
        with np.load(output) as predictions:
            return scored(data.y_test, predictions)


def scored(y: FloatArray, predictions: Any) -> dict[str, Any]:
    """Scores of Gaussian predictions, or of quantiles."""
    mean = predictions["mean"]
    if "levels" in predictions:
        scores = quantile_scores(y, predictions["quantiles"], predictions["levels"])
    else:
        variance = predictions["variance"]
        scores = {
            "nlpd": metrics.nlpd(y, mean, variance),
            "crps": metrics.crps(y, mean, variance),
            "coverage": metrics.coverage(y, mean, variance, 95),
        }
    figures = {"rmse": metrics.rmse(y, mean), **scores, "seconds": float(predictions["seconds"])}
    return {**figures, "note": str(predictions["note"])}


def quantile_scores(y: FloatArray, quantiles: FloatArray, levels: FloatArray) -> dict[str, float]:
    """CRPS and coverage of quantiles [N, Q], the NLPD of the Gaussian that fits those of a row best.

    CRPS is twice the integral of the pinball loss over levels; here by steps that meet half-way between levels.
    """
    error = y[:, None] - quantiles
    pinball = np.maximum(levels * error, (levels - 1.0) * error).mean(0)
    edges = np.concatenate([[0.0], 0.5 * (levels[1:] + levels[:-1]), [1.0]])
    normal = np.array([NormalDist().inv_cdf(level) for level in levels])
    design = np.column_stack([np.ones_like(normal), normal])  # a Gaussian's quantiles are linear in these
    mean, std = np.linalg.lstsq(design, quantiles.T, rcond=None)[0]
    return {
        "nlpd": metrics.nlpd(y, mean, np.maximum(std, LEAST_STD) ** 2),
        "crps": float(2.0 * np.sum(pinball * np.diff(edges))),
        "coverage": float(np.mean((quantiles[:, 0] <= y) & (y <= quantiles[:, -1]))),
    }


# ---- what is printed ------------------------------------------------------------------------------------------------


def table(tables: dict[str, Any]) -> str:
    """A row for each table and fit; the best NLPD and CRPS of a table are bold."""
    lines = [
        "| table: rows, inputs | fit | NLPD | CRPS | RMSE | in 95 % interval | seconds | |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, result in tables.items():
        size = f"{name}: {result['rows']}, {result['inputs']}"
        runs = {fit: result["runs"][fit] for fit in FITS if fit in result["runs"]}
        best = {what: min((r[what] for r in runs.values() if what in r), default=None) for what in ("nlpd", "crps")}
        marked = best if len(runs) > 1 else {}
        for fit, scores in runs.items():
            if "failed" in scores:
                lines.append(f"| {size} | {fit} | | | | | | {scores['failed']} |")
                continue
            cells = [
                f"**{scores[what]:.3f}**" if scores[what] == marked.get(what) else f"{scores[what]:.3f}"
                for what in best
            ]
            cells += [f"{scores['rmse']:.3f}", f"{scores['coverage']:.3f}", f"{scores['seconds']:.0f}", scores["note"]]
            lines.append(f"| {size} | {fit} | {' | '.join(cells)} |")
    return "\n".join(lines)


def conclusions(tables: dict[str, Any]) -> list[str]:
    """Where ours is not the best GP, and where trees win."""
    lines = []
    for name, result in tables.items():
        scores = {fit: r for fit, r in result["runs"].items() if "nlpd" in r}
        if OURS not in scores:
            continue
        ours = scores[OURS]
        others = {fit: scores[fit]["nlpd"] for fit in GAUSSIAN_PROCESSES if fit in scores and fit != OURS}
        best = min(others, key=lambda fit: others[fit], default=None)
        if best is not None and others[best] < ours["nlpd"] - AS_GOOD:
            lines.append(f"{name}: NLPD of {best} is better by {ours['nlpd'] - others[best]:.3f} nats")
        wins = [
            f"{what.upper()} {scores[TREES][what]:.3f} instead of {ours[what]:.3f}"
            for what in ("nlpd", "crps", "rmse")
            if TREES in scores and scores[TREES][what] < ours[what]
        ]
        if wins:
            lines.append(f"{name}: {TREES} wins: {', '.join(wins)}")
    return lines or ["nearexact is the best everywhere"]


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--peers-python", type=Path, help=f"interpreter of an environment with {', '.join(PEERS)}")
    options.add_argument("--seconds", type=float, default=30.0)
    options.add_argument("--tables", default=",".join([*REGISTRY, *GENERATED]))
    options.add_argument("--fits", default=",".join(FITS))
    options.add_argument("--output", type=Path, default=RESULTS)
    options.add_argument("--table", action="store_true", help="print what is there, and run nothing")
    given = options.parse_args()
    record = json.loads(given.output.read_text()) if given.output.exists() else {"seconds": given.seconds, "tables": {}}
    fits = [] if given.table else given.fits.split(",")
    if fits and record["seconds"] != given.seconds:
        raise SystemExit(f"{given.output} has runs of {record['seconds']:g} s: give --seconds or --output")
    if given.peers_python is None and set(fits) & set(PEERS):
        raise SystemExit(f"{', '.join(PEERS)} need --peers-python, or leave them out with --fits")
    for name in given.tables.split(",") if fits else []:
        splits = load(name)
        (rows, inputs), test_rows = splits[0].X_train.shape, len(splits[0].y_test)
        size = {"rows": rows, "inputs": inputs, "test_rows": test_rows, "splits": len(splits)}
        result = record["tables"].setdefault(name, {**size, "runs": {}})
        for fit in fits:
            if fit in result["runs"]:
                continue
            result["runs"][fit] = run_all(fit, splits, given.seconds, given.peers_python)
            given.output.write_text(json.dumps(record, indent=1) + "\n")
            print(table({name: {**result, "runs": {fit: result["runs"][fit]}}}).splitlines()[-1], flush=True)
    print(table(record["tables"]), *conclusions(record["tables"]), sep="\n")


if __name__ == "__main__":
    main()
