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
    try:
        client = Client(address, set_as_default=False, timeout=CONNECT_SECONDS)
    except (OSError, ValueError, TimeoutError) as error:
        raise ValueError(
            f'a Dask scheduler must be given as its address, such as tcp://host:8786, or as "local" or "local:4",'
            f" got {address!r}: {error}"
        ) from error
    with client:
        yield client
