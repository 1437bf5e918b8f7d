"""Which θ of a search on subsets is best with all rows, where there is no time to compute their likelihood.

An optimum of few rows may explain them by noise that is next to nothing, and be far off with all of them: rows that are
near to each other are rare in a subset. What the exact GP says about a row, given those of all rows that are nearest to
it, is near to what it says given all others, and costs next to no time. So lengthscales are taken from the search, and
the noise is looked at again.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from nearexact.gp.budget import Timer
from nearexact.gp.enough_noise import CLEARLY, NOISES
from nearexact.gp.linalg import as_columns
from nearexact.gp.neighbours import nearest_rows
from nearexact.gp.row_noise import RowNoise, noise_variances
from nearexact.gp.search import Search
from nearexact.kernels.base import Kernel
from nearexact.typing import FloatArray

logger = logging.getLogger(__name__)

TESTED_ROWS = 256
NEAREST = 128  # rows that a tested one is predicted from
ROWS_AT_ONCE = 64
MOST_COMPARED = 6  # optima: those of the last subset, then those of smaller ones
NEARLY_EQUAL = 1e-3  # variance of the difference of two rows' functions, relative to that of y, or less than the noise
SHARE_OF_TIME = 0.05  # of the time limit, for all comparisons


def best_with_all_rows(
    search: Search, X: Tensor, y: Tensor, row_noise: RowNoise | None = None, timer: Timer | None = None
) -> FloatArray:
    """The θ at which rows are most probable given their neighbours; the best one of the search, if in doubt.

    Of the timer's limit it takes a share at most, but for what the first comparison takes.
    """
    optima = [*search.rivals.carried(), *reversed(search.earlier)][:MOST_COMPARED]
    best, layout = optima[0].theta, search.layout
    if search.rounds and search.rounds[-1].rows >= len(X):
        return best
    highest, timer = -math.inf, timer or Timer()
    deadline = timer.seconds() + SHARE_OF_TIME * timer.time_limit
    for optimum in optima:
        if highest > -math.inf and timer.seconds() > deadline:
            break
        kernel, own_noise = layout.unpack(optimum.theta)
        noise, density = best_noise(kernel, own_noise, X, y, row_noise, most=layout.numerics.noise_bounds[1])
        if density > highest + (CLEARLY if highest > -math.inf else 0.0):
            best, highest = optimum.theta if noise == own_noise else layout.pack(kernel, noise), density
    if best is not optima[0].theta:
        logger.info("with all rows another θ is better: %.3g nats per row given the nearest", highest)
    return best


def best_noise(
    kernel: Kernel,
    own_noise: float,
    X: Tensor,
    y: Tensor,
    row_noise: RowNoise | None = None,
    *,
    most: float = math.inf,
) -> tuple[float, float]:
    """A noise variance, and the mean log density of rows with it: the own one, unless a larger one is clearly better.

    None above the `most` that a user allows.
    A search errs on this side: what is noise between near rows may look like details where these are rare.
    """
    own_noise = noise_between_pairs(kernel, own_noise, X, y, row_noise, most=most)
    noises = [own_noise, *(noise for noise in NOISES if own_noise < noise <= most)]
    densities = log_densities(kernel, noises, X, y, tested_rows(X), row_noise).mean(1).tolist()
    noise, density = max(zip(noises, densities, strict=True), key=lambda tried: tried[1])
    return (noise, density) if density > densities[0] + CLEARLY else (own_noise, densities[0])


def tested_rows(X: Tensor) -> Tensor:
    """Some of all rows, always the same."""
    return torch.randperm(len(X), generator=torch.Generator().manual_seed(0))[:TESTED_ROWS].to(X.device)


def noise_between_pairs(
    kernel: Kernel,
    own_noise: float,
    X: Tensor,
    y: Tensor,
    row_noise: RowNoise | None = None,
    *,
    most: float = math.inf,
) -> float:
    """The own noise variance, or a larger one that explains far better how targets of near rows differ.

    A few rows with the same inputs and different targets can cost more than all others gain; a sample misses them. In
    the order of a random direction such rows are next to each other. Only pairs count whose targets differ by noise
    rather than by the function: about others the signal variance says more than the noise.
    """
    features, targets = kernel.features(X, X.mean(0)), as_columns(y)
    direction = torch.randn(features.shape[1], dtype=X.dtype, generator=torch.Generator().manual_seed(0)).to(X.device)
    order = (features @ direction).argsort(stable=True)
    first, second = order[:-1], order[1:]
    covariance = torch.cat(
        [
            kernel.cross(features[i], features[j]).diagonal()
            for i, j in zip(torch.split(first, ROWS_AT_ONCE), torch.split(second, ROWS_AT_ONCE), strict=True)
        ]
    )
    diagonal = kernel.diagonal(features)
    between = (diagonal[first] + diagonal[second] - 2.0 * covariance).clamp_(min=0.0)
    squares = (targets[first] - targets[second]).square().mean(1)

    def of_noise(noise: float) -> Tensor:
        s = torch.as_tensor(noise_variances(row_noise, noise), dtype=X.dtype, device=X.device).expand(len(X))
        return s[first] + s[second]

    near = between <= of_noise(own_noise).clamp_(min=NEARLY_EQUAL)

    def likelihood(noise: float) -> float:
        variance = (between + of_noise(noise))[near]
        return -0.5 * float((squares[near] / variance + variance.log()).sum())

    noises = [own_noise, *(noise for noise in NOISES if own_noise < noise <= most)]
    best = max(noises, key=likelihood)
    return best if likelihood(best) > likelihood(own_noise) + CLEARLY * len(X) else own_noise


def log_densities(
    kernel: Kernel,
    tried: Sequence[float],
    X: Tensor,
    y: Tensor,
    rows: Tensor,
    row_noise: RowNoise | None = None,
) -> Tensor:
    """Log densities of these rows' targets, each given the rows that are nearest to it: [noises tried, rows].

    Minus infinity where they cannot be computed.
    """
    features = kernel.features(X, X.mean(0))
    diagonal, targets = kernel.diagonal(features), as_columns(y)
    noises = [
        torch.as_tensor(noise_variances(row_noise, s), dtype=X.dtype, device=X.device).expand(len(X)) for s in tried
    ]
    densities = []
    for part in torch.split(rows, ROWS_AT_ONCE):
        K = kernel.cross(features[part], features)  # [rows, N]
        nearest = nearest_rows(K, diagonal, noises[0], without=part)[:, :NEAREST]
        A = torch.stack([kernel.gram(features[near]) for near in nearest])  # [rows, S, S]
        given = torch.cat([K.gather(1, nearest)[:, :, None], targets[nearest]], dim=2)  # [rows, S, 1 + T]
        prior, y_part = diagonal[part], targets[part]
        at_each = [_given(A, given, noise[nearest], prior, noise[part], y_part) for noise in noises]
        densities.append(torch.stack(at_each))
    return torch.cat(densities, dim=1)


def _given(A: Tensor, given: Tensor, noise: Tensor, diagonal: Tensor, own_noise: Tensor, y: Tensor) -> Tensor:
    """Log densities of y [rows, T] from the kernel matrix of nearest rows, and k to them beside their targets."""
    L, failures = torch.linalg.cholesky_ex(A + torch.diag_embed(noise))
    half = torch.linalg.solve_triangular(L, given, upper=False)
    mean = (half[:, :, :1] * half[:, :, 1:]).sum(1)  # [rows, T]
    variance = (diagonal - half[:, :, 0].square().sum(1)).clamp_(min=0.0) + own_noise
    squares = (y - mean).square() / variance[:, None]
    density: Tensor = -0.5 * (squares + (2.0 * math.pi * variance).log()[:, None]).sum(1)
    return torch.where((failures == 0) & density.isfinite(), density, -math.inf)
