"""One run in a process of its own: `python -m nearexact.bench.running.runner <folder> <spec as JSON> [again]`.

The process holds the folder's lock while it lives, and ends when its standard input is closed: a parent that dies,
however it dies, leaves no writer behind.
"""

from __future__ import annotations

import ctypes
import json
import os
import platform
import signal
import subprocess
import sys
import threading
import time
import traceback
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil
import torch
from filelock import Timeout

from nearexact.bench import datasets, store
from nearexact.bench.methods import create
from nearexact.bench.protocol import BudgetExhausted, Task
from nearexact.bench.running.clock import TrainingClock
from nearexact.bench.running.peak_memory import peak_memory_mb
from nearexact.bench.running.recorder import Recorder
from nearexact.bench.store import RunFolder, RunSpec, RunStatus
from nearexact.limits import is_out_of_memory

# Exit status where another process holds the folder, or has finished the run, or where nothing can be written.
LOCKED, DONE_ALREADY, CANNOT_WRITE = 75, 76, 74
PACKAGES = ("nearexact", "torch", "numpy", "scipy", "scikit-learn", "gpytorch", "pandas")
WAIT_FOR_LOCK = 5.0  # seconds: somebody may just be looking whether it is held


class _CannotWriteError(Exception):
    """The results folder cannot be written to: not a result of the method."""


def main() -> int:
    """Make the run that is asked for, under the folder's lock; 0 if it has ended as one of `store.ENDED_STATUSES`."""
    folder, spec, again = RunFolder(Path(sys.argv[1]).resolve()), RunSpec(**json.loads(sys.argv[2])), sys.argv[3:]
    lock = folder.lock()
    try:
        lock.acquire(timeout=WAIT_FOR_LOCK)
    except Timeout:
        return LOCKED
    if folder.read().get("status") in (store.ENDED_STATUSES if not again else store.SUCCESSFUL_STATUSES):
        return DONE_ALREADY
    folder.prepare(spec)
    folder.update(status=RunStatus.RUNNING, started=time.time())
    try:
        folder.update(**surroundings(spec))
        status, reason, details = _run(spec, folder)
    except KeyboardInterrupt:
        folder.update(status=RunStatus.INTERRUPTED, reason="Ctrl-C")
        return 130
    except _CannotWriteError as error:
        with suppress(OSError):
            folder.update(status=RunStatus.INTERRUPTED, reason=str(error))
        print(error, file=sys.stderr)
        return CANNOT_WRITE
    except BaseException as error:  # a method that wants to exit, or a library that panics
        status, reason = RunStatus.ERROR, f"{type(error).__name__}: {error}"
        details = {"traceback": traceback.format_exc()}
    folder.sync()
    details = {"peak_memory_mb": peak_memory_mb(), **details}
    folder.update(status=status, reason=reason, finished=time.time(), **details)
    return 0


def _run(spec: RunSpec, folder: RunFolder) -> tuple[str, str, dict[str, Any]]:
    """Status, reason and what else is worth knowing."""
    torch.set_num_threads(spec.threads)
    clock: TrainingClock | None = None
    try:
        data = datasets.load_split(spec.dataset, spec.seed)
        n_train, inputs = data.X_train.shape
        folder.update(data={"n_train": n_train, "n_test": len(data.y_test), "inputs": inputs})
        method = create(spec.method, spec.options)
        try:
            folder.update(settings=getattr(method, "__dict__", {}))  # at once: not every run comes to its end
        except OSError as error:
            raise _CannotWriteError(error) from error
        torch.manual_seed(spec.seed)
        task = Task(
            dataset=spec.dataset,
            X_train=data.X_train,
            y_train=data.y_train,
            n_test=len(data.y_test),
            seed=spec.seed,
            budget_seconds=spec.budget_seconds,
            memory_limit=_left_of(spec.memory_limit),
            device=spec.device,
            threads=spec.threads,
        )
        if hasattr(method, "prepare"):
            method.prepare()  # imports, above all: they are no training
        synchronise = torch.cuda.synchronize if spec.device.startswith("cuda") else lambda: None
        clock = TrainingClock(synchronise=synchronise)
        recorder = Recorder(folder, data.X_test, data.y_test, spec.budget_seconds, clock)
        with suppress(BudgetExhausted):
            method.run(task, recorder)
        if recorder.write_error is not None:
            raise _CannotWriteError(recorder.write_error)
        details: dict[str, Any] = {
            "training_seconds": clock.elapsed(),
            "points": recorder.points,
            "peak_memory_mb": recorder.memory.peak_mb(),
        }
        if not recorder.points:
            return RunStatus.ERROR, "the method returned without reporting anything", details
        if recorder.spent or clock.elapsed() >= spec.budget_seconds:
            return RunStatus.BUDGET, f"the training time was spent: {clock.elapsed():.1f} s", details
        return RunStatus.FINISHED, "the method was done", details
    except _CannotWriteError:
        raise
    except Exception as error:  # whatever a method does, it is a result
        details = {"traceback": traceback.format_exc()}
        if clock is not None:
            details["training_seconds"] = clock.elapsed()
        status = RunStatus.OUT_OF_MEMORY if is_out_of_memory(error) else RunStatus.ERROR
        return status, f"{type(error).__name__}: {error}", details


def _left_of(limit: int | None) -> int | None:
    """What a limit on the whole process leaves to the method, with some room for what it does not count."""
    if limit is None:
        return None
    return max(int(0.9 * (limit - psutil.Process().memory_info().rss)), 1)


def _end_with_parent() -> None:
    """Wait until the pipe from the parent closes, then end this process and whatever it has started."""
    while os.read(0, 1):  # nothing is ever sent
        pass
    os.killpg(0, signal.SIGKILL)


def _die_with_parent() -> None:
    """Ask Linux to end this process with its parent, even while a computation lets no other thread run."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def surroundings(spec: RunSpec) -> dict[str, Any]:
    """Where a run takes place: versions, hardware, threads, and the commit if the package is a checkout."""
    return {
        "versions": {"python": platform.python_version(), **{name: _version(name) for name in PACKAGES}},
        "hardware": {
            "machine": platform.machine(),
            "system": f"{platform.system()} {platform.release()}",
            "processor": _processor(),
            "cores": os.cpu_count(),
            "memory_mb": psutil.virtual_memory().total / 1e6,
            "gpu": torch.cuda.get_device_name(spec.device) if spec.device.startswith("cuda") else None,
        },
        "threads": spec.threads,
        "git_commit": _git_commit(),
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor()


def _git_commit() -> str | None:
    try:
        command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None


if __name__ == "__main__":
    _die_with_parent()
    threading.Thread(target=_end_with_parent, daemon=True).start()
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # at once: threads that a method has left behind are not waited for
