"""How strongly a likelihood bends in each direction of θ, judged by a few rows: how long steps on all rows should be.

Per row, second derivatives change little with the number of rows. Those of a subset cost next to nothing, and with them
the first step of L-BFGS on all rows is nearly Newton's: it then takes two to four times fewer evaluations to come near
the optimum than if it had to find out by itself.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from nearexact.gp.parameters import Objective
from nearexact.gp.side_by_side import side_by_side
from nearexact.typing import FloatArray

DIFFERENCE = 0.01  # between the logarithms at which gradients are compared
LEAST = 0.01  # nats per row and squared logarithm: flatter directions are not trusted to be that flat


def second_derivatives(objective: Objective, logs: FloatArray, *, at_once: int = 1) -> FloatArray:
    """By differences of gradients, one for each coordinate: [P, P]. So many evaluations may run side by side."""
    places = [logs, *(logs + DIFFERENCE * unit for unit in np.eye(len(logs)))]
    _, gradients = zip(*side_by_side([partial(objective, place) for place in places], at_most=at_once), strict=True)
    matrix: FloatArray = (np.stack(gradients[1:]) - gradients[0]) / DIFFERENCE
    return 0.5 * (matrix + matrix.T)


def newton_gain(curvature: FloatArray, gradient: FloatArray) -> float:
    """What Newton's step gains where the likelihood bends as a `positive` curvature says: ½gᵀH⁻¹g.

    Directions that are not trusted to be flatter than LEAST may be, and a step there gain more: they count as ten times
    as flat.
    """
    values, axes = np.linalg.eigh(curvature)
    values = np.where(values > (1.0 + 1e-6) * LEAST, values, 0.1 * LEAST)
    return float(0.5 * np.sum((axes.T @ gradient) ** 2 / values))


def positive(matrix: FloatArray, least: float) -> FloatArray:
    """The nearest matrix without an eigenvalue below the least one."""
    values, vectors = np.linalg.eigh(matrix)
    nearest: FloatArray = (vectors * np.maximum(values, least)) @ vectors.T
    return nearest
