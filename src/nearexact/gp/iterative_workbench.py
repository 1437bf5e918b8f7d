"""What training by conjugate gradients computes with: inducing points, sparse models, objectives and solvers.

There is one objective at a time, since it may keep the kernel matrix.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import torch

from nearexact.gp.budget import Timer, held_memory
from nearexact.gp.chain_rule import log_det_bounds
from nearexact.gp.exact import ExactObjective
from nearexact.gp.flops import cholesky_flops, feature_count, kernel_flops, selection_flops, sparse_flops
from nearexact.gp.inducing import select
from nearexact.gp.iterative import IterativeObjective
from nearexact.gp.iterative_model import HeldModel
from nearexact.gp.iterative_posterior import ModelSolver
from nearexact.gp.parameters import ParameterLayout
from nearexact.gp.row_blocks import RowBlocks
from nearexact.gp.row_noise import RowNoise
from nearexact.gp.safety import NumericalError, Repairs
from nearexact.gp.sparse import SparseObjective
from nearexact.typing import FloatArray

logger = logging.getLogger(__name__)


class Workbench:
    """For one training run; everything random comes from one seed. `check` is called within an evaluation."""

    def __init__(
        self,
        layout: ParameterLayout,
        X: torch.Tensor,
        y: torch.Tensor,
        row_noise: RowNoise | None,
        *,
        memory: int,
        timer: Timer,
        check: Callable[[], None],
        seed: int | None,
    ) -> None:
        self.layout, self.X, self.y, self.row_noise = layout, X, y, row_noise
        self.memory, self.timer, self._check = memory, timer, check
        self.random = np.random.default_rng(seed)
        self.objective: IterativeObjective | None = None
        self._n_features, self._flops = feature_count(layout.kernel, X), 0.0

    @property
    def flops(self) -> float:
        """Floating point operations so far."""
        return self._flops + (0.0 if self.objective is None else self.objective.flops)

    @property
    def repairs(self) -> Repairs:
        """Those of the present objective."""
        return Repairs() if self.objective is None else replace(self.objective.repairs)

    def new_seed(self) -> int:
        """Another one, each time."""
        return int(self.random.integers(2**31))

    def sparse(self, theta: FloatArray, m: int, usual: FloatArray) -> HeldModel:
        """A sparse GP with any m points; at the `usual` θ, if this one cannot be computed."""
        Z = self.X[torch.from_numpy(self.random.permutation(len(self.y))[:m]).to(self.X.device)]
        objective = self._bound(theta, Z)
        try:
            return HeldModel.sparse(theta, objective.factorise(*self.layout.unpack(theta), residuals=True))
        except NumericalError as error:
            logger.warning("the θ of the search could not be computed: %s", error)
        return HeldModel.sparse(usual, objective.factorise(*self.layout.unpack(usual), residuals=True))

    def with_new_points(self, theta: FloatArray, m: int, given: int = 0) -> IterativeObjective:
        """An objective with m points that are selected for this θ, in place of the one before.

        Where rows are given, blocks of rows are what preconditions.
        """
        self.release()
        return self._with_points(theta, self._selected(theta, m), given)

    def sparse_objective(self, theta: FloatArray, m: int) -> SparseObjective:
        """The bound of a sparse GP with m points that are selected for this θ."""
        self.release()
        return self._bound(theta, self._selected(theta, m))

    def count_sweeps(self, evaluations: int, m: int) -> None:
        """Operations of so many evaluations of a sparse GP."""
        self._flops += evaluations * sparse_flops(len(self.y), m, self._n_features)

    def log_det_bounds(self, model: HeldModel) -> Iterator[float]:
        """Lower and lower upper bounds on log|K̂| at the θ of a model, while there is time."""
        self.release()
        for bound, flops in log_det_bounds(
            *self.layout.unpack(model.theta),
            self.X,
            timer=self.timer,
            memory=self.memory,
            row_noise=self.row_noise,
            seed=self.new_seed(),
        ):
            self._flops += flops
            yield bound

    def solver(self, model: HeldModel, m: int, given: int = 0) -> ModelSolver:
        """For a model, with its own points or with more of them; preconditioned with blocks where rows are given."""
        own, held = model.posterior.inducing_points, self.objective
        if m > model.points:
            objective = self.with_new_points(model.theta, m, given)
        elif held is not None and torch.equal(held.sparse.Z, own) and (held.blocks is None) == (given == 0):
            objective = held
        else:
            self.release()
            objective = self._with_points(model.theta, own, given)
        return ModelSolver(
            objective.sparse,
            *self.layout.unpack(model.theta),
            objective.product,
            self.timer.check,
            blocks=objective.blocks,
            in_full=objective.in_full,
        )

    def factorised(self, model: HeldModel) -> HeldModel:
        """The same model by one Cholesky factor; NumericalError where there is none."""
        self.release()
        theta = self.layout.unpack(model.theta)
        exact = ExactObjective(*theta, self.X, self.y, row_noise=self.row_noise, numerics=self.layout.numerics)
        posterior, n = exact.factorise(*theta), len(self.y)
        self._flops += cholesky_flops(n) + kernel_flops(n, n, self._n_features)
        return model.factorised(posterior)

    def release(self) -> None:
        """Forget the objective, and the memory that it takes."""
        self._flops, self.objective = self.flops, None

    def _bound(self, theta: FloatArray, Z: torch.Tensor) -> SparseObjective:
        self.count_sweeps(1, len(Z))
        return SparseObjective(
            *self.layout.unpack(theta),
            self.X,
            self.y,
            Z,
            row_noise=self.row_noise,
            memory_limit=self.memory,
            numerics=self.layout.numerics,
        )

    def _selected(self, theta: FloatArray, m: int) -> torch.Tensor:
        """m points for this θ."""
        rows = select(
            self.layout.unpack(theta)[0],
            self.X,
            m,
            seed=self.new_seed(),
            between_blocks=self.timer.check,
            numerics=self.layout.numerics,
        ).indices
        self._flops += selection_flops(len(self.y), len(rows), self._n_features)
        return self.X[torch.from_numpy(rows).to(self.X.device)]

    def _with_points(self, theta: FloatArray, Z: torch.Tensor, given: int) -> IterativeObjective:
        kernel, noise_variance = self.layout.unpack(theta)
        blocks = None
        if given:
            chosen, seed = (kernel, noise_variance, self.X, given), self.new_seed()
            blocks = RowBlocks.chosen(*chosen, row_noise=self.row_noise, seed=seed, check=self.timer.check)
            self._flops += 0.5 * kernel_flops(len(self.y), len(self.y), self._n_features)
        self.objective = IterativeObjective(
            kernel,
            noise_variance,
            self.X,
            self.y,
            Z,
            row_noise=self.row_noise,
            blocks=blocks,
            seed=self.new_seed(),
            memory_limit=self.memory - held_memory(len(Z)),
            check=self._check,
            clock=self.timer.clock,
            numerics=self.layout.numerics,
        )
        return self.objective
