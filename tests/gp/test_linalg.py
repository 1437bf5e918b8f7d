"""Tests of the linear algebra that the models share."""

import pytest
import torch

from nearexact.gp.linalg import SMALL_FACTOR, lower_inverse


@pytest.mark.parametrize("n", [1, SMALL_FACTOR, SMALL_FACTOR + 1, 2 * SMALL_FACTOR + 77])
def test_inverse_from_a_factor_equals_the_general_one(n: int) -> None:
    A = torch.randn(n, n, dtype=torch.float64, generator=torch.Generator().manual_seed(n))
    K = A @ A.T / n + torch.eye(n, dtype=torch.float64)
    inverse = lower_inverse(torch.linalg.cholesky(K), out=torch.empty_like(K))
    torch.testing.assert_close(inverse.tril(), torch.linalg.inv(K).tril(), rtol=1e-11, atol=1e-11)
