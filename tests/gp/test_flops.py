"""Counts of floating point operations: what torch counts itself, and what follows from the steps that were taken."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from nearexact.gp import ExactTraining, Training
from nearexact.gp.flops import exact_flops, kernel_flops, selection_flops, sparse_flops, sparse_gradient_flops
from nearexact.kernels import Linear, SquaredExponential
from tests.problems import regression


def test_values_of_a_kernel_that_is_one_product_take_what_torch_counts() -> None:
    X, kernel = torch.randn(50, 4, dtype=torch.float64), Linear(np.ones(4))
    features = kernel.features(X, X.mean(0))
    with FlopCounterMode(display=False) as counter:
        kernel.cross(features, features[:20])
    counted = counter.get_total_flops()  # of one product with some of the features
    assert 0 < counted <= kernel_flops(50, 20, features.shape[1])


@pytest.mark.parametrize("bound", ["elbo", "tight"])
def test_published_training_takes_what_its_steps_take(bound: str) -> None:
    X, y = regression(120)
    training = Training(SquaredExponential(), X, y, procedure="paper", bound=bound, inducing=[30], seed=0)
    training.run()
    (stage,) = training.history
    n, m, features = len(y), 30, 2 * X.shape[1] + 1
    models = 1 + 2 * stage.reselections  # the first, and one before and one after each further selection
    gradients = stage.evaluations - models
    expected = (
        gradients * (sparse_flops(n, m, features) + sparse_gradient_flops(n, m, features, tight=bound == "tight"))
        + models * sparse_flops(n, m, features)
        + (1 + stage.reselections) * selection_flops(n, m, features)
    )
    assert training.flops == pytest.approx(expected)
    assert training.flops > gradients * ((6 if bound == "tight" else 5) * m**2 * n + 5 * m**3)


def test_exact_training_counts_factors_inverses_and_kernels() -> None:
    X, y = regression(60)
    training = ExactTraining(SquaredExponential(), X, y, seed=0)
    training.run()
    evaluations = sum(stage.evaluations for stage in training.history)
    n, features = len(y), 2 * X.shape[1] + 1
    assert training.flops - training.search.flops == pytest.approx(evaluations * exact_flops(n, features))
    assert training.search.flops > exact_flops(n, features) > n**3 + 3 * kernel_flops(n, n, features) - 1
