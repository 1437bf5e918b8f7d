"""Sizes as users write them."""

from __future__ import annotations

import pytest
import torch

from nearexact.limits import free_memory, memory_budget, parse_bytes, parse_seconds


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


@pytest.mark.parametrize(
    ("duration", "expected"),
    [
        (600, 600.0),
        (0.5, 0.5),
        ("90s", 90.0),
        ("90", 90.0),
        ("5m", 300.0),
        ("5 min", 300.0),
        ("8h", 28_800.0),
        ("1.5H", 5400.0),
        ("1h30m", 5400.0),
        ("1h 2m 3.5s", 3723.5),
        (".5m", 30.0),
        (None, float("inf")),
        (float("inf"), float("inf")),
    ],
)
def test_durations(duration: float | str | None, expected: float) -> None:
    assert parse_seconds(duration) == expected


@pytest.mark.parametrize(
    "duration", ["", " ", "h", "soon", "-5m", "5x", "1m1h", "1.2.3s", "m5", 0, "0s", -3, float("nan"), True, [5]]
)
def test_unparsable_durations_are_named(duration: float | str) -> None:
    with pytest.raises(ValueError, match='positive number of seconds, text such as "5m", or None, got'):
        parse_seconds(duration)


def test_without_a_limit_half_of_what_is_free_is_used() -> None:
    cpu = torch.device("cpu")
    assert memory_budget("3GB", cpu) == 3 * 10**9
    assert 0.4 < memory_budget(None, cpu) / free_memory(cpu) < 0.6
