"""Data sets of the benchmarks, read from the folder in NEAREXACT_DATA: 85 % of the rows, standardised."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]

FILES = {"bike": "bike.csv.gz", "kin40k": "kin40k.csv.gz", "naval": "naval.txt"}
NAVAL_INPUTS = [column for column in range(16) if column not in (8, 11)]  # those two are constant


def training_set(name: str) -> tuple[FloatArray, FloatArray]:
    """X [N, D] and y [N] of a random 85 %, each column with mean 0 and variance 1."""
    folder = os.environ.get("NEAREXACT_DATA")
    if folder is None:
        raise SystemExit("these benchmarks need the data sets: set NEAREXACT_DATA to the folder that holds them")
    path = Path(folder) / FILES[name]
    table = np.loadtxt(path, delimiter="," if path.suffix == ".gz" else None)
    X, y = (table[:, NAVAL_INPUTS], table[:, 16]) if name == "naval" else (table[:, :-1], table[:, -1])
    rows = np.random.default_rng(0).permutation(len(table))[: int(0.85 * len(table))]
    X, y = X[rows], y[rows]
    return (X - X.mean(0)) / X.std(0), (y - y.mean()) / y.std()
