"""What training keeps of the models on its way: candidates, what came of an M, and what is counted meanwhile."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from nearexact.gp.bounds import LikelihoodBounds
from nearexact.gp.posterior import SparsePosterior
from nearexact.gp.safety import Repairs
from nearexact.gp.stages import StageEnd
from nearexact.typing import FloatArray, IndexArray


@dataclass(frozen=True, eq=False)
class Candidate:
    """A model as its ingredients: rows of X that are inducing points, and θ."""

    rows: IndexArray
    theta: FloatArray
    objective: float  # what is maximised, −∞ where it could not be computed
    model: Model | None = None  # where it is at hand
    proved: float | None = None  # lower bound on the exact log marginal likelihood, once there was a model

    @property
    def standing(self) -> tuple[float, float]:
        """What candidates are compared by: what is proved about the exact likelihood, then the objective.

        Before there is a model the objective promises what will be proved; where rounding errors are as large as the
        noise, that may be nothing. FITC bounds nothing: its own likelihood stands for it.
        """
        if self.proved is None or math.isnan(self.proved):
            return self.objective, self.objective
        return self.proved, self.objective

    @property
    def computed(self) -> bool:
        """Whether there is a model at all."""
        return self.objective > -math.inf


@dataclass(frozen=True, eq=False)
class Model:
    """What is kept of a factorisation: two [M, M] arrays."""

    posterior: SparsePosterior
    bounds: LikelihoodBounds
    jitter: float


@dataclass(frozen=True, eq=False)
class Result:
    """What came of an M: the model that stands for it, and how it ended."""

    candidate: Candidate
    end: StageEnd
    reason: str  # in words


@dataclass
class Tally:
    """What is counted while one M is under way."""

    scheduled_m: int
    started: float
    evaluations: int = 0
    reselections: int = 0
    restarts: int = 0
    rescues: int = 0
    exhausted: bool = True  # whether every selection ended early: other points would be copies, whatever θ is
    best: Candidate | None = None
    repairs: list[Repairs] = field(default_factory=list)


def complete(candidate: Candidate, reason: str) -> Result:
    """What came of an M that went to its end."""
    return Result(candidate, StageEnd.COMPLETE, reason)
