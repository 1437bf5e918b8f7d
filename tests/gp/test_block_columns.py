"""Tests of products with a symmetric matrix whose columns of blocks are shared out among cores."""

import threading
from collections.abc import Iterator, Sequence

import numpy as np
import pytest
import torch

from nearexact.gp.block_columns import FEWEST_COLUMNS, Check, by_columns, shares
from nearexact.gp.iterative import IterativeObjective
from nearexact.gp.kernel_product import KernelProduct, symmetric_product
from nearexact.gp.stored_kernel import Storage, StoredKernel
from nearexact.kernels import Kernel, Matern32, SquaredExponential
from tests.problems import regression

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("count", [1, 7, 8, 33])
@pytest.mark.parametrize("cores", [1, 2, 3, 16])
def test_every_column_has_one_core_and_all_have_about_as_many_blocks(count: int, cores: int) -> None:
    dealt = shares(count, cores)
    assert sorted(j for own in dealt for j in own) == list(range(count))
    blocks = [sum(j + 1 for j in own) for own in dealt]
    assert max(blocks) - min(blocks) <= count


def test_two_cores_have_columns_at_the_same_time() -> None:
    meeting = threading.Barrier(2, timeout=30.0)  # passed only by two that are under way at once

    def work(columns: Sequence[int], _: Check) -> tuple[int, ...]:
        meeting.wait()
        return tuple(columns)

    assert by_columns(8, work, lambda: None, device=CPU) == [(0, 3, 4, 7), (1, 2, 5, 6)]


def test_few_columns_stay_together() -> None:
    count = 2 * FEWEST_COLUMNS - 1
    assert by_columns(count, lambda columns, _: list(columns), lambda: None, device=CPU) == [list(range(count))]


def test_an_exception_of_one_core_ends_the_others() -> None:
    class StopHereError(Exception):
        pass

    done: list[int] = []

    def work(columns: Sequence[int], check: Check) -> None:
        for j in columns:
            if j == 3:
                raise StopHereError
            while 3 not in columns:  # goes on until the other one has failed
                check()
            done.append(j)

    with pytest.raises(StopHereError):
        by_columns(12, work, lambda: None, device=CPU)
    assert done == [0]


@pytest.mark.parametrize("vectors", [None, 1, 5, 12, 70])
@pytest.mark.parametrize("scaled", [False, True])
def test_products_are_those_of_the_whole_matrix(vectors: int | None, scaled: bool) -> None:
    X, y = regression(500)
    random = np.random.default_rng(0)
    v = y if vectors is None else random.normal(size=(500, vectors))
    scales = random.uniform(0.5, 2.0, size=500) if scaled else np.ones(500)
    kernel, noise = SquaredExponential([0.7, 1.0, 2.0], 1.3), 0.1
    product = KernelProduct(kernel, noise, torch.tensor(X), 40, scales=torch.tensor(scales) if scaled else None)
    expected = (scales[:, None] * kernel(X) * scales) @ v + noise * v
    np.testing.assert_allclose(product(torch.tensor(v)).numpy(), expected, rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize("storage", [Storage.FLOAT32, Storage.FLOAT64, Storage.NONE])
def test_a_matrix_that_is_kept_by_two_cores_is_the_whole_one(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nearexact.gp.stored_kernel.TILE_ROWS", 100)
    X, y = regression(2 * FEWEST_COLUMNS * 100 - 50)
    kernel, noise = Matern32([0.7, 1.0, 2.0], 1.3), 0.1
    product = StoredKernel(torch.tensor(X), 0 if storage is Storage.NONE else 10**10)
    product.update(kernel, noise, in_full=storage is Storage.FLOAT64)
    assert product.storage is storage
    found = product(torch.tensor(y)[:, None])[:, 0].numpy()
    expected = kernel(X) @ y + noise * y
    error = 1e-5 if storage is Storage.FLOAT32 else 1e-10
    np.testing.assert_allclose(found, expected, atol=error * abs(expected).max())


def test_the_gradient_is_that_of_one_core(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nearexact.gp.stored_kernel.TILE_ROWS", 50)
    X, y = regression(2 * FEWEST_COLUMNS * 50)
    one = IterativeObjective(SquaredExponential([0.7, 1.0, 2.0], 1.3), 0.1, X, y, X[:60], in_full=True)
    value, gradient = one(one.theta0)
    torch.set_num_threads(1)
    alone, alone_gradient = one(one.theta0)
    assert value == pytest.approx(alone, rel=1e-9)
    np.testing.assert_allclose(gradient, alone_gradient, rtol=1e-6, atol=1e-7 * np.abs(gradient).max())


@pytest.mark.parametrize("kernel", [SquaredExponential([0.7, 1.0, 2.0], 1.3), Matern32([0.7, 1.0, 2.0], 1.3)])
def test_the_gradient_from_a_matrix_that_is_kept_is_that_from_one_computed_again(
    kernel: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nearexact.gp.stored_kernel.TILE_ROWS", 50)
    X, y = regression(220)
    objective = IterativeObjective(kernel, 0.1, X, y, X[:60])
    found = objective(objective.theta0)[1]
    assert objective.product.storage is Storage.FLOAT32
    monkeypatch.setattr(StoredKernel, "copy_kept", lambda *_: False)
    again = objective(objective.theta0)[1]
    np.testing.assert_allclose(found, again, rtol=1e-5, atol=1e-6 * np.abs(again).max())


def test_zeros_make_no_difference() -> None:
    """Rows are filled up to a multiple of four; what comes back is as many as were given."""
    random = np.random.default_rng(0)
    A = random.normal(size=(90, 90))
    K, v = torch.tensor(A + A.T), torch.tensor(random.normal(size=(7, 90)))
    found = symmetric_product(v, 10, lambda: lambda i, j: K[10 * i : 10 * i + 10, 10 * j : 10 * j + 10])
    np.testing.assert_allclose(found.numpy(), (v @ K).numpy(), rtol=1e-10, atol=1e-10)
