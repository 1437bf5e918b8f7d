"""How strongly a likelihood bends in each direction of θ, judged by a few rows: how long steps on all rows should be.

Per row, second derivatives change little with the number of rows. Those of a subset cost next to nothing, and with them
the first step of L-BFGS on all rows is nearly Newton's: it then takes two to four times fewer evaluations to come near
the optimum than if it had to find out by itself.
"""

from __future__ import annotations

import numpy as np

from nearexact.gp.parameters import Objective
from nearexact.typing import FloatArray

DIFFERENCE = 0.01  # between the logarithms at which gradients are compared
LEAST = 0.01  # nats per row and squared logarithm: flatter directions are not trusted to be that flat


def second_derivatives(objective: Objective, logs: FloatArray) -> FloatArray:
    """By differences of gradients, one for each coordinate: [P, P]."""
    _, gradient = objective(logs)
    differences = [objective(logs + DIFFERENCE * unit)[1] - gradient for unit in np.eye(len(logs))]
    matrix = np.stack(differences) / DIFFERENCE
    return 0.5 * (matrix + matrix.T)


def positive(matrix: FloatArray, least: float) -> FloatArray:
    """The nearest matrix without an eigenvalue below the least one."""
    values, vectors = np.linalg.eigh(matrix)
    nearest: FloatArray = (vectors * np.maximum(values, least)) @ vectors.T
    return nearest
