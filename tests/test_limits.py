"""Sizes as users write them."""

from __future__ import annotations

import pytest
import torch

from nearexact.limits import free_memory, memory_budget, parse_bytes


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        (1024, 1024),
        (2.5e9, 2_500_000_000),
        ("2GB", 2_000_000_000),
        ("2 gb", 2_000_000_000),
        ("1.5GiB", 1_610_612_736),
        ("500MB", 500_000_000),
        ("64k", 64_000),
        ("1TB", 10**12),
        ("123", 123),
        ("7B", 7),
        (".5MB", 500_000),
    ],
)
def test_sizes(size: int | float | str, expected: int) -> None:
    assert parse_bytes(size) == expected


@pytest.mark.parametrize(
    "size", ["", "GB", "two GB", "-1GB", "1.2.3GB", "5 parsecs", -3, 0, float("nan"), float("inf"), True]
)
def test_unparsable_sizes_are_named(size: int | float | str) -> None:
    with pytest.raises(ValueError, match='positive number of bytes or text such as "2GB", got'):
        parse_bytes(size)


def test_without_a_limit_half_of_what_is_free_is_used() -> None:
    cpu = torch.device("cpu")
    assert memory_budget("3GB", cpu) == 3 * 10**9
    assert 0.4 < memory_budget(None, cpu) / free_memory(cpu) < 0.6
