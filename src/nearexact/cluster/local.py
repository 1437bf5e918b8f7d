"""A client from text: the address of a scheduler, or a cluster of processes on this machine."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from distributed import Client, LocalCluster

CONNECT_SECONDS = 30


@contextmanager
def client_at(address: str) -> Iterator[Client]:
    """A client of the scheduler at an address, or with "local" or "local:N" of N worker processes on this machine.

    It is no default client, and closed at the end, as are the processes.
    """
    match = re.fullmatch(r"local(?::([1-9][0-9]*))?", address)
    if match:
        count = None if match[1] is None else int(match[1])
        with (
            LocalCluster(n_workers=count, threads_per_worker=1, dashboard_address=None) as cluster,
            Client(cluster, set_as_default=False) as client,
        ):
            yield client
        return
    if ":" not in address or address.startswith("local:"):
        raise ValueError(
            f'a Dask cluster must be the address of a scheduler, such as tcp://host:8786, "local" or "local:4", got'
            f" {address!r}"
        )
    try:
        client = Client(address, set_as_default=False, timeout=CONNECT_SECONDS)
    except (OSError, ValueError) as error:
        raise ConnectionError(f"there is no Dask scheduler at {address!r}: {error}") from error
    with client:
        yield client
