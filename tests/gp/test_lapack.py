"""Tests of Cholesky factors and inverses, next to torch's own."""

import pytest
import torch
from torch import Tensor

from nearexact.gp.lapack import THREADED_ROWS, cholesky, inverse
from nearexact.gp.threads import numpy_on_one_thread, scipy_on_threads

SIZES = [0, 1, 2, 77, THREADED_ROWS + 1]


def positive_definite(n: int) -> Tensor:
    A = torch.randn(n, n, dtype=torch.float64, generator=torch.Generator().manual_seed(n))
    return A @ A.T / n + torch.eye(n, dtype=torch.float64)


@pytest.mark.parametrize("n", SIZES)
def test_factor_and_inverse_equal_those_of_torch(n: int) -> None:
    K = positive_definite(n)
    kept = K.clone()
    L, succeeded = cholesky(K)
    assert succeeded
    assert torch.equal(K, kept)
    torch.testing.assert_close(L, torch.linalg.cholesky(K), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(inverse(L).tril(), torch.linalg.inv(K).tril(), rtol=1e-11, atol=1e-11)


def test_factors_and_inverses_are_in_the_type_of_the_room() -> None:
    K, room = positive_definite(77), torch.empty(77, 77, dtype=torch.float32)
    L, succeeded = cholesky(K, out=room)
    assert succeeded
    assert L.dtype == torch.float32
    torch.testing.assert_close(L.double(), cholesky(K)[0], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(inverse(L).tril().double(), torch.linalg.inv(K).tril(), rtol=1e-3, atol=1e-4)


def test_only_the_lower_triangle_is_read_and_the_layout_does_not_matter() -> None:
    K = positive_definite(50)
    expected, _ = cholesky(K)
    for other in (K.tril(), K.T.contiguous().T, torch.cat([K, K], dim=1)[:, :50]):
        assert torch.equal(cholesky(other)[0], expected)


def test_a_factor_is_written_where_there_is_room_for_it() -> None:
    K, room = positive_definite(50), torch.full((50, 50), torch.nan, dtype=torch.float64)
    L, _ = cholesky(K, out=room)
    assert L.data_ptr() == room.data_ptr()
    assert torch.equal(L, cholesky(K)[0])


def test_what_has_no_factor_is_told() -> None:
    K = positive_definite(50)
    assert not cholesky(K - 10.0 * torch.eye(50, dtype=torch.float64))[1]
    K[30, 7] = torch.nan
    L, succeeded = cholesky(K)
    assert not (succeeded and bool(torch.isfinite(L.diagonal()).all()))


def test_threads_are_as_before_afterwards() -> None:
    controller = pytest.importorskip("threadpoolctl").ThreadpoolController

    def threads() -> list[int]:
        return [library.num_threads for library in controller().lib_controllers]

    with numpy_on_one_thread():
        before = threads()
        with scipy_on_threads(2):
            cholesky(positive_definite(10))
        with pytest.raises(ZeroDivisionError), scipy_on_threads(2):
            raise ZeroDivisionError
        assert threads() == before
