"""Methods for the tests, good and bad; loaded by the harness as `plugins.py:Class`."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from typing import Any

import numpy as np


def constant(value: float = 0.0, variance: float = 1.0) -> Any:
    return lambda X: (np.full(len(X), value), np.full(len(X), variance))


class Steps:
    """Takes steps of a given length, and reports each; milestones are deterministic."""

    name = "steps"

    def __init__(self, seconds: float = 0.01, steps: int = 20, milestones: int = 5) -> None:
        self.seconds, self.steps, self.milestones = seconds, steps, milestones  # one milestone in this many steps

    def run(self, task: Any, report: Any) -> None:
        rng = np.random.default_rng(task.seed)
        for step in range(self.steps):
            time.sleep(self.seconds)
            milestone = step % self.milestones == self.milestones - 1
            report(constant(rng.normal()), elbo=-float(step), m=step, milestone=milestone, flops=1.0, step=step)


class Silent:
    """Never reports."""

    name = "silent"

    def __init__(self, **_: object) -> None:
        pass

    def run(self, task: Any, report: Any) -> None:
        time.sleep(3600.0)


class Stubborn:
    """Ignores that its budget is spent, whatever is raised, and counts how often."""

    name = "stubborn"

    def __init__(self, calls: str) -> None:
        self.calls = calls  # a file that grows by a byte each time

    def run(self, task: Any, report: Any) -> None:
        while True:
            try:
                report(constant(), milestone=True)
            except BaseException:
                with open(self.calls, "a") as file:
                    file.write("x")
            time.sleep(0.02)


class Hungry:
    """Takes more and more memory."""

    name = "hungry"

    def run(self, task: Any, report: Any) -> None:
        report(constant(), milestone=True)
        held = []
        while True:
            held.append(np.ones(2_000_000))
            time.sleep(0.01)


class Broken:
    """Fails after its first report."""

    name = "broken"

    def run(self, task: Any, report: Any) -> None:
        report(constant(), milestone=True)
        raise ZeroDivisionError("what a pity")


class NoMemory:
    name = "nomemory"

    def run(self, task: Any, report: Any) -> None:
        raise MemoryError("too much")


class Dies:
    name = "dies"

    def run(self, task: Any, report: Any) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


class NoNoise:
    """Leaves the noise out of its variances."""

    name = "nonoise"

    def run(self, task: Any, report: Any) -> None:
        report(constant(variance=1e-6), milestone=True)


class Random:
    """Takes no notice of the seed."""

    name = "random"

    def run(self, task: Any, report: Any) -> None:
        report(constant(np.random.default_rng().uniform(-0.5, 0.5)), milestone=True)


class Slow:
    """One long step."""

    name = "slow"

    def __init__(self, seconds: float = 4.0) -> None:
        self.seconds = seconds

    def run(self, task: Any, report: Any) -> None:
        time.sleep(self.seconds)
        report(constant(), milestone=True)


class HidesWork:
    """Trains when it is asked for predictions."""

    name = "hideswork"

    def run(self, task: Any, report: Any) -> None:
        def predict(X: np.ndarray) -> Any:
            time.sleep(2.5 if len(X) == 1 else 0.0)
            return constant()(X)

        report(predict, milestone=True)


class Exits:
    name = "exits"

    def run(self, task: Any, report: Any) -> None:
        raise SystemExit(75)


class ExitsAtOnce:
    """Ends its process with a status of its choice."""

    name = "exitsatonce"

    def __init__(self, status: int) -> None:
        self.status = status

    def run(self, task: Any, report: Any) -> None:
        report(constant(), milestone=True)
        os._exit(self.status)


class Interrupts:
    name = "interrupts"

    def run(self, task: Any, report: Any) -> None:
        raise KeyboardInterrupt


class LeavesProcesses:
    """Starts processes in sessions of their own, one with this process as its parent and one without."""

    name = "leavesprocesses"

    def __init__(self, pids: str, seconds: float = 0.0) -> None:
        self.pids, self.seconds = pids, seconds

    def run(self, task: Any, report: Any) -> None:
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                self._sleep()
            self._sleep()
        if (between := os.fork()) == 0:
            if os.fork() == 0:
                os.setsid()
                self._sleep()
            os._exit(0)
        os.waitpid(between, 0)
        while len(os.listdir(self.pids)) < 3:
            time.sleep(0.01)
        report(constant(), milestone=True)
        time.sleep(self.seconds)

    def _sleep(self) -> None:
        with open(os.path.join(self.pids, str(os.getpid())), "w"):
            time.sleep(600.0)


class Forks:
    """Many processes that share one large array."""

    name = "forks"

    def run(self, task: Any, report: Any) -> None:
        shared = np.ones(50_000_000)  # 400 MB
        children = []
        for _ in range(6):
            pid = os.fork()
            if pid == 0:
                time.sleep(1.0)
                os._exit(0)
            children.append(pid)
        for pid in children:
            os.waitpid(pid, 0)
        report(constant(shared[0] - 1.0), milestone=True)


class Talkative:
    """Prints 5 MB, and some last words."""

    name = "talkative"

    def run(self, task: Any, report: Any) -> None:
        for number in range(50_000):
            print(f"{number:<100}")
        print("the end", flush=True)
        os._exit(3)


class Huge:
    """Has large attributes and a large error."""

    name = "huge"

    def __init__(self) -> None:
        self.numbers = list(range(2_000_000))
        self.text = "x" * 10_000_000
        self.nested: list[Any] = []
        for _ in range(100_000):
            self.nested = [self.nested]

    def run(self, task: Any, report: Any) -> None:
        raise ValueError("y" * 10_000_000)


class TooMuchInformation:
    name = "toomuchinformation"

    def run(self, task: Any, report: Any) -> None:
        report(constant(), milestone=True, numbers=list(range(1_000_000)))


class Peeks:
    """Looks for the test targets where they can be reached: in its callers, and in what they hold."""

    name = "peeks"

    def run(self, task: Any, report: Any) -> None:
        def predict(X: np.ndarray) -> Any:
            frame, held = sys._getframe(), [report, task]
            while frame is not None:
                held += frame.f_locals.values()
                frame = frame.f_back  # type: ignore[assignment]
            for _ in range(3):
                held += [part for one in held if hasattr(one, "__dict__") for part in vars(one).values()]
            arrays = [one for one in held if isinstance(one, np.ndarray) and one.shape == (task.n_test,)]
            return (arrays[0], np.full(len(X), 1e-4)) if arrays and len(X) > 1 else constant()(X)

        report(predict, milestone=True)


class StopsClock:
    """Turns the clock of its report back, and trains for two seconds."""

    name = "stopsclock"

    def run(self, task: Any, report: Any) -> None:
        for value in vars(report).values():
            for name in ("now", "_now"):
                if hasattr(value, name):
                    setattr(value, name, lambda: 0.0)
                    value._started = 0.0
        time.sleep(2.0)
        report(constant(), milestone=True)


class Babbles:
    """Writes into every file that it has inherited."""

    name = "babbles"

    def run(self, task: Any, report: Any) -> None:
        for fd in range(3, 50):
            with contextlib.suppress(OSError):
                os.write(fd, b"\xff" * 100)
        time.sleep(600.0)


class LeavesThread:
    """Goes without its thread."""

    name = "leavesthread"

    def run(self, task: Any, report: Any) -> None:
        threading.Thread(target=time.sleep, args=(600.0,)).start()
        report(constant(), milestone=True)


class WrongShape:
    name = "wrongshape"

    def run(self, task: Any, report: Any) -> None:
        report(lambda X: (np.zeros((len(X), 1)), np.ones(len(X))), milestone=True)


class Exploding:
    """Predicts what is not a number."""

    name = "exploding"

    def run(self, task: Any, report: Any) -> None:
        report(constant(float("nan")), elbo=float("nan"), milestone=True)
        report(constant(1e200, -1.0), elbo=float("-inf"), milestone=True)


class KillsWatcher:
    """Ends the process that watches over its own and its supervisor's."""

    name = "killswatcher"

    def run(self, task: Any, report: Any) -> None:
        import psutil

        report(constant(), milestone=True)
        psutil.Process(os.getppid()).parent().kill()
        time.sleep(600.0)
