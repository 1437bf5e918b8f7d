"""What ten minutes give on each of the paper's data sets, next to what was published.

    NEAREXACT_DATA=<folder> nearexact bench run --methods nearexact --datasets paper --seeds 1 --budget 10m --out <runs>
    python benchmarks/all_data_sets.py <runs> [--note "what else the machine did"]

Reads the runs that are finished, adds them to those of earlier times, and prints a table: the likelihood (exact, or
estimated with its standard error), what is proved about it, the verdict, errors on test rows, and the seconds until the
published final values were reached: where the proved lower bound is as high or, marked with ~, where
the estimate less two standard errors is. Published values are means over five splits; ours are of one.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from result_files import earlier, write

from nearexact.bench.analysis import published, results, verdicts
from nearexact.bench.analysis.checkpoints import FINAL
from nearexact.certificate import NEAR_EXACT
from nearexact.evidence import STANDARD_ERRORS

RESULTS = "all_data_sets.json"
PEERS = {"sgpr-paper": "SGPR", "gpr": "GPR", "itergp-paper": "IterGP"}  # as the paper calls them

Outcome = dict[str, Any]


def published_values(metric: str) -> dict[tuple[str, str], float]:
    """Final values by data set and method; losses."""
    table = published.load()
    table = table[(table["metric"] == metric) & (table["checkpoint"] == FINAL)]
    return {(row.dataset, row.method): float(row.value) for row in table.itertuples() if math.isfinite(row.value)}


def seconds_to(likelihood: float, curve: pd.DataFrame) -> tuple[float, bool]:
    """Until it was reached, and whether that is proved; not finite if it never was."""
    is_estimate = curve["standard_error"].notna()
    exact = curve["elbo"].where(~is_estimate | curve["estimate"].notna())
    proved = np.fmax(curve["lower_bound"], exact)
    estimated = curve["estimate"].fillna(curve["elbo"]) - STANDARD_ERRORS * curve["standard_error"].fillna(0.0)
    found = [
        (float(curve["elapsed"][reached].min()), is_proved)
        for reached, is_proved in ((proved >= likelihood, True), (np.fmax(proved, estimated) >= likelihood, False))
        if reached.any()
    ]
    return min(found, default=(math.inf, False), key=lambda pair: (pair[0], not pair[1]))


def outcome(dataset: str, curve: pd.DataFrame, judged: Any, size: Any, note: str) -> Outcome:
    """One run."""
    last, losses, errors = curve.iloc[-1], published_values("negative_lml"), published_values("rmse")
    estimate = float(last["estimate"]) if math.isfinite(last["standard_error"]) else math.nan
    found: Outcome = {
        "dataset": dataset,
        "rows": size.n,
        "way": last["method_"],
        "seconds": float(last["elapsed"]),
        "verdict": judged.verdict,
        "judged_by": judged.basis,
        "hyperparameters": judged.hyperparameters,
        "estimate": estimate,
        "standard_error": float(last["standard_error"]),
        "lower": float(np.fmax(last["lower_bound"], last["elbo"])),
        "upper": float(last["upper_bound"]),
        "rmse": float(last["rmse"]),
        "nlpd": float(last["nlpd"]),
        "noise_variance": float(last["noise_variance"]),
        "best_published_rmse": min(v for (name, method), v in errors.items() if name == dataset and method in PEERS),
        "note": note,
    }
    for method, name in PEERS.items():
        if (dataset, method) in losses:
            value = -losses[dataset, method]
            seconds, is_proved = seconds_to(value, curve)
            found[name] = {"published": value, "seconds": seconds, "proved": is_proved}
    return found


def reached(found: Outcome | None) -> str:
    if found is None:
        return "not published"
    if not math.isfinite(found["seconds"]):
        return f"no ({found['published']:.0f})"
    return f"{'' if found['proved'] else '~'}{found['seconds']:.0f} s ({found['published']:.0f})"


def table(outcomes: list[Outcome]) -> str:
    """A row for each data set."""
    heads = ["data set: rows", "way", "seconds", "verdict", "log marginal likelihood", "proved", "gap per row", "RMSE"]
    heads += ["best published", "NLPD", *(f"until {name}" for name in PEERS.values())]
    lines = ["| " + " | ".join(heads) + " |", "|" + " --- |" * len(heads)]
    for o in outcomes:
        exact = o["upper"] == o["lower"]
        value = f"{o['lower']:.0f}" if exact else f"{o['estimate']:.0f} ± {o['standard_error']:.0f}"
        proved = "exact" if exact else f"{o['lower']:.0f} to {o['upper']:.0f}"
        gap = f"{(o['upper'] - o['lower']) / o['rows']:.2g}"
        figures = [f"{o['dataset']}: {o['rows']}", o["way"], f"{o['seconds']:.0f}", o["verdict"], value, proved, gap]
        figures += [f"{o['rmse']:.4g}", f"{o['best_published_rmse']:.4g}", f"{o['nlpd']:.3f}"]
        figures += [reached(o.get(name)) for name in PEERS.values()]
        lines.append("| " + " | ".join(figures) + " |")
    near = sum(o["verdict"] in NEAR_EXACT for o in outcomes)
    as_high = sum(all(math.isfinite(o[name]["seconds"]) for name in PEERS.values() if name in o) for o in outcomes)
    within = sum(o["rmse"] <= 1.02 * o["best_published_rmse"] for o in outcomes)
    total = len(outcomes)
    lines += ["", f"near-exact {near} of {total}; every published likelihood reached on {as_high} of {total};"]
    lines += [f"within 2 % of the best published RMSE, or better, on {within} of {total}"]
    return "\n".join(lines)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("runs", type=Path, nargs="?")
    options.add_argument("--note", default="", help="what should be known about the runs, such as other load")
    given = options.parse_args()
    known = {o["dataset"]: o for o in earlier(RESULTS) or []}
    if given.runs is not None:
        content = results.read(given.runs)
        judged = verdicts.run_verdicts(content)
        points = content.counted
        for verdict in judged.itertuples():
            curve = points[(points["dataset"] == verdict.dataset) & (points["method"] == verdict.method)]
            if len(curve) and verdict.method == "nearexact" and verdict.seed == 0:
                size = content.sizes[verdict.dataset]
                known[verdict.dataset] = outcome(verdict.dataset, curve, verdict, size, given.note)
    outcomes = [known[name] for name in sorted(known)]
    print(table(outcomes))
    write(RESULTS, outcomes)


if __name__ == "__main__":
    main()
