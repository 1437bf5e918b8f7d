"""The results that the paper prints, to compare ours with: means over five seeds, on an A6000 GPU."""

from __future__ import annotations

from collections.abc import Collection
from functools import cache
from importlib.resources import files

import pandas as pd

from nearexact.bench.analysis.checkpoints import FINAL
from nearexact.bench.analysis.losses import LML
from nearexact.certificate import Verdict, judge

NOTE = "published, A6000"
# Their SGPR is Algorithm 1, our `sgpr-paper`, and their IterGP is GPyTorch as it comes, our `itergp-paper`; `sgpr` and
# `itergp` are other procedures, which the paper does not have.
METHODS = {"IterGP": "itergp-paper", "SGPR": "sgpr-paper", "GPR": "gpr", "Linear": "linear", "Mean Pred.": "mean"}


def load() -> pd.DataFrame:
    """The published tables: metric, dataset, n_train, d, method, checkpoint (an M as text, or "final"), seconds, value.

    Methods have our names; values are losses, so that lower is better.
    """
    return _read().copy()  # so that nobody changes what others get


@cache
def _read() -> pd.DataFrame:
    with files("nearexact.bench.analysis").joinpath("published_results.csv").open(encoding="utf-8") as file:
        table = pd.read_csv(file, dtype={"m": str}, keep_default_na=True)
    table["method"] = table["method"].map(METHODS)
    return table.rename(columns={"m": "checkpoint"})


def checkpoints(
    metric: str, datasets: Collection[str]
) -> tuple[dict[tuple[str, str, int | str], float], dict[tuple[str, int], float]]:
    """Values by data set, method and checkpoint, and the seconds of the checkpoints, of these data sets."""
    table = load()
    table = table[(table["metric"] == metric) & table["dataset"].isin(datasets)]
    values: dict[tuple[str, str, int | str], float] = {}
    seconds: dict[tuple[str, int], float] = {}
    for row in table.itertuples():
        values[row.dataset, row.method, FINAL if row.checkpoint == FINAL else int(row.checkpoint)] = float(row.value)
        if row.checkpoint != FINAL:
            seconds[row.dataset, int(row.checkpoint)] = float(row.seconds)
    return values, seconds


def verdicts() -> dict[str, Verdict]:
    """The verdict on the published SGPR of each data set at its own θ, by what growing M changed.

    Upper bounds are not printed, and nothing that would speak for θ.
    """
    table = load()
    losses = table[(table["metric"] == LML.name)].sort_index()
    by_dataset = {}
    for dataset, rows in losses.groupby("dataset"):
        elbos = (
            -rows.loc[rows["method"] == METHODS["SGPR"], "value"]
        ).tolist()  # in the order of M; the last M is "final"
        noise_only = -float(rows.loc[rows["method"] == "mean", "value"].iloc[0])
        by_dataset[str(dataset)] = judge(elbos[-1], float("nan"), elbos, noise_only, int(rows["n_train"].iloc[0]))
    return by_dataset
