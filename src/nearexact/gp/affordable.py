"""Which way to the exact GP the limits allow: Cholesky, conjugate gradients, or only near to it, by a sparse GP."""

from __future__ import annotations

import time

import torch
from torch import Tensor

from nearexact.gp.exact import TRIAL_ROWS, evaluation_seconds, exact_memory, factorisation_seconds
from nearexact.gp.flops import exact_flops, feature_count
from nearexact.gp.iterative_cost import (
    EVALUATION_PASSES,
    EvaluationCost,
    iterative_fits,
    possible_sizes,
    rough_evaluation_seconds,
)
from nearexact.gp.safety import NumericalError
from nearexact.gp.search import FIRST_ROWS, Search
from nearexact.gp.sparse import SparseObjective
from nearexact.kernels.base import Kernel
from nearexact.limits import memory_budget
from nearexact.typing import MemoryLimit

# Evaluations by Cholesky within the limit: with so many, search included, θ comes near its optimum. With fewer, but
# these at least, it is still the better way if conjugate gradients, whose likelihoods are estimates, would save little.
ENOUGH_EVALUATIONS, FEWEST_EVALUATIONS, MUCH_SLOWER = 16.0, 10.0, 2.0
FACTORISATIONS = 1.6  # one that takes longer than predicted, and some time to find θ for it on subsets
ONE_SOLUTION = 1.2  # evaluations by conjugate gradients that take as long as finding θ on subsets and one solution
# Evaluations by Cholesky with which all that the search has found can be followed: then there is nothing to be gained.
PLENTY_OF_EVALUATIONS = 300.0
MUCH_CHEAPER = 0.1  # of the operations of Cholesky: then conjugate gradients are the better way
COMPUTED_PASS = 3.0  # products of K that take as long as computing it
LOOK_SHARE = 0.02  # of the time limit, at most, to see how smooth the function is
LOOK_POINTS = 400  # of the sparse GP that tells


def best_method(kernel: Kernel, X: Tensor, y: Tensor, time_limit: float, memory_limit: MemoryLimit) -> str:
    """The way that training takes: that which is affordable, or conjugate gradients where they are much cheaper.

    Where a function is smooth, they need hardly any iterations. Then other starts can be followed, too, and models come
    near to their optimum, that Cholesky has no time for.
    """
    method = affordable_method(kernel, X, y, time_limit, memory_limit)
    if method == "cholesky" and is_much_cheaper(kernel, X, y, time_limit, memory_limit):
        return "iterative"
    return method


def is_much_cheaper(kernel: Kernel, X: Tensor, y: Tensor, time_limit: float, memory_limit: MemoryLimit) -> bool:
    """Whether an evaluation by conjugate gradients costs far less than by Cholesky, at the θ of a few rows."""
    n, memory = len(y), memory_budget(memory_limit, X.device)
    n_features = feature_count(kernel, X)
    by_cholesky, cost = exact_flops(n, n_features), EvaluationCost(n, 1.0, kernel_pass=COMPUTED_PASS)
    sizes = possible_sizes(kernel, n, n_features, memory)
    if not sizes or cost.computing(EVALUATION_PASSES) > MUCH_CHEAPER * by_cholesky:
        return False
    enough = time_limit / PLENTY_OF_EVALUATIONS
    if evaluation_seconds(kernel, X, y, little=enough, much=time_limit) <= enough:
        return False
    search = Search(
        kernel,
        X,
        y,
        time_limit=LOOK_SHARE * time_limit,
        memory=memory,
        seed=0,
        most_rows=2 * FIRST_ROWS,
        polishes=False,
        looks_for_details=False,
        keeps_digits=True,
    )
    search.run()
    theta = search.layout.unpack(search.candidates[0].theta)
    Z = X[torch.randperm(n, generator=torch.Generator().manual_seed(0))[:LOOK_POINTS].to(X.device)]
    try:
        sparse = SparseObjective(*theta, X, y, Z, memory_limit=memory).factorise(*theta, residuals=True)
    except NumericalError:
        return False
    assert sparse.residuals is not None
    cost = cost.after_sparse(len(Z), float(sparse.residuals.nanmean()), theta[1])
    return cost.predicted(cost.cheapest(sizes)) <= MUCH_CHEAPER * by_cholesky


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
        most = time_limit / FACTORISATIONS
        return factorisation_seconds(kernel, X, y, time.perf_counter, little=most) <= most
    except NumericalError:
        return False
