"""A start far below the best so far comes nearer on few rows before it is followed with all of them.

At a start that explains the data far worse than the best so far, conjugate gradients take long, and the first steps
only get away from there. On few rows these steps take hardly any time: some neighbourhoods, in which rows are as dense
as among all of them so that details stay visible, and some rows from everywhere.
"""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import torch
from torch import Tensor

from nearexact.gp.exact import ExactObjective
from nearexact.gp.known_optimum import WORTH_CARRYING
from nearexact.gp.optimise import Step, minimise
from nearexact.gp.parameters import LogCoordinates
from nearexact.gp.rough_scan import likelihood_at
from nearexact.gp.rows import local
from nearexact.gp.safety import NumericalError
from nearexact.gp.search import SETTINGS, Search
from nearexact.gp.side_by_side import side_by_side
from nearexact.gp.starts import START_NOISE
from nearexact.typing import FloatArray, IndexArray

NEIGHBOURHOODS = 6


def nearer_start(search: Search, theta: FloatArray, best: FloatArray, seconds: float) -> FloatArray:
    """Where θ leads to on few rows, until it explains these nearly as well as the best so far, or time is up."""
    parts = _Parts(search, theta)
    enough = parts.likelihood(best) - WORTH_CARRYING * parts.rows
    if not math.isfinite(enough) or parts.likelihood(theta) >= enough:
        return theta

    def until_near(step: Step) -> None:
        if -step.value >= enough:
            raise StopIteration

    try:
        end = minimise(
            LogCoordinates.objective(parts),
            LogCoordinates.from_theta(theta),
            bounds=LogCoordinates.bounds(search.layout.bounds),
            time_limit=max(seconds, 0.0),
            callback=until_near,
            settings=SETTINGS,
            clock=search.timer.clock,
        )
    except NumericalError:
        return theta
    return LogCoordinates.to_theta(end.theta) if end.iterations else theta


class _Parts:
    """The likelihoods of several parts of the rows, added up as if these had nothing to do with each other."""

    def __init__(self, search: Search, theta: FloatArray) -> None:
        self.search, data = search, local(search.data)
        rows, random = search.sizes[0], np.random.default_rng(0)
        parts = [torch.from_numpy(random.choice(data.n, rows, replace=False))]
        parts += _neighbourhoods(search, theta, random.choice(data.n, NEIGHBOURHOODS, replace=False), rows)
        self.objectives = [self._objective(part.cpu().numpy()) for part in parts]
        self.rows = rows * len(parts)

    def _objective(self, rows: IndexArray) -> ExactObjective:
        X, y, noise = self.search.data.take(rows)
        kernel, numerics = self.search.layout.kernel, self.search.numerics
        return ExactObjective(kernel, START_NOISE, X, y, row_noise=noise, numerics=numerics)

    def __call__(self, theta: FloatArray) -> tuple[float, FloatArray]:
        """The negative likelihood and its gradient."""
        abreast = self.search.abreast(self.search.sizes[0])
        self.search.flops += len(self.objectives) * self.search.evaluation_flops(self.search.sizes[0])
        ends = side_by_side([partial(objective, theta) for objective in self.objectives], at_most=abreast)
        return sum(value for value, _ in ends), np.sum([gradient for _, gradient in ends], axis=0)

    def likelihood(self, theta: FloatArray) -> float:
        """Minus infinity where it cannot be computed."""
        return sum(likelihood_at(objective, theta) for objective in self.objectives)


def _neighbourhoods(search: Search, theta: FloatArray, centres: IndexArray, rows: int) -> list[Tensor]:
    """The rows to which each of these is related most at θ."""
    X, (kernel, _) = local(search.data).X, search.layout.unpack(theta)
    features = kernel.features(X, X.mean(0))
    K = kernel.cross(features[torch.from_numpy(centres).to(X.device)], features)
    related = K.square() / kernel.diagonal(features)
    return list(related.topk(rows, dim=1).indices)
