"""FITC with growing M: predicts well, approximates badly, and the comparison should show both."""

from __future__ import annotations

from nearexact.bench.methods.kernel_option import DEFAULT
from nearexact.bench.methods.sgpr import SGPR
from nearexact.gp.fitc import FitcObjective
from nearexact.gp.schedule import SCHEDULE


class FITC(SGPR):
    """SGPR's procedure with FITC's likelihood in the place of the bound. A larger M is only kept if that is higher."""

    name = "fitc"
    objective = FitcObjective

    def __init__(self, max_inducing: int = SCHEDULE[-1], kernel: str = DEFAULT) -> None:
        super().__init__(max_inducing=max_inducing, kernel=kernel)
