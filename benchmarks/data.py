"""Data sets of the benchmarks; the large ones need the folder in NEAREXACT_DATA, or a network."""

from __future__ import annotations

from nearexact.bench.datasets import load_split
from nearexact.typing import FloatArray


def training_set(name: str) -> tuple[FloatArray, FloatArray]:
    """X [N, D] and y [N] of the first split's training part."""
    data = load_split(name, seed=0)
    return data.X_train, data.y_train
