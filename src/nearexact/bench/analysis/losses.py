"""What methods are compared by: losses, of which lower is better, and costs.

The log marginal likelihood comes with its sign turned, as tables show it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import pandas as pd

from nearexact.noise_only import standardised_likelihood

COSTS = {  # column: what readers see
    "elapsed": "training seconds",
    "flops": "floating point operations",
    "peak_memory_mb": "peak memory in MB",
    "predict_seconds": "prediction seconds",
}
CONSTANT_CRPS = 1.0 / math.sqrt(math.pi)  # of N(0, 1) for targets of the same distribution


@dataclass(frozen=True)
class Metric:
    """A loss and the column that it is computed from."""

    name: str  # in files
    label: str  # for readers
    column: str
    sign: float  # loss = sign · column

    def loss(self, points: pd.DataFrame) -> pd.Series:
        """The loss at each point."""
        return self.sign * points[self.column]

    def constant(self, n: int | None) -> float:
        """The constant predictor's loss on standardised targets, which a model has to beat."""
        if self.name == "rmse":
            return 1.0
        if self.name == "crps":
            return CONSTANT_CRPS
        return -standardised_likelihood(1 if self.name == "nlpd" else n)


LML = Metric("negative_lml", "−LML", "elbo", -1.0)
RMSE = Metric("rmse", "RMSE", "rmse", 1.0)
NLPD = Metric("nlpd", "NLPD", "nlpd", 1.0)
CRPS = Metric("crps", "CRPS", "crps", 1.0)
METRICS = (LML, RMSE, NLPD, CRPS)
