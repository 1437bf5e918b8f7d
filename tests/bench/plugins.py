"""Methods for the tests, good and bad; loaded by the harness as `plugins.py:Class`."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from typing import Any

import numpy as np


def constant(value: float = 0.0, variance: float = 1.0) -> Any:
    return lambda X: (np.full(len(X), value), np.full(len(X), variance))


class Steps:
    """Takes steps of a given length, and reports each; milestones are deterministic."""

    name = "steps"

    def __init__(self, seconds: float = 0.01, steps: int = 20) -> None:
        self.seconds, self.steps = seconds, steps

    def run(self, task: Any, report: Any) -> None:
        rng = np.random.default_rng(task.seed)
        for step in range(self.steps):
            time.sleep(self.seconds)
            report(constant(rng.normal()), elbo=-float(step), m=step, milestone=step % 5 == 4, flops=1.0, step=step)


class Silent:
    """Never reports."""

    name = "silent"

    def __init__(self, **_: object) -> None:
        pass

    def run(self, task: Any, report: Any) -> None:
        time.sleep(3600.0)


class Stubborn:
    """Swallows whatever it is told."""

    name = "stubborn"

    def run(self, task: Any, report: Any) -> None:
        while True:
            with contextlib.suppress(BaseException):
                report(constant(), milestone=True)
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

    def run(self, task: Any, report: Any) -> None:
        time.sleep(4.0)
        report(constant(), milestone=True)


class Exits:
    name = "exits"

    def run(self, task: Any, report: Any) -> None:
        raise SystemExit(75)


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
