"""Fair timing on a noisy machine: alternatives take turns, and the best of several counts."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import torch


def interleaved(alternatives: Mapping[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Best seconds of each alternative over `repeats` rounds, all of them in every round, after one to warm up."""
    best = dict.fromkeys(alternatives, float("inf"))
    for repeat in range(repeats + 1):
        for name, run in alternatives.items():
            start = time.perf_counter()
            run()
            if repeat:
                best[name] = min(best[name], time.perf_counter() - start)
    return best


def dgemm() -> Callable[[], object]:
    """A square double-precision matrix product; `DGEMM_FLOPS` floating point operations."""
    A, B = (
        torch.randn(DGEMM_SIZE, DGEMM_SIZE, dtype=torch.float64),
        torch.randn(DGEMM_SIZE, DGEMM_SIZE, dtype=torch.float64),
    )
    C = torch.empty_like(A)
    return lambda: torch.mm(A, B, out=C)


DGEMM_SIZE = 3000
DGEMM_FLOPS = 2.0 * DGEMM_SIZE**3
