"""What a training run tells about itself, while it runs and afterwards."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from nearexact.gp.iterative_posterior import Posterior
from nearexact.gp.safety import Repairs
from nearexact.kernels.base import Kernel


class StageEnd(StrEnum):
    """How a stage ended. Only a complete one is a step up in M."""

    COMPLETE = "complete"
    TIME_LIMIT = "time limit"
    INTERRUPTED = "interrupted"
    FAILED = "failed"  # it could not be computed
    UNBEATEN = "no better than a smaller M"

    @staticmethod
    def from_text(stopped: str) -> StageEnd:
        """From the reason that earlier releases wrote down, which begins with the state."""
        states = (end for end in StageEnd if end is not StageEnd.COMPLETE)
        return next((end for end in states if stopped.startswith(end)), StageEnd.COMPLETE)


class TrainingEnd(StrEnum):
    """Why training ended, where nobody asked it to."""

    SCHEDULE = "schedule"  # M came to its largest share of N
    MAX_INDUCING = "max_inducing"
    MEMORY_LIMIT = "memory limit"
    TIME_LIMIT = "time limit"
    NO_VARIANCE_LEFT = "no variance left"  # further points would be copies
    INTERRUPTED = "interrupted"
    OPTIMUM_FOUND = "optimum found"  # of the exact GP, and so are the following
    MAX_ITERATIONS = "max iterations"
    NO_FURTHER_STEP = "line search"
    FAILED = "failed"


@dataclass(frozen=True)
class Stage:
    """One M of the schedule, and the model that was reached with it."""

    n: int  # rows of data
    scheduled_m: int  # M of the schedule
    m: int  # points of the model: fewer where no more are needed, or where a smaller model was not beaten
    objective: float  # what was maximised: the ELBO, the tight bound, or an exact or approximate log likelihood
    lower_bound: float  # on the log marginal likelihood: the best that is known, not less than the ELBO
    upper_bound: float
    kernel: Kernel
    noise_variance: float
    seconds: float  # spent on this M
    elapsed: float  # since training started
    evaluations: int  # of the objective, with or without gradient
    reselections: int
    restarts: int  # of L-BFGS
    rescues: int  # further starts, because the first ended in noise or below a smaller M
    jitter: float  # in the model's K_ZZ
    repairs: Repairs  # in all evaluations
    end: StageEnd
    stopped: str  # why this M was done, in words
    ended: str = ""  # why M grew no further, a TrainingEnd or what `on_stage` said; empty for all stages but the last

    @property
    def complete(self) -> bool:
        """Whether this M was done and led to a model of its own."""
        return self.end is StageEnd.COMPLETE

    @property
    def elbo(self) -> float:
        """What was maximised: the name of `objective` in earlier releases."""
        return self.objective

    @property
    def gap_per_point(self) -> float:
        """(upper bound − lower bound)/N, in nats."""
        return (self.upper_bound - self.lower_bound) / self.n


@dataclass(frozen=True)
class Progress:
    """Where training stands after a step of the optimiser."""

    m: int
    objective: float  # here, not the best so far; that, while starts are followed that may be better
    seconds: float  # since training started
    posterior: Callable[[], Posterior]  # costs about as much as a step
