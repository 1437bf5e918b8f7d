"""A run on a worker of a Dask cluster: made as on one machine, and told to the sweep, which alone keeps results.

Messages go through a queue that lives with the scheduler, so that what a worker has told outlives it.
"""

from __future__ import annotations

import json
import tempfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from distributed import Queue, Status, Worker, get_worker
from filelock import FileLock, Timeout

from nearexact.bench import store
from nearexact.bench.json_values import as_json_value, bounded
from nearexact.bench.running.watcher import LOOK_AGAIN_SECONDS, carry_out
from nearexact.bench.store import RunFolder, RunSpec, RunStatus
from nearexact.typing import FloatArray

LOCK = "nearexact.lock"
ENDED = (Status.closing, Status.closed, Status.failed)  # of a worker


class Teller:
    """Tells the sweep what happens: JSON, followed by bytes. Messages are numbered, and say who sends them."""

    def __init__(self, queue: Queue) -> None:
        self._queue, self._sender, self._number = queue, uuid.uuid4().hex, 0

    def __call__(self, kind: str, content: dict[str, Any], data: bytes = b"") -> None:
        """Wait until the scheduler has the message."""
        text = json.dumps({"kind": kind, **content}, default=as_json_value)
        self._queue.put([self._sender, self._number, text, data])
        self._number += 1


class ToldFolder(RunFolder):
    """The folder of a run on a worker. Only the log is in it: the rest is told, and written by the sweep."""

    def __init__(self, path: Path, tell: Teller) -> None:
        super().__init__(path)
        self._tell, self._told_log = tell, 0

    def update(self, **changes: Any) -> None:
        """Tell entries of run.json."""
        self._tell("update", {"changes": {name: bounded(value) for name, value in changes.items()}})

    def append(self, point: dict[str, Any]) -> None:
        """Tell a line of the trace."""
        self._tell("point", {"point": point})

    def save_predictions(self, number: int, mean: FloatArray, variance: FloatArray) -> None:
        """Tell the test predictions of the trace's line with this number."""
        self._tell("predictions", {"number": number}, np.concatenate([mean, variance]).tobytes())

    def tell_log(self) -> None:
        """Tell what the run has printed since the last time."""
        path = self.path / store.LOG
        if not path.exists() or path.stat().st_size == self._told_log:
            return
        with path.open("rb") as file:
            file.seek(self._told_log)
            text = file.read()
        self._tell("log", {}, text)
        self._told_log += len(text)


def run_on_worker(spec: RunSpec, queue_name: str) -> None:
    """Make a run in a task of Dask, until it has ended or nobody wants it any more."""
    worker = get_worker()
    is_unwanted = _unwanted(worker)
    queue = Queue(queue_name)
    try:
        with _alone(worker, is_unwanted), tempfile.TemporaryDirectory(dir=worker.local_directory) as path:
            tell = Teller(queue)
            folder = ToldFolder(Path(path), tell)
            end = carry_out(spec, folder, is_unwanted, lambda _: folder.tell_log())
            if end.status == RunStatus.INTERRUPTED:  # nobody listens
                return
            folder.tell_log()
            tell("end", {"status": end.status, "reason": bounded(end.reason), "details": bounded(end.details)})
    finally:
        queue.close()


def _unwanted(worker: Worker) -> Callable[[], bool]:
    """Whether the present task was cancelled, by its client or because that is gone, or the worker is closed.

    Dask does not interrupt a task that runs, and has no public name for its state.
    """
    tasks, key = worker.state.tasks, worker.get_current_task()

    def is_unwanted() -> bool:
        task = tasks.get(key)
        return task is None or task.state != "executing" or worker.status in ENDED

    return is_unwanted


@contextmanager
def _alone(worker: Worker, is_unwanted: Callable[[], bool]) -> Iterator[None]:
    """Wait until no other run, perhaps of another sweep, is made by this worker: they would disturb each other."""
    lock = FileLock(Path(worker.local_directory) / LOCK)
    while not is_unwanted():
        try:
            lock.acquire(timeout=LOOK_AGAIN_SECONDS)
            break
        except Timeout:
            continue
    try:
        yield
    finally:
        lock.release()
