"""One run as the sweep sees it: starts its processes, judges what it reports, enforces limits, writes what is kept."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import psutil

from nearexact.bench import datasets, store
from nearexact.bench.running import supervisor
from nearexact.bench.running.channel import Channel
from nearexact.bench.running.evaluator import Evaluator
from nearexact.bench.store import RunFolder, RunSpec, RunStatus
from nearexact.limits import is_out_of_memory

LOOK_AGAIN_SECONDS = 0.1
WAIT_FOR_END = 2.0 * supervisor.KILLING_SECONDS
MESSAGES_AT_ONCE = 100
ANSWER_SECONDS = 5.0  # after which a run that does not read an answer is taken not to want it
MACHINE_SHARE = 0.9  # of the machine's memory, which no run may exceed even without a limit of its own
ABOUT = (  # what a run says about itself
    "versions", "distributions", "hardware", "threads", "git_commit", "git_dirty", "code", "settings",
)  # fmt: skip


@dataclass(frozen=True)
class Event:
    """Something to show: a run and where it stands. `point` is the last line of its trace."""

    spec: RunSpec
    status: RunStatus
    reason: str = ""
    point: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class End:
    """How a run ended."""

    status: RunStatus
    reason: str
    details: dict[str, Any] = field(default_factory=dict)


INTERRUPTED = End(RunStatus.INTERRUPTED, "the sweep was stopped")


def carry_out(
    spec: RunSpec,
    folder: RunFolder,
    stopped: Callable[[], bool],
    on_event: Callable[[Event], None],
    *,
    now: Callable[[], float] = time.monotonic,
) -> End:
    """Make a run on this machine, and write what it reports into its folder. Once `stopped`, it is interrupted.

    `now` is the clock of the hard limit.
    """
    try:
        checksum = datasets.checksum(spec.dataset)
        split = datasets.load_split(spec.dataset, spec.seed)
    except Exception as error:  # data that cannot be read are a result like any other
        return _failure(error)
    n_train, inputs = split.X_train.shape
    size = {"n_train": n_train, "n_test": len(split.y_test), "inputs": inputs}
    folder.update(data=size | ({} if checksum is None else {"sha256": checksum}))
    with _RunProcess(spec, folder, split, now) as process:
        del split
        return process.watch(stopped, on_event)


def _failure(error: Exception) -> End:
    status = RunStatus.OUT_OF_MEMORY if is_out_of_memory(error) else RunStatus.ERROR
    return End(status, f"{type(error).__name__}: {error}", {"traceback": traceback.format_exc()})


class _RunProcess:
    """The processes of a run while it is under way."""

    def __init__(self, spec: RunSpec, folder: RunFolder, split: datasets.Split, now: Callable[[], float]) -> None:
        self._spec, self._folder, self._now = spec, folder, now
        self._evaluator = Evaluator(folder, split.y_test, spec.budget_seconds)
        self._end: End | None = None
        self._about: dict[str, Any] = {}
        here, there = socket.socketpair()
        self._channel = Channel(here, longest_array=2 * len(split.y_test))
        threads = {name: str(spec.threads) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")}
        with there, tempfile.TemporaryFile() as data:
            for array in (split.X_train, split.y_train, split.X_test):
                np.save(data, array)
            data.seek(0)
            fds = [there.fileno(), data.fileno()]
            runner = [sys.executable, "-P", "-m", "nearexact.bench.running.runner", *map(str, fds)]
            command = [sys.executable, "-P", supervisor.__file__, str(folder.path / store.LOG), ",".join(map(str, fds))]
            self._started = now()
            self._supervisor = subprocess.Popen(
                [*command, *runner, json.dumps(asdict(spec))],
                stdin=subprocess.PIPE,  # never written to: when it closes, by whatever cause, the run ends
                stdout=subprocess.PIPE,
                env={**os.environ, **threads},
                pass_fds=fds,
                start_new_session=True,  # Ctrl-C is for the sweep, which then ends its runs
            )

    def __enter__(self) -> _RunProcess:
        return self

    def __exit__(self, *_: object) -> None:
        """End all processes, if they have not ended, and wait until they are gone."""
        self._stop()
        self._channel.close()

    def watch(self, stopped: Callable[[], bool], on_event: Callable[[Event], None]) -> End:
        """Follow the run until it has ended, or is ended."""
        end: End | None = None
        while end is None:
            if stopped():
                return INTERRUPTED
            ended = self._supervisor.poll() is not None  # before the last messages are read
            try:
                for _ in range(MESSAGES_AT_ONCE):  # limits are enforced in between
                    if not self._handle_message(0.0 if ended else LOOK_AGAIN_SECONDS):
                        break
            except (ValueError, TypeError, KeyError) as error:
                end = End(RunStatus.ERROR, f"the run sent what is not a message: {type(error).__name__}: {error}")
                break
            on_event(Event(self._spec, RunStatus.RUNNING, point=self._evaluator.last_point))
            end = self._end if ended and self._end else self._beyond_limits()
            if ended and end is None:
                end = End(RunStatus.KILLED, self._last_words())
        self._stop()
        return self._with_details(end)

    def _handle_message(self, timeout: float) -> bool:
        """Read at most one message and do what it asks for; whether there was one."""
        try:
            message = self._channel.receive(timeout)
        except TimeoutError:
            return False
        except EOFError:  # nothing more will come, though the process may go on for a while
            time.sleep(timeout)
            return False
        if message is None:
            return True
        content, numbers = message
        kind = content["kind"]
        if kind == "about":
            self._about |= {name: content[name] for name in ABOUT if name in content}
            self._folder.update(**self._about)
        elif kind == "start":
            self._evaluator.start()
        elif kind == "pause":
            self._evaluator.pause()
        elif kind == "resume":
            self._evaluator.resume()
        elif kind == "point":
            self._record(content, numbers)
        elif kind == "end":
            self._end = self._end_from(content)
        else:
            raise ValueError(f"of the kind {kind!r}")
        return True

    def _record(self, content: dict[str, Any], numbers: Any) -> None:
        point, info, n = dict(content["point"]), dict(content["info"]), len(self._evaluator.y_test)
        if len(numbers) != 2 * n:
            raise ValueError(f"{len(numbers)} numbers for {n} test points")
        spent = self._evaluator.record(point, info, numbers[:n], numbers[n:])
        with suppress(OSError):
            self._channel.send({"spent": spent}, timeout=ANSWER_SECONDS)

    def _end_from(self, content: dict[str, Any]) -> End:
        seconds = None if content["elapsed"] is None else self._evaluator.training_seconds(content["elapsed"])
        details = {"training_seconds": seconds, "peak_memory_mb": float(content["peak_memory_mb"])}
        if content["failed"]:
            status = RunStatus.OUT_OF_MEMORY if content["out_of_memory"] else RunStatus.ERROR
            return End(status, str(content["reason"]), {**details, "traceback": str(content["traceback"])})
        if not self._evaluator.points:
            if content["exhausted"]:
                reason = f"the training time was spent before anything was reported: {seconds or 0.0:.1f} s"
                return End(RunStatus.KILLED, reason, details)
            return End(RunStatus.ERROR, "the method returned without reporting anything", details)
        spent = self._evaluator.spent or content["exhausted"]
        if spent or seconds is None or seconds >= self._spec.budget_seconds:
            return End(RunStatus.BUDGET, f"the training time was spent: {seconds or 0.0:.1f} s", details)
        return End(RunStatus.FINISHED, "the method was done", details)

    def _with_details(self, end: End) -> End:
        """The end of a run with what is known of it here."""
        evaluator = self._evaluator
        last = {"training_seconds": evaluator.last_point.get("elapsed")}
        last["peak_memory_mb"] = evaluator.last_point.get("peak_memory_mb")
        details = {
            **last,
            "points": evaluator.points,
            "evaluation_seconds": evaluator.evaluation_seconds,
            "wall_seconds": self._now() - self._started,
            **end.details,
        }
        if evaluator.lost_seconds:
            details["clock_disagreement_seconds"] = evaluator.lost_seconds
        return End(end.status, end.reason, details)

    def _beyond_limits(self) -> End | None:
        """How the run has to be ended, if it has gone too far."""
        hard_limit = self._spec.hard_limit_seconds
        if self._now() - self._started > hard_limit:
            return End(RunStatus.KILLED, f"the hard limit of {hard_limit:g} s of wall-clock time has passed")
        limit = self._spec.memory_limit or MACHINE_SHARE * psutil.virtual_memory().total
        used = _memory_above(self._supervisor.pid, limit)
        if used is not None:
            reason = f"{used / 1e6:.0f} MB resident, the limit is {limit / 1e6:.0f} MB"
            return End(RunStatus.OUT_OF_MEMORY, reason)
        return None

    def _last_words(self) -> str:
        """Why a process ended that sent no message about its end."""
        assert self._supervisor.stdout is not None
        try:
            status = json.loads(self._supervisor.stdout.read())["exit_status"]
        except (ValueError, KeyError, TypeError):
            return "the process that supervises the run was ended"
        if status == -9:
            return "ended by signal 9 from outside: perhaps the system ran out of memory"
        log = self._folder.log_tail()
        return f"exit status {status}{': ' + log[-1] if log else ''}"

    def _stop(self) -> None:
        assert self._supervisor.stdin is not None
        self._supervisor.stdin.close()  # tells it to end everything
        try:
            self._supervisor.wait(WAIT_FOR_END)
        except subprocess.TimeoutExpired:
            self._supervisor.kill()
            self._supervisor.wait()


def _memory_above(pid: int, limit: float) -> int | None:
    """Bytes that the descendants of a process use together, if that is more than the limit.

    Pages that several of them share count once: a proportional share for each (PSS). That takes the system a while to
    compute, so it is only asked for where the simple sum is above the limit.
    """
    with suppress(psutil.Error):
        processes = psutil.Process(pid).children(recursive=True)
        for memory in (_resident, _proportional):
            used = sum(memory(process) for process in processes)
            if used <= limit:
                return None
        return used
    return None


def _resident(process: psutil.Process) -> int:
    try:
        return int(process.memory_info().rss)
    except psutil.Error:  # it has just ended
        return 0


def _proportional(process: psutil.Process) -> int:
    try:
        memory = process.memory_full_info()
        return int(getattr(memory, "pss", memory.rss))  # only Linux has it
    except psutil.Error:
        return _resident(process)
