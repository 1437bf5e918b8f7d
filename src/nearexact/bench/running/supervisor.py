"""Keeps the processes of one run together: `python supervisor.py <log> <inherited fds> <command of the runner>`.

Stands between the sweep and the runner. Whatever the runner starts, in whatever group or session, is a descendant of
this process and ends with the run; all of them end when the sweep closes this process's standard input, or dies. What
they print goes into a log of limited size. How the runner ended is printed as JSON.

A script of its own, without imports from this package: those would take seconds and hundreds of MB.
"""

from __future__ import annotations

import ctypes
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil

LOOK_AGAIN_SECONDS = 0.05
KILLING_SECONDS = 10.0  # at most: a process may be stuck in the kernel
LONGEST_LOG = 2**20  # bytes
LOG_TAIL = 2**16  # bytes of the end that are kept of what is longer
PIPE_BYTES = 2**16
PR_SET_CHILD_SUBREAPER = 36


class BoundedLog:
    """A file that keeps the beginning and the end of what is written to it."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("ab", buffering=0)
        self._room = max(LONGEST_LOG - path.stat().st_size, 0)
        self._tail, self._cut = b"", 0

    def write(self, text: bytes) -> None:
        """Add to the file while there is room, then remember the end."""
        with suppress(OSError):  # a full disk: the run matters more than its log
            self._file.write(text[: self._room])
        rest = text[self._room :]
        self._room -= len(text) - len(rest)
        self._tail += rest
        self._cut += max(len(self._tail) - LOG_TAIL, 0)
        self._tail = self._tail[-LOG_TAIL:]

    def close(self) -> None:
        """Write the end, and how much is missing before it."""
        with suppress(OSError):
            if self._cut:
                self._file.write(b"\n[nearexact: %d bytes are cut here]\n" % self._cut)
            self._file.write(self._tail)
        self._file.close()


def main() -> None:
    """Run the command until it ends or the sweep does."""
    log, fds, command = BoundedLog(Path(sys.argv[1])), [int(fd) for fd in sys.argv[2].split(",")], sys.argv[3:]
    if sys.platform == "linux":  # elsewhere, a process whose parent has ended is not found
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    runner = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        pass_fds=fds,
        start_new_session=True,
    )
    for fd in fds:
        os.close(fd)
    assert runner.stdout is not None
    output = runner.stdout.fileno()
    _wait(runner, output, log)
    _end_descendants(runner)
    os.set_blocking(output, False)
    with suppress(BlockingIOError):
        while text := os.read(output, PIPE_BYTES):
            log.write(text)
    log.close()
    with suppress(BrokenPipeError):  # where nobody is left who wants to know
        os.write(1, json.dumps({"exit_status": runner.returncode}).encode())


def _wait(runner: subprocess.Popen[bytes], output: int, log: BoundedLog) -> None:
    """Log what is printed until the runner has ended or standard input is closed."""
    with selectors.DefaultSelector() as selector:
        selector.register(0, selectors.EVENT_READ)
        selector.register(output, selectors.EVENT_READ)
        while runner.poll() is None:
            for key, _ in selector.select(LOOK_AGAIN_SECONDS):
                text = os.read(key.fd, PIPE_BYTES)
                if key.fd == output:
                    log.write(text)
                    if not text:
                        selector.unregister(output)
                elif not text:
                    return


def _end_descendants(runner: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + KILLING_SECONDS
    _kill(psutil.Process().children(recursive=True))
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(runner.pid, signal.SIGKILL)  # for systems that have no subreapers
    with suppress(subprocess.TimeoutExpired):
        runner.wait(KILLING_SECONDS)
    while time.monotonic() < deadline and (descendants := psutil.Process().children(recursive=True)):
        _kill(descendants)
        with suppress(ChildProcessError):  # processes whose parent has ended are now children of this one
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(0.01)


def _kill(processes: list[psutil.Process]) -> None:
    for process in processes:
        with suppress(psutil.Error):
            process.kill()


if __name__ == "__main__":
    main()
