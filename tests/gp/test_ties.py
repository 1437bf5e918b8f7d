"""The random order in which rows of equal residual variance are taken."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from nearexact.gp import greedy_variance, ties
from nearexact.gp.ties import Ties, hashed, random_rows, tie_order
from nearexact.kernels import SquaredExponential

N = 2000
either = pytest.mark.parametrize("permuted_rows", [0, N], ids=["hashed", "permuted"])


@either
def test_positions_of_blocks_are_those_of_the_order(permuted_rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ties, "PERMUTED_ROWS", permuted_rows)
    ends = [0, 300, 301, N]
    parts = [
        part.positions(np.arange(last - first))
        for part, (first, last) in zip(Ties.drawn(5, N).split(ends), pairwise(ends), strict=True)
    ]
    order = np.argsort(np.concatenate(parts))
    assert order.tolist() == tie_order(5, N).tolist()
    assert sorted(order) == list(range(N))
    assert order.tolist() != tie_order(6, N).tolist()


def test_more_rows_than_fit_into_memory_have_positions_without_drawing_them_all() -> None:
    parts = Ties.drawn(5, 10**15).split([0, 10**15 - 3, 10**15])
    assert len({*parts[0].positions(np.arange(100)).tolist(), *parts[1].positions(np.arange(3)).tolist()}) == 103


@either
def test_equal_variances_are_taken_in_this_order(permuted_rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """K = I: all residuals are equal until their row is taken, so that nothing else decides."""
    monkeypatch.setattr(ties, "PERMUTED_ROWS", permuted_rows)
    X = 100.0 * np.arange(float(N))[:, None]
    assert greedy_variance(SquaredExponential(), X, 700, seed=1).tolist() == tie_order(1, N)[:700].tolist()


def test_hashes_are_those_of_splitmix64() -> None:
    """The first numbers of the published generator, begun at 1234567: they are those of rows 1, 2, …"""
    expected = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431]
    assert hashed(1234567, np.arange(1, 5)).tolist() == expected


def test_hashed_orders_look_random() -> None:
    """Every row comes first about as often as any other, and neighbours do not stay together."""
    firsts = [hashed(key, np.arange(10)).argmin() for key in np.random.default_rng(0).integers(2**63, size=5000)]
    counts = np.bincount(firsts, minlength=10)
    assert abs(counts - 500).max() < 100  # 4.7 standard deviations
    positions = hashed(1, np.arange(10**5)).argsort().argsort()
    assert abs(np.corrcoef(positions[1:], positions[:-1])[0, 1]) < 0.02


@either
def test_a_few_rows_are_drawn_without_repetition(permuted_rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ties, "PERMUTED_ROWS", permuted_rows)
    rows = random_rows(np.random.default_rng(3), N, 200)
    assert len(set(rows.tolist())) == 200
    assert 0 <= rows.min() < rows.max() < N
    assert rows.base is None  # nothing else is kept alive
    assert sorted(random_rows(np.random.default_rng(3), 50, 90)) == list(range(50))


def test_a_few_of_very_many_rows_take_little_memory() -> None:
    rows = random_rows(np.random.default_rng(3), 10**12, 1000)
    assert len(set(rows.tolist())) == 1000
