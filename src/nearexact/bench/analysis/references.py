"""Frozen references: the best known loss of each data set and split, in a file with a version.

"Within 1 % of the best" must not move when a method is added, so the best is written down once, with where it is from.
`nearexact bench freeze` makes such a file from results folders, and the package has one. References of the paper are
means over its own splits: they are there to compare with, and no goal of a single split.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from importlib.resources import files as package_files
from pathlib import Path

import numpy as np
import pandas as pd

from nearexact import files
from nearexact.bench.analysis import published
from nearexact.bench.analysis.checkpoints import FINAL
from nearexact.bench.analysis.families import BASELINES, is_lower_bound
from nearexact.bench.analysis.losses import LML, METRICS
from nearexact.bench.analysis.results import Goals, Results
from nearexact.bench.json_values import is_number, is_whole, parse_json

VERSION = 1
FILE = "references.json"  # in this package
TOLERANCE = 0.01  # of the way from a reference to the constant predictor: nearer counts as the same
PUBLISHED_SPLITS = 5
PAPER = "Ober et al., Recommendations for Baselines and Benchmarking Approximate Gaussian Processes, appendix, tables"


@dataclass(frozen=True)
class Reference:
    """The best known loss on one split; on the mean of the paper's splits where `seed` is None."""

    dataset: str
    seed: int | None
    n_train: int
    metric: str
    value: float
    method: str
    source: str  # where the value is from


def load(path: Path | None = None) -> list[Reference]:
    """The references of a file, the package's own by default; ValueError if it is not one."""
    place = package_files("nearexact.bench.analysis").joinpath(FILE) if path is None else path
    try:
        content = parse_json(place.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"{place} is no file of references: {error}") from error
    version = content.get("version") if isinstance(content, dict) else None
    if not isinstance(version, int) or not isinstance(content.get("references"), list):
        raise ValueError(f"{place} must be an object with a version and a list of references")
    if version > VERSION:
        raise ValueError(f"{place} is of version {version}, and this nearexact only reads versions up to {VERSION}")
    return [_reference(entry, place) for entry in content["references"]]


def _reference(entry: object, place: object) -> Reference:
    names = {part.name for part in fields(Reference)}
    if not isinstance(entry, dict) or entry.keys() != names:
        raise ValueError(f"{place}: a reference has {', '.join(sorted(names))}, got {entry!r}")
    texts = all(isinstance(entry[name], str) for name in ("dataset", "metric", "method", "source"))
    numbers = is_number(entry["value"]) and is_whole(entry["n_train"])
    if not texts or not numbers or not (entry["seed"] is None or is_whole(entry["seed"])):
        raise ValueError(f"{place}: a reference of another form: {entry!r}")
    return Reference(**entry)


def goals(references: Iterable[Reference]) -> Goals:
    """The references of single splits, as targets take them."""
    return {(one.dataset, one.seed, one.n_train, one.metric): one.value for one in references if one.seed is not None}


def write(path: Path, references: Iterable[Reference]) -> None:
    """Write a file of references, in an order that does not depend on how they came."""
    ranked = sorted(references, key=lambda one: (one.dataset, one.seed is None, one.seed or 0, one.metric))
    lines = ",\n".join(f"  {json.dumps(asdict(one), ensure_ascii=False)}" for one in ranked)
    head = f'{{\n "version": {VERSION},\n "about": {json.dumps(ABOUT)},\n "references": [\n'
    files.write_text(path, f"{head}{lines}\n ]\n}}\n")


ABOUT = (
    "The best known losses, on standardised targets; lower is better. negative_lml is that of a lower bound or an exact"
    " value. With a seed: the best that a run ended with on that split within its budget. Without one: as the paper"
    " prints it, a mean over its own five splits."
)


def best_of(references: Iterable[Reference]) -> list[Reference]:
    """Of several for the same, the one with the lowest loss."""
    best: dict[tuple[str, int | None, int, str], Reference] = {}
    for one in references:
        key = (one.dataset, one.seed, one.n_train, one.metric)
        best[key] = min(best.get(key, one), one, key=lambda reference: reference.value)
    return list(best.values())


