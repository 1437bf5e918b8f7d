"""The mathematics: sparse and exact GP regression on tensors. Knows nothing of files or estimators; time limits,
memory limits and clocks are arguments.

An objective is a callable: `objective(theta)` returns the negative bound (a float) and its gradient (an array), and
`objective.theta0` is the flat vector of the hyperparameters it was made with.
"""

from __future__ import annotations

from typing import Any

from nearexact.gp.block_cg import BlockSolution, NotConvergedError, block_cg
from nearexact.gp.bounds import Interval, LikelihoodBounds
from nearexact.gp.exact import ExactObjective
from nearexact.gp.exact_training import ExactTraining
from nearexact.gp.factorisation import Factorisation
from nearexact.gp.inducing import Selection, greedy_variance, select
from nearexact.gp.iterative import IterativeObjective
from nearexact.gp.iterative_posterior import IterativePosterior
from nearexact.gp.iterative_training import IterativeTraining
from nearexact.gp.optimise import LBFGSSettings, Optimum, Step, minimise
from nearexact.gp.posterior import ExactPosterior, SparsePosterior
from nearexact.gp.quadratic import Iteration, conjugate_gradients
from nearexact.gp.row_noise import RowNoise
from nearexact.gp.safety import DEFAULT_NUMERICS, NumericalError, Numerics, Repairs
from nearexact.gp.sparse import SparseObjective
from nearexact.gp.stages import Progress, Stage
from nearexact.gp.tighten import TightenedBounds, tighten_bounds
from nearexact.gp.training import Training
from nearexact.kernels.base import Kernel
from nearexact.kernels.names import unless_named


def sgpr_objective(
    kernel: Kernel | str,
    noise_variance: float,
    X: Any,
    y: Any,
    Z: Any,
    *,
    bound: str = "elbo",
    row_noise: RowNoise | None = None,
    memory_limit: int | float | str | None = None,
) -> SparseObjective:
    """−ELBO of sparse GP regression with inducing points Z, and its gradient by all hyperparameters.

    `bound="tight"` takes the tighter collapsed bound (Titsias 2025) instead of the ELBO. `memory_limit`
    (bytes or text such as "2GB"; None for half of what is free) bounds what the evaluation allocates besides the data:
    where it forbids an [N, M] array, that array is recomputed in chunks. With `row_noise` the noise variance is that of
    the learnt part; y may have several columns, whose bounds add up.
    """
    kernel = unless_named(kernel)
    return SparseObjective(kernel, noise_variance, X, y, Z, bound=bound, row_noise=row_noise, memory_limit=memory_limit)


def gpr_objective(
    kernel: Kernel | str, noise_variance: float, X: Any, y: Any, *, row_noise: RowNoise | None = None
) -> ExactObjective:
    """Negative log marginal likelihood of exact GP regression, and its gradient by all hyperparameters."""
    return ExactObjective(unless_named(kernel), noise_variance, X, y, row_noise=row_noise)


__all__ = [
    "DEFAULT_NUMERICS",
    "BlockSolution",
    "ExactObjective",
    "ExactPosterior",
    "ExactTraining",
    "Factorisation",
    "Interval",
    "Iteration",
    "IterativeObjective",
    "IterativePosterior",
    "IterativeTraining",
    "LBFGSSettings",
    "LikelihoodBounds",
    "NotConvergedError",
    "NumericalError",
    "Numerics",
    "Optimum",
    "Progress",
    "Repairs",
    "RowNoise",
    "Selection",
    "SparseObjective",
    "SparsePosterior",
    "Stage",
    "Step",
    "TightenedBounds",
    "Training",
    "block_cg",
    "conjugate_gradients",
    "gpr_objective",
    "greedy_variance",
    "minimise",
    "select",
    "sgpr_objective",
    "tighten_bounds",
]
