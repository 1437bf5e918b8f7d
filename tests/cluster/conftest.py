"""A real cluster: two workers, each a process of its own with one thread."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture(scope="session")
def client() -> Iterator[Any]:
    """Its client, which is no default one: whatever needs it must be told."""
    distributed = pytest.importorskip("distributed", reason="Dask is not installed")
    with (
        distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster,
        distributed.Client(cluster, set_as_default=False) as client,
    ):
        yield client


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let partitions of a few rows be blocks of their own."""
    blocks = pytest.importorskip("nearexact.cluster.blocks", reason="Dask is not installed")
    monkeypatch.setattr(blocks, "FEWEST_NUMBERS", 1)
