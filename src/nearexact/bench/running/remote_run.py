"""One run on a worker of a Dask cluster, as the sweep sees it: writes what it tells, and notices if it is lost."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from distributed import Client, Future, Queue

from nearexact.bench.json_values import parse_json
from nearexact.bench.running.cluster_worker import run_on_worker
from nearexact.bench.running.watcher import INTERRUPTED, End, Event
from nearexact.bench.store import RunFolder, RunSpec, RunStatus

LISTEN_SECONDS = 0.3  # between two looks at what a run has told
LOOK_SECONDS = 1.0  # between two looks at which workers there are


class Workers:
    """The workers of a cluster, as they were a moment ago."""

    def __init__(self, client: Client) -> None:
        self._client, self._looked = client, -LOOK_SECONDS
        self.addresses: frozenset[str] = frozenset()

    def look(self) -> None:
        """Ask the scheduler, unless it has just been asked."""
        if time.monotonic() - self._looked >= LOOK_SECONDS:
            with reaching(self._client):
                self.addresses = frozenset(self._client.nthreads())
            self._looked = time.monotonic()


@contextmanager
def reaching(client: Client) -> Iterator[None]:
    """Raise a ConnectionError that says what to do if the scheduler cannot be reached."""
    try:
        yield
    except OSError as error:
        address = client.scheduler.address
        raise ConnectionError(
            f"the Dask scheduler at {address} cannot be reached; the same command continues when it can: {error}"
        ) from error


@dataclass(frozen=True)
class RemoteRun:
    """Makes a run on one worker: what a sweep calls to carry it out."""

    client: Client
    workers: Workers
    address: str
    tries_left: int  # after this one

    def __call__(
        self, spec: RunSpec, folder: RunFolder, stopped: Callable[[], bool], on_event: Callable[[Event], None]
    ) -> End:
        """Follow the run to its end. It is interrupted if its worker is lost, or killed if no other may try it."""
        folder.update(worker=self.address)
        with reaching(self.client):
            messages = Queue(client=self.client)
        # For this worker alone: another one is chosen by the sweep, which puts aside what this one has told.
        task = self.client.submit(
            run_on_worker,
            _with_full_paths(spec),
            messages.name,
            workers=[self.address],
            allow_other_workers=False,
            pure=False,
        )
        try:
            return self._follow(spec, task, messages, Listener(folder), stopped, on_event)
        finally:
            task.cancel()
            messages.close()

    def _follow(
        self,
        spec: RunSpec,
        task: Future,
        messages: Queue,
        listener: Listener,
        stopped: Callable[[], bool],
        on_event: Callable[[Event], None],
    ) -> End:
        while not stopped():
            lost = self._loss(task)  # before the last messages are read
            for message in self._told(messages):
                if not listener.expects(message):
                    return self._without_worker(f"the worker {self.address} was lost, and came back")
                end = listener.write(message)
                if end is not None:
                    return end
            if lost:
                return self._without_worker(lost)
            on_event(Event(spec, RunStatus.RUNNING, point=listener.last_point))
            time.sleep(LISTEN_SECONDS)
        return INTERRUPTED

    def _loss(self, task: Future) -> str:
        """Why the run does not go on, if it does not."""
        if task.status == "error":
            error = task.exception()
            return f"the worker {self.address} failed: {type(error).__name__}: {error}"
        if task.done() or self.address not in self.workers.addresses:
            return f"the worker {self.address} was lost"
        return ""

    def _without_worker(self, reason: str) -> End:
        if self.tries_left:
            return End(RunStatus.INTERRUPTED, reason)
        return End(RunStatus.KILLED, f"given up after the last try: {reason}")

    def _told(self, messages: Queue) -> list[Any]:
        """All messages that are there. None is waited for: Dask's scheduler logs the end of such a wait as an error."""
        with reaching(self.client):
            return list(messages.get(batch=True))


class Listener:
    """Writes what one execution of a run tells."""

    def __init__(self, folder: RunFolder) -> None:
        self.last_point: dict[str, Any] = {}
        self._folder, self._sender, self._number = folder, "", 0

    def expects(self, message: Any) -> bool:
        """Whether this is the next message.

        Dask starts a task again by itself where a worker comes back under its old address: that one starts from 0.
        """
        sender, number, _, _ = message
        is_next = bool(number == self._number and sender == (self._sender or sender))
        self._sender, self._number = sender, number + 1
        return is_next

    def write(self, message: Any) -> End | None:
        """Do what the worker's folder was asked to do; how the run ended, if it has."""
        _, _, text, data = message
        content = parse_json(text)
        kind = content["kind"]
        if kind == "update":
            self._folder.update(**content["changes"])
        elif kind == "point":
            self._folder.append(content["point"])
            self.last_point = content["point"]
        elif kind == "predictions":
            mean, variance = np.split(np.frombuffer(data), 2)
            self._folder.save_predictions(content["number"], mean, variance)
        elif kind == "log":
            self._folder.append_log(data)
        elif kind == "end":
            return End(RunStatus(content["status"]), content["reason"], content["details"])
        else:
            raise ValueError(f"a worker sent a message of the kind {kind!r}: it needs the version of this machine")
        return None


def _with_full_paths(spec: RunSpec) -> RunSpec:
    """The same run for a process with another working folder."""
    return replace(spec, dataset=_full_path(spec.dataset), reference=_full_path(spec.reference or spec.method))


def _full_path(name: str) -> str:
    """Of `path.csv:target` or `file.py:Class`; names that are no paths stay."""
    path, separator, rest = name.rpartition(":")
    return f"{Path(path).absolute()}:{rest}" if separator and Path(path).is_file() else name
