"""What a training run tells about itself, while it runs and afterwards."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from nearexact.gp.posterior import ExactPosterior, SparsePosterior
from nearexact.gp.safety import Repairs
from nearexact.kernels.base import Kernel

# Why a stage may not count as a step up in M: cut short, not computable, or nothing gained over a smaller M.
TIME_LIMIT, INTERRUPTED, FAILED, UNBEATEN = "time limit", "interrupted", "failed", "no better than a smaller M"


@dataclass(frozen=True)
class Stage:
    """One M of the schedule, and the model that was reached with it."""

    n: int  # rows of data
    scheduled: int  # M of the schedule
    m: int  # points of the model: fewer where no more are needed, or where a smaller model was not beaten
    elbo: float  # the bound that was maximised
    lower_bound: float  # on the log marginal likelihood: the best that is known, not less than the ELBO
    upper_bound: float
    kernel: Kernel
    noise_variance: float
    seconds: float  # spent on this M
    elapsed: float  # since training began
    evaluations: int  # of the objective, with or without gradient
    reselections: int
    restarts: int  # of L-BFGS
    rescues: int  # further starts, because the first ended in noise or below a smaller M
    jitter: float  # in the model's K_ZZ
    repairs: Repairs  # in all evaluations
    stopped: str  # why this M was done
    ended: str = ""  # why M grew no further; empty for all stages but the last

    @property
    def complete(self) -> bool:
        """Whether this M was done and led to a model of its own."""
        return not self.stopped.startswith((TIME_LIMIT, INTERRUPTED, FAILED, UNBEATEN))

    @property
    def gap_per_point(self) -> float:
        """(upper bound − lower bound)/N, in nats."""
        return (self.upper_bound - self.lower_bound) / self.n


@dataclass(frozen=True)
class Progress:
    """Where training stands after a step of the optimiser."""

    m: int
    elbo: float  # here, not the best so far
    seconds: float  # since training began
    posterior: Callable[[], SparsePosterior | ExactPosterior]  # costs about as much as a step
