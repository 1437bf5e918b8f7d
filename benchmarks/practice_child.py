"""What the processes of practice.py share: they read a problem, fit one method to it, and write its predictions.

Seconds are those of the processor, of the fit alone: imports and predictions are not counted. Nothing of nearexact is
imported here, since some of these processes live in an environment without it.
"""

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]


@dataclass(eq=False)
class Problem:
    """Standardised rows to train on and inputs to predict, and how to say what came of it."""

    X: FloatArray
    y: FloatArray
    X_test: FloatArray
    seconds: float  # that a fit may take
    output: Path
    used: float = field(default=0.0, init=False)
    _started: float = field(default_factory=time.process_time, init=False)

    def left(self) -> float:
        """Seconds of the limit."""
        return self.seconds - self.used - (time.process_time() - self._started)

    def die_at_limit(self) -> None:
        """Let the system end this process when the limit is reached: what was written before counts."""
        _, hard = resource.getrlimit(resource.RLIMIT_CPU)
        resource.setrlimit(resource.RLIMIT_CPU, (int(np.ceil(time.process_time() + max(self.left(), 0.0))), hard))

    def write(self, predict: Callable[[], Mapping[str, Any]], note: str) -> None:
        """Predictions off the clock: mean and variance [N], or mean and quantiles [N, Q] at their levels [Q]."""
        self.used += time.process_time() - self._started
        _, hard = resource.getrlimit(resource.RLIMIT_CPU)
        resource.setrlimit(resource.RLIMIT_CPU, (hard, hard))
        complete = self.output.with_suffix(".part.npz")
        np.savez(complete, seconds=self.used, note=note, **predict())
        complete.replace(self.output)
        self._started = time.process_time()


def main(fits: Mapping[str, Callable[[Problem], None]]) -> None:
    """Fit the method that is asked for."""
    options = argparse.ArgumentParser()
    options.add_argument("fit", choices=fits)
    options.add_argument("problem", type=Path)
    options.add_argument("output", type=Path)
    options.add_argument("--seconds", type=float, required=True)
    given = options.parse_args()
    with np.load(given.problem) as data:
        problem = Problem(data["X"], data["y"], data["X_test"], given.seconds, given.output)
    fits[given.fit](problem)
