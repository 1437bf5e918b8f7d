"""A sweep over a Dask cluster: each worker makes one run at a time, and the results folder is written here.

A run whose worker is lost starts again on another one; what it had told is put aside, as that of any run that was
interrupted. Resuming, limits and records are those of a sweep on one machine.
"""

from __future__ import annotations

import queue
import threading
import warnings
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace

from distributed import Client
from distributed.comm import get_address_host

from nearexact.bench.running.experiment import Experiment
from nearexact.bench.running.making import make_run
from nearexact.bench.running.remote_run import RemoteRun, Workers, reaching
from nearexact.bench.running.sweep import prepare, show
from nearexact.bench.running.watcher import Event
from nearexact.bench.store import RunSpec, RunStatus

MOST_TRIES = 3  # of a run: one that brings its worker down would bring down all of them


@dataclass
class _Run:
    """A run that is to be made."""

    spec: RunSpec
    worker: str = ""  # while it is under way
    lost: list[str] = field(default_factory=list)  # workers, each with a try


def run_cluster_sweep(
    experiment: Experiment,
    client: Client,
    *,
    retry_failed: bool = False,
    on_event: Callable[[Event], None] = lambda _: None,
) -> None:
    """Make the runs that are not done yet, on the workers of a cluster. Ctrl-C stops them; they start again next time.

    Workers may come and go. Unless the experiment says otherwise, runs have as many threads as the smallest worker.
    """
    if experiment.jobs > 1:
        raise ValueError(f"on a cluster each worker makes one run at a time: jobs must be 1, got {experiment.jobs}")
    experiment.check(elsewhere=True)
    experiment = replace(experiment, threads=experiment.threads or _fewest_threads(client))
    _Sweep(experiment, client, retry_failed, on_event).make()


def _fewest_threads(client: Client) -> int:
    with reaching(client):
        if not client.nthreads():
            warnings.warn("the cluster has no workers yet, the sweep waits for the first", stacklevel=3)
            client.wait_for_workers(1)
        return int(min(client.nthreads().values()))


class _Sweep:
    """The runs that wait, and those that are under way."""

    def __init__(
        self, experiment: Experiment, client: Client, retry_failed: bool, on_event: Callable[[Event], None]
    ) -> None:
        self._results, self._retry_failed, self._on_event = experiment.out, retry_failed, on_event
        self._client, self._workers, self._had_workers = client, Workers(client), True
        self._waiting = [_Run(spec) for spec in prepare(experiment, retry_failed, on_event)]
        self._under_way: dict[Future[Event], _Run] = {}
        self._stop = threading.Event()
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()

    def make(self) -> None:
        """Make all runs, as workers become free for them."""
        with ThreadPoolExecutor(max_workers=max(len(self._waiting), 1)) as pool:
            try:
                while self._waiting or self._under_way:
                    self._workers.look()
                    self._start(pool)
                    show(self._events, self._on_event)
                    self._collect()
            finally:
                self._stop.set()
                pool.shutdown(cancel_futures=True)

    def _start(self, pool: ThreadPoolExecutor) -> None:
        """Give each worker that has no run one of those that wait."""
        addresses = self._workers.addresses
        if self._had_workers and not addresses:
            warnings.warn("the cluster has no workers left, the sweep waits for new ones", stacklevel=4)
        self._had_workers = bool(addresses)
        for address in sorted(addresses - {run.worker for run in self._under_way.values()}):
            run = next((run for run in self._waiting if address not in run.lost or addresses <= {*run.lost}), None)
            if run is None:
                continue
            self._waiting.remove(run)
            run.worker = address
            host = get_address_host(address)
            future = pool.submit(
                make_run,
                run.spec,
                self._results,
                retry_failed=self._retry_failed,
                stop=self._stop,
                on_event=self._events.put,
                jobs=sum(get_address_host(other) == host for other in addresses),
                carry_out=RemoteRun(self._client, self._workers, address, tries_left=MOST_TRIES - len(run.lost) - 1),
            )
            self._under_way[future] = run

    def _collect(self) -> None:
        """Show the runs that have ended; those whose worker was lost wait for another."""
        for future in [future for future in self._under_way if future.done()]:
            run = self._under_way.pop(future)
            event = future.result()
            if event.status == RunStatus.INTERRUPTED:
                run.lost.append(run.worker)
                self._waiting.insert(0, run)
                event = replace(event, status=RunStatus.WAITING)
            self._on_event(event)
