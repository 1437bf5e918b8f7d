"""Which way to the exact GP the limits allow: Cholesky, conjugate gradients, or only near to it, by a sparse GP."""

from __future__ import annotations

import time

from torch import Tensor

from nearexact.gp.exact import TRIAL_ROWS, evaluation_seconds, exact_memory, factorisation_seconds
from nearexact.gp.iterative_cost import iterative_fits, rough_evaluation_seconds
from nearexact.gp.safety import NumericalError
from nearexact.kernels.base import Kernel
from nearexact.limits import memory_budget
from nearexact.typing import MemoryLimit

# Evaluations by Cholesky within the limit: with so many, search included, θ comes near its optimum. With fewer, but
# these at least, it is still the better way if conjugate gradients, whose likelihoods are estimates, would save little.
ENOUGH_EVALUATIONS, FEWEST_EVALUATIONS, MUCH_SLOWER = 16.0, 10.0, 2.0
FACTORISATIONS = 1.6  # one that takes longer than predicted, and some time to find θ for it on subsets
ONE_SOLUTION = 1.2  # evaluations by conjugate gradients that take as long as finding θ on subsets and one solution


def affordable_method(kernel: Kernel, X: Tensor, y: Tensor, time_limit: float, memory_limit: MemoryLimit) -> str:
    """The best of "cholesky", "iterative" and "sparse" within the limits, as predicted from a few rows.

    Where neither Cholesky nor conjugate gradients have time to improve θ with all rows, the exact GP at the θ of a
    subset still explains far more than a sparse GP at its own: by one Cholesky factor, or one solution.
    """
    if exact_fits(kernel, X, y, time_limit, memory_limit):
        return "cholesky"
    if iterative_fits(kernel, X, time_limit, memory_limit, evaluations=ONE_SOLUTION):
        return "iterative"
    return "cholesky" if factor_fits(kernel, X, y, time_limit, memory_limit) else "sparse"


def exact_fits(kernel: Kernel, X: Tensor, y: Tensor, time_limit: float, memory_limit: MemoryLimit) -> bool:
    """Whether θ should be optimised by Cholesky with all rows."""
    memory = memory_budget(memory_limit, X.device)
    if exact_memory(kernel, len(y)) > memory:
        return False
    if len(y) <= TRIAL_ROWS:
        return True
    enough, most = time_limit / ENOUGH_EVALUATIONS, time_limit / FEWEST_EVALUATIONS
    seconds = evaluation_seconds(kernel, X, y, little=enough, much=most)
    return seconds <= enough or seconds <= min(most, MUCH_SLOWER * rough_evaluation_seconds(kernel, X, memory))


def factor_fits(kernel: Kernel, X: Tensor, y: Tensor, time_limit: float, memory_limit: MemoryLimit) -> bool:
    """Whether there is time and memory for a model with all rows, though not to optimise it."""
    if exact_memory(kernel, len(y)) > memory_budget(memory_limit, X.device):
        return False
    try:
        return FACTORISATIONS * factorisation_seconds(kernel, X, y, time.perf_counter) <= time_limit
    except NumericalError:
        return False
