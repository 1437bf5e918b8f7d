"""Small problems, and the kernels that the mathematics is tested with."""

from __future__ import annotations

import numpy as np
import torch

from nearexact.kernels import ArcCosine, Kernel, Linear, Matern12, Matern32, Matern52, Periodic, SquaredExponential
from tests.kernels.formulas import Gibbs, RationalQuadratic, TrendOverPlaces

SIMPLE: dict[str, Kernel] = {
    "squared_exponential": SquaredExponential([0.6, 1.1, 2.0], 1.7),
    "matern12": Matern12([0.6, 1.1, 2.0], 1.7),
    "matern32": Matern32([0.6, 1.1, 2.0], 1.7),
    "matern52": Matern52([0.6, 1.1, 2.0], 1.7),
    "arc_cosine_0": ArcCosine(0, [1.0, 0.2, 3.0], 0.7, 1.4),
    "arc_cosine_1": ArcCosine(1, [1.0, 0.2, 3.0], 0.7, 1.4),
    "arc_cosine_2": ArcCosine(2, [1.0, 0.2, 0.5], 0.7, 0.6),
    "arc_cosine_0_elsewhere": ArcCosine(0, [1.0, 0.2, 3.0], 0.7, 1.4, origin=[0.5, -2.0, 0.1]),
    "linear": Linear([1.0, 0.2, 3.0], 0.7),
    "periodic": Periodic([1.5, 2.0, 3.0], [1.0, 2.0, 0.5], 1.3),
}
COMPOSED: dict[str, Kernel] = {
    "sum": SIMPLE["squared_exponential"] + SIMPLE["linear"],
    "product": SIMPLE["matern12"] * SIMPLE["periodic"],
    "nested": (SIMPLE["matern32"] + SIMPLE["arc_cosine_1"]) * SIMPLE["linear"],
    "three_factors": SIMPLE["linear"] * SIMPLE["arc_cosine_0"] * SIMPLE["matern52"],
}
BUILT_IN = SIMPLE | COMPOSED
FORMULAS: dict[str, Kernel] = {  # kernels that are nothing but a formula, and their compositions with others
    "rational_quadratic": RationalQuadratic([0.6, 1.1, 2.0], 0.8, 1.7),
    "gibbs": Gibbs([0.6, 1.1, 2.0], [0.1, 0.5, 0.2]),
    "trend_over_places": TrendOverPlaces(0.7, 1.5),
    "formula_and_built_in": (RationalQuadratic(1.0, 2.0) + SIMPLE["linear"]) * Gibbs(1.5, 0.3),
}
KERNELS = BUILT_IN | FORMULAS


def regression(n: int, seed: int = 0, d: int = 3, noise: float = 0.1) -> tuple[np.ndarray, np.ndarray]:
    """A smooth function of d inputs with noise."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    y = np.sin(2.0 * X[:, 0]) + 0.3 * X.sum(1) + noise * rng.normal(size=n)
    return X, y


def standardised(n: int, seed: int = 0, d: int = 3) -> tuple[np.ndarray, np.ndarray]:
    """The same with targets of mean 0 and variance 1."""
    X, y = regression(n, seed, d)
    return X, (y - y.mean()) / y.std()


def wide_table(rows: int, inputs: int, seed: int = 0, noise: float = 0.1) -> tuple[np.ndarray, np.ndarray]:
    """Inputs that are mixtures of three factors, as the channels of a spectrum are, and a function of one factor."""
    rng = np.random.default_rng(seed)
    factors = rng.normal(size=(rows, 3))
    X = factors @ rng.normal(size=(3, inputs)) + 0.3 * rng.normal(size=(rows, inputs))
    return X / X.std(0), np.sin(factors[:, 0]) + noise * rng.normal(size=rows)


def many_inputs(n: int, d: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Inputs that all matter a little: from unit lengthscales, every row is far from every other."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    y = X @ rng.normal(size=d) + rng.normal(size=n)
    return X, (y - y.mean()) / y.std()


def awkward_inputs(n: int = 24, seed: int = 3) -> np.ndarray:
    """Three columns with duplicated rows, nearly duplicated rows, a row of zeros and rows along one ray."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 3))
    X[1] = X[0]
    X[2] = X[0] * (1.0 + 1e-9)
    X[3] = 0.0
    X[5], X[6] = 2.0 * X[4], -X[4]
    return X


def features(kernel: Kernel, *inputs: np.ndarray) -> tuple[torch.Tensor, ...]:
    """Features of several matrices, with one centre, so that the kernel can be evaluated between them."""
    centre = torch.tensor(inputs[-1]).mean(0)
    return tuple(kernel.features(torch.tensor(X), centre) for X in inputs)
