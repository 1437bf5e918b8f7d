"""Data sets of the benchmarks, read from the folder in NEAREXACT_DATA: 85 % to train, 15 % to test, standardised."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]

# The paper's data sets, the small ones first.
NAMES = (
    "skillcraft", "kin8nm", "power", "naval", "pol", "elevators",
    "bike", "kin40k", "protein", "tamielectric", "keggdirected", "keggundirected",
)  # fmt: skip
PLAIN_TEXT = ("kin8nm", "naval", "power")  # the others are compressed tables with commas
NAVAL_INPUTS = [column for column in range(16) if column not in (8, 11)]  # those two are constant


class Split(NamedTuple):
    """A data set in two parts, scaled so that each column of the training part has mean 0 and variance 1."""

    X: FloatArray
    y: FloatArray
    X_test: FloatArray
    y_test: FloatArray


@cache
def _table(name: str) -> FloatArray:
    folder = os.environ.get("NEAREXACT_DATA")
    if folder is None:
        raise SystemExit("these benchmarks need the data sets: set NEAREXACT_DATA to the folder that holds them")
    plain = name in PLAIN_TEXT
    path = Path(folder) / f"{name}{'.txt' if plain else '.csv.gz'}"
    table: FloatArray = np.loadtxt(path, delimiter=None if plain else ",")
    return table


def split(name: str, seed: int) -> Split:
    """A random 85 % of the rows to train, the rest to test."""
    table = _table(name)
    X, y = (table[:, NAVAL_INPUTS], table[:, 16]) if name == "naval" else (table[:, :-1], table[:, -1])
    rows = np.random.default_rng(seed).permutation(len(table))
    train, test = np.split(rows, [int(0.85 * len(table))])
    spread = X[train].std(0)
    X = (X - X[train].mean(0)) / np.where(spread > 0.0, spread, 1.0)
    y = (y - y[train].mean()) / y[train].std()
    return Split(X[train], y[train], X[test], y[test])


def training_set(name: str) -> tuple[FloatArray, FloatArray]:
    """X [N, D] and y [N] of the first split's training part."""
    data = split(name, seed=0)
    return data.X, data.y