def from_results(results: Results) -> list[Reference]:
    """The best that any run of a folder ended with, for each split and metric.

    Baselines are no GPs. For the log marginal likelihood only bounds count: estimates may be too high.
    """
    final = results.checkpoint_values
    final = final[(final["checkpoint"] == FINAL) & ~final["method"].map(dict(results.bases)).isin(BASELINES)]
    sources = {(run.dataset, run.method, run.seed): _source(run) for run in results.runs.itertuples()}
    found = []
    for metric in results.metrics:
        own = final[final["method"].isin(results.bounding)] if metric is LML else final
        own = own[np.isfinite(own[metric.name])]
        for (dataset, seed), rows in own.groupby(["dataset", "seed"]):
            n, best = results.sizes[dataset].n, rows.loc[rows[metric.name].idxmin()]
            if n is not None:
                value, source = float(best[metric.name]), sources[dataset, best["method"], seed]
                found.append(Reference(dataset, int(seed), n, metric.name, value, best["method"], source))
    return found


def _source(run: object) -> str:
    """Where the values of a run are from."""
    versions, commit, budget = (getattr(run, name, None) for name in ("versions", "git_commit", "budget_seconds"))
    parts = [f"nearexact {versions['nearexact']}"] if isinstance(versions, dict) and "nearexact" in versions else []
    parts += [f"commit {commit[:12]}"] if isinstance(commit, str) else []
    parts += [f"budget {budget:g} s"] if is_number(budget) else []
    return ", ".join(["measured", *parts])


def from_paper() -> list[Reference]:
    """The best that the paper prints for each data set, of its GPs; for the likelihood of its bounds."""
    table = published.load()
    table = table[(table["checkpoint"] == FINAL) & ~table["method"].isin(BASELINES) & np.isfinite(table["value"])]
    bounds = table["method"].map(lambda name: is_lower_bound(name, has_upper=False))
    table = table[(table["metric"] != LML.name) | bounds]
    rows = table.loc[table.groupby(["dataset", "metric"])["value"].idxmin()]
    source = f"published: {PAPER}; mean over {PUBLISHED_SPLITS} splits"
    return [
        Reference(row.dataset, None, int(row.n_train), row.metric, float(row.value), row.method, source)
        for row in rows.itertuples()
    ]


def verify(results: Results, references: Iterable[Reference]) -> pd.DataFrame:
    """A row for each reference that the folder has runs for: the best of the folder, and how far it is from it.

    `difference` is in per cent of the way from the reference to the constant predictor, above zero where the folder is
    worse. A reference without a seed is compared with the mean over the folder's seeds of the method that is best.
    """
    own = from_results(results)
    constants = {metric.name: metric for metric in METRICS}
    rows = []
    for one in references:
        here = _best_here(one, own, results)
        if here is None:
            continue
        value, method = here
        way = constants[one.metric].constant(one.n_train) - one.value
        share = (value - one.value) / way if way > 0.0 else math.nan
        words = "same" if abs(share) <= TOLERANCE else "better" if share < 0.0 else "worse"
        split = "mean" if one.seed is None else str(one.seed)
        compared = (one.value, one.method, value, method, 100.0 * share, words, one.source)
        rows.append((one.dataset, split, one.metric, *compared))
    names = ["dataset", "split", "metric", "reference", "by", "here", "method", "difference", "verdict", "source"]
    return pd.DataFrame(rows, columns=names)


def _best_here(one: Reference, own: list[Reference], results: Results) -> tuple[float, str] | None:
    """The best loss of the folder on what a reference is of, and whose it is; None if it has none."""
    if results.sizes.get(one.dataset) is None or results.sizes[one.dataset].n != one.n_train:
        return None
    if one.seed is not None:
        found = [o for o in own if (o.dataset, o.seed, o.metric) == (one.dataset, one.seed, one.metric)]
        return (found[0].value, found[0].method) if found else None
    final = results.checkpoint_values
    final = final[(final["checkpoint"] == FINAL) & (final["dataset"] == one.dataset)]
    final = final[~final["method"].map(dict(results.bases)).isin(BASELINES)]
    if one.metric == LML.name:
        final = final[final["method"].isin(results.bounding)]
    means = final.groupby("method")[one.metric].mean()
    means = means[np.isfinite(means)]
    return (float(means.min()), str(means.idxmin())) if len(means) else None
