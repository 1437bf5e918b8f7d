"""The exact GP that approximations are compared with: by Cholesky where it fits into memory, else by CG.

With conjugate gradients the likelihood is an estimate between proved bounds, and means are exact to a bound that is
known. Variances take a solve for each test input, so comparisons are then on the first of them only.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from nearexact.bench import store
from nearexact.bench.datasets import Split
from nearexact.bench.kept_models import Gaussian, KeptModel, at_least_rounding, latent
from nearexact.bench.store import RunFolder
from nearexact.gp import ExactObjective, ExactPosterior, ExactTraining, greedy_variance, minimise
from nearexact.gp.budget import held_memory
from nearexact.gp.exact import exact_memory
from nearexact.gp.iterative import IterativeObjective, solving_memory
from nearexact.gp.iterative_cost import possible_sizes
from nearexact.gp.iterative_model import AIMED_ERROR
from nearexact.gp.iterative_posterior import IterativePosterior, ModelSolver
from nearexact.gp.iterative_training import IterativeTraining
from nearexact.kernels.base import Kernel, as_kernel
from nearexact.typing import FloatArray

Way = Literal["cholesky", "iterative"]
ITERATIVE_TEST_POINTS = 500
MOST_INDUCING = 2000  # of the preconditioner: more would save hardly any iterations
PROBES = 32  # of the likelihood's estimate: twice as precise as in training


@dataclass(frozen=True, eq=False)
class ExactModel:
    """The exact GP at one θ."""

    posterior: ExactPosterior | IterativePosterior
    lml: float
    standard_error: float  # of the log marginal likelihood: 0 by Cholesky
    lower: float  # proved bounds on it
    upper: float
    latent: Gaussian  # at the test inputs that are compared

    @property
    def mean_error(self) -> float:
        """By how much the mean may be off, proved, in standard deviations of the noise."""
        return self.posterior.mean_error if isinstance(self.posterior, IterativePosterior) else 0.0


class ExactReference:
    """The exact GP on one split, with one kind of kernel. MemoryError where neither way fits."""

    def __init__(self, kernel: Kernel, data: Split, memory: int, seed: int) -> None:
        self.kernel, self.memory, self.seed = as_kernel(kernel, data.X_train.shape[1]), memory, seed
        self.X, self.y = torch.tensor(data.X_train), torch.tensor(data.y_train)
        needed = exact_memory(self.kernel, len(self.y))
        self.way: Way = "cholesky" if needed <= memory else "iterative"
        n_features = self.kernel.features(self.X[:1], self.X[0]).shape[1]
        further = solving_memory(self.kernel, len(self.y), PROBES) - solving_memory(self.kernel, len(self.y))
        sizes = possible_sizes(self.kernel, len(self.y), n_features, memory - further)
        self._sizes = sizes if self.way == "iterative" else []
        if self.way == "iterative" and not self._sizes:
            raise MemoryError(
                f"the exact GP needs {needed / 1e9:.3g} GB, there are {memory / 1e9:.3g} GB; conjugate gradients need"
                " less, but more than that too"
            )
        rows = len(data.y_test) if self.way == "cholesky" else min(ITERATIVE_TEST_POINTS, len(data.y_test))
        self.X_test, self.y_test = data.X_test[:rows], data.y_test[:rows]

    def at(self, kernel: Kernel, noise_variance: float) -> ExactModel:
        """The model at one θ."""
        if self.way == "iterative":
            return self._iterative(kernel, noise_variance)
        posterior = ExactObjective(kernel, noise_variance, self.X, self.y).factorise(kernel, noise_variance)
        lml = posterior.lml
        return ExactModel(posterior, lml, 0.0, lml, lml, latent(posterior, self.X_test))

    def optimum(self, trained: tuple[RunFolder, KeptModel] | None, time_limit: float) -> tuple[Kernel, float]:
        """The end of the exact GP's own training: its run's if that finished; else it is continued, or done, here."""
        start = None if trained is None else (trained[1].kernel, trained[1].noise_variance)
        if trained is not None and start is not None and trained[0].status() == store.RunStatus.FINISHED:
            return start
        limits: dict[str, Any] = {"memory_limit": self.memory, "time_limit": time_limit, "seed": self.seed}
        if self.way == "iterative":
            by_gradients = IterativeTraining(self.kernel, self.X, self.y, start=start, **limits)
            by_gradients.run()
            posterior = by_gradients.posterior()
            return posterior.kernel, posterior.noise_variance
        if start is not None:
            objective = ExactObjective(*start, self.X, self.y)
            return objective.layout.unpack(minimise(objective, objective.theta0, time_limit=time_limit).theta)
        training = ExactTraining(self.kernel, self.X, self.y, **limits)
        training.run()
        return training.layout.unpack(training.best_theta)

    def _iterative(self, kernel: Kernel, noise_variance: float) -> ExactModel:
        m = max([size for size in self._sizes if size <= MOST_INDUCING] or self._sizes[:1])
        Z = self.X[torch.from_numpy(greedy_variance(kernel, self.X, m, seed=self.seed))]
        memory = self.memory - held_memory(m)
        objective = IterativeObjective(
            kernel, noise_variance, self.X, self.y, Z, probes=PROBES, seed=self.seed, memory_limit=memory
        )
        estimate = objective.estimate(kernel, noise_variance)
        solver = ModelSolver(objective.sparse, kernel, noise_variance, objective.product)
        end = solver.finish(estimate.solution, AIMED_ERROR, self.seed, rows=0)
        bounds = estimate.bounds.meet(quadratic=end.quadratic)
        posterior = IterativePosterior.of(
            solver.factorisation, self.X, self.y, end.weights, end.residual_bound, end.variances
        )
        del objective, solver  # an [N, N] array, perhaps, which the next line needs room for
        mean, covariance = posterior.joint(self.X_test, self.memory)
        marginals = _marginals(kernel, self.X_test, mean, covariance.diagonal(), noise_variance)
        return ExactModel(posterior, estimate.value, estimate.standard_error, bounds.lower, bounds.upper, marginals)


def _marginals(kernel: Kernel, X: FloatArray, mean: Tensor, variance: Tensor, noise_variance: float) -> Gaussian:
    return Gaussian(np.asarray(mean), at_least_rounding(kernel, X, np.asarray(variance)), noise_variance)


def joint_kl(approximation: Any, exact: ExactModel, X_test: FloatArray, points: int) -> float:
    """KL of the joint latent distribution on the first test points, for each point; NaN if it cannot be computed."""
    if not hasattr(approximation, "joint"):
        return math.nan
    X = X_test[:points]
    # Functions are smooth: the covariances are nearly singular.
    floor = 1e-6 * float(np.asarray(exact.posterior.kernel.diag(X)).max())
    (m_a, S_a), (m_e, S_e) = approximation.joint(X), exact.posterior.joint(X)
    for S in (S_a, S_e):
        S.diagonal().add_(floor)
    try:
        L_a, L_e = torch.linalg.cholesky(S_a), torch.linalg.cholesky(S_e)
    except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
        return math.nan
    ratio = torch.linalg.solve_triangular(L_e, L_a, upper=False)
    shift = torch.linalg.solve_triangular(L_e, (m_a - m_e)[:, None], upper=False)
    log_ratio = 2.0 * (L_e.diagonal().log().sum() - L_a.diagonal().log().sum())
    return float(0.5 * (ratio.square().sum() + shift.square().sum() - len(X) + log_ratio)) / len(X)
