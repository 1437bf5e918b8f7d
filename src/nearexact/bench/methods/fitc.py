"""FITC with growing M: predicts well, approximates badly, and the comparison should show both."""

from __future__ import annotations

from nearexact.bench.methods.sgpr import SGPR
from nearexact.gp.fitc import FitcObjective


class FITC(SGPR):
    """Algorithm 1 with FITC's likelihood in the place of the bound. It need not grow with M, so nothing is rescued."""

    name = "fitc"
    objective = FitcObjective

    def __init__(self) -> None:
        super().__init__(procedure="paper")
