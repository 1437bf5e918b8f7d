"""Threads that wait must not make a fit many times slower where other programs compute, too."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

EVALUATION = """
import time
import nearexact.gp
import numpy as np
X = np.random.default_rng(0).normal(size=(256, 4))
objective = nearexact.gp.ExactObjective(nearexact.kernels.SquaredExponential(), 0.1, X, np.sin(X[:, 0]))
objective(objective.theta0)
started = time.perf_counter()
for _ in range(5):
    objective(objective.theta0)
print(time.perf_counter() - started)
"""


def printed(script: str, **settings: str) -> str:
    """By a new process, whose environment says nothing else about threads."""
    others = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_"))}
    done = subprocess.run(
        [sys.executable, "-c", script], env={**others, **settings}, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


SHOWN = "import os, nearexact; print(os.environ.get('GOMP_SPINCOUNT'))"


def test_threads_give_up_their_core_unless_the_environment_says_how_they_wait() -> None:
    assert printed(SHOWN) == "1000"
    assert printed(SHOWN, GOMP_SPINCOUNT="7") == "7"
    assert printed(SHOWN, OMP_WAIT_POLICY="active") == "None"


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="GNU's OpenMP is torch's on Linux")
def test_a_busy_machine_slows_an_evaluation_down_by_little_more_than_its_share() -> None:
    cores = os.cpu_count() or 1
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(cores)]
    try:
        one, all_of_them = (float(printed(EVALUATION, OMP_NUM_THREADS=threads)) for threads in ("1", str(cores)))
    finally:
        for program in busy:
            program.kill()
            program.wait()
    assert all_of_them < 10.0 * one  # with threads that spin it is 50 to 100 times as long, on two cores
