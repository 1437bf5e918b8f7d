"""Workers that die at any moment of a fit, and a scheduler that does."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from nearexact import SGPRegressor
from nearexact.kernels import Matern32
from tests.problems import regression

da = pytest.importorskip("dask.array", reason="Dask is not installed")
distributed = pytest.importorskip("distributed", reason="Dask is not installed")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("small_blocks"),
    pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning"),
]

KERNEL = Matern32(2.0).with_bounds(variance="fixed")
X, Y = regression(100)
KILLS = 10


def model() -> SGPRegressor:
    """A short fit, but with two stages."""
    return SGPRegressor(KERNEL, max_inducing=20, procedure="paper", time_limit=None, random_state=0)


def fit(client: Any, **options: Any) -> SGPRegressor:
    return model().fit(da.from_array(X, chunks=(50, 3)), da.from_array(Y, chunks=50), client=client, **options)


def test_workers_killed_at_ten_random_moments_change_no_digit(client: Any) -> None:
    expected, kills, fits, over = fit(client), [], 0, threading.Event()
    moments = random.Random(0)

    def kill() -> None:
        while not over.wait(moments.uniform(1.0, 5.0)) and len(kills) < KILLS:
            processes = list(client.run(os.getpid, on_error="ignore").values())
            if processes:
                os.kill(moments.choice(processes), signal.SIGKILL)
                kills.append(time.time())

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        while len(kills) < KILLS:
            found = fit(client)
            fits += 1
            assert found.elbo_ == expected.elbo_
            assert (found.inducing_points_ == expected.inducing_points_).all()
    finally:
        over.set()
        killer.join()
    assert fits >= 1


def test_a_scheduler_that_dies_gives_an_error_within_a_minute_and_the_fit_goes_on_elsewhere(tmp_path: Path) -> None:
    address, state = tmp_path / "scheduler.json", tmp_path / "state.json"
    scheduler, worker = (
        subprocess.Popen(
            [sys.executable, "-m", f"distributed.cli.dask_{what}", "--scheduler-file", str(address), *more]
        )
        for what, more in (("scheduler", ["--port", "0"]), ("worker", ["--nthreads", "1"]))
    )
    died: list[float] = []

    def kill_after_first_state() -> None:
        while not state.exists():
            time.sleep(0.05)
        time.sleep(0.2)
        scheduler.kill()
        died.append(time.monotonic())

    try:
        client = distributed.Client(scheduler_file=str(address), set_as_default=False)
        killer = threading.Thread(target=kill_after_first_state)
        killer.start()
        with pytest.raises(ConnectionError, match="scheduler is gone"):
            fit(client, resume=state)
        killer.join()
        assert time.monotonic() - died[0] < 60.0
        client.close(timeout=1)
    finally:
        for process in (scheduler, worker):
            process.kill()
            process.wait()
    assert json.loads(state.read_text())["history"]
    resumed, whole = model().fit(X, Y, resume=state), model().fit(X, Y)
    assert resumed.elbo_ == pytest.approx(whole.elbo_, rel=1e-5)
    assert [stage.m for stage in resumed.history_] == [stage.m for stage in whole.history_]
