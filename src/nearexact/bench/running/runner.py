"""One run in a process of its own: `python -m nearexact.bench.running.runner <channel> <data> <spec as JSON>`.

Channel and data are numbers of inherited files. The data are X_train, y_train and X_test: the test targets stay with
the sweep, which judges the predictions that come through the channel, and writes everything that is kept.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import sys
import traceback
from dataclasses import replace
from typing import Any

import numpy as np
import psutil

from nearexact.bench.json_values import bounded
from nearexact.bench.methods import create
from nearexact.bench.protocol import BudgetExhausted, Task
from nearexact.bench.running.channel import Channel
from nearexact.bench.running.clock import TrainingClock
from nearexact.bench.running.peak_memory import peak_memory_mb
from nearexact.bench.running.provenance import surroundings
from nearexact.bench.running.recorder import Recorder, RemoteEvaluations
from nearexact.bench.store import RunSpec
from nearexact.limits import is_out_of_memory

PR_SET_PDEATHSIG = 1


def main() -> None:
    """Make the run, and say through the channel how it ended."""
    channel_fd, data_fd, spec = int(sys.argv[1]), int(sys.argv[2]), RunSpec(**json.loads(sys.argv[3]))
    for fd in (channel_fd, data_fd):
        os.set_inheritable(fd, False)  # not for the programs that a method starts
    channel = Channel(socket.socket(fileno=channel_fd))
    pid, end = os.getpid(), dict[str, Any](failed=False, exhausted=False)
    clock: TrainingClock | None = None
    memory = peak_memory_mb
    try:
        channel.send({"kind": "about", **surroundings(spec)})
        method = create(spec.reference or spec.method, spec.options)
        channel.send({"kind": "about", "settings": bounded(getattr(method, "__dict__", {}))})
        if hasattr(method, "prepare"):
            method.prepare()  # imports, above all: they are no training
        torch = sys.modules.get("torch")  # a method that does not use it need not wait for it
        if torch is not None:
            torch.set_num_threads(spec.threads)
            torch.manual_seed(spec.seed)
        task, X_test = _read_task(spec, data_fd)
        channel.send({"kind": "start"})
        synchronise = torch.cuda.synchronize if torch is not None and spec.device.startswith("cuda") else lambda: None
        clock = TrainingClock(synchronise=synchronise)
        recorder = Recorder(RemoteEvaluations(channel), X_test, spec.budget_seconds, clock, spec.evaluate_every)
        memory, elapsed = recorder.peak_memory_mb, clock.elapsed
        method.run(replace(task, seconds_left=lambda: spec.budget_seconds - elapsed()), recorder)
    except BudgetExhausted:
        end["exhausted"] = True
    # Whatever a method does is a result, also where it wants to exit. Ctrl-C does not reach this process: a
    # KeyboardInterrupt is the method's own.
    except BaseException as error:
        end = {
            "failed": True,
            "exhausted": False,
            "out_of_memory": is_out_of_memory(error),
            "reason": bounded(f"{type(error).__name__}: {error}"),
            "traceback": bounded(traceback.format_exc()),
        }
    if os.getpid() != pid:  # a process that the method has forked, and that came back here
        return
    seconds = None if clock is None else clock.elapsed()
    channel.send({"kind": "end", **end, "elapsed": seconds, "peak_memory_mb": memory()})


def _read_task(spec: RunSpec, data_fd: int) -> tuple[Task, Any]:
    """What the method gets, and the test inputs."""
    with os.fdopen(data_fd, "rb") as file:
        X_train, y_train, X_test = (np.load(file, allow_pickle=False) for _ in range(3))
    task = Task(
        dataset=spec.dataset,
        X_train=X_train,
        y_train=y_train,
        n_test=len(X_test),
        seed=spec.seed,
        budget_seconds=spec.budget_seconds,
        memory_limit=_left_of(spec.memory_limit),
        device=spec.device,
        threads=spec.threads,
    )
    return task, X_test


def _left_of(limit: int | None) -> int | None:
    """What a limit on the whole process leaves to the method, with some room for what it does not count."""
    if limit is None:
        return None
    return max(int(0.9 * (limit - psutil.Process().memory_info().rss)), 1)


def _die_with_parent() -> None:
    """Ask Linux to end this process with its supervisor, even while a computation lets no other thread run."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    _die_with_parent()
    main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # at once: threads that a method has left behind are not waited for
