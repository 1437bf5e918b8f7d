"""What is shown while fitting."""

from __future__ import annotations

import io
import re
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest
from rich.console import Console

from nearexact import SGPRegressor
from nearexact.gp import Training
from nearexact.kernels import SquaredExponential
from nearexact.progress import ShownTime, TighteningDisplay, progress_display, tightening_display
from tests.problems import regression


def test_every_m_is_a_line_with_its_bounds() -> None:
    screen = io.StringIO()
    X, y = regression(100)
    with progress_display(True, ShownTime("1m", 5.0), Console(file=screen, force_terminal=True, width=120)) as display:
        training = Training(
            SquaredExponential(),
            X,
            y,
            seed=0,
            max_inducing=50,
            on_step=display.step,
            on_stage=lambda stage, _: display.stage(stage),
        )
        training.run()
    last = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen.getvalue()).split("seconds of 1m")[-1]
    lines = [line.split() for line in last.splitlines() if line.strip()]
    assert [int(line[0]) for line in lines] == [10, 20, 50]
    assert [line[1] for line in lines] == [f"{stage.elbo:.1f}" for stage in training.history]
    assert [line[2] for line in lines] == [f"{stage.upper_bound:.1f}" for stage in training.history]
    assert [line[3] for line in lines] == [f"{stage.gap_per_point:.4f}" for stage in training.history]
    assert [line[-1] for line in lines] == [f"{5.0 + stage.elapsed:.1f}" for stage in training.history]


def test_only_on_request(capfd: pytest.CaptureFixture[str]) -> None:
    X, y = regression(40)
    SGPRegressor(random_state=0).fit(X, y)
    assert capfd.readouterr() == ("", "")
    SGPRegressor(random_state=0, progress=True).fit(X, y)
    assert "gap per point" in capfd.readouterr().out


@pytest.mark.parametrize("display", [progress_display, tightening_display])
def test_logs_go_on_in_a_new_line(display: Callable[..., AbstractContextManager[Any]]) -> None:
    log = io.StringIO()
    with display(True, ShownTime(None), Console(file=log)) as shown:
        if isinstance(shown, TighteningDisplay):
            shown.share(0.5)
    assert log.getvalue().strip()
    assert log.getvalue().endswith("\n")


def test_a_fit_goes_on_when_nobody_reads_its_display() -> None:
    program = [
        "import os, numpy as np",
        "from nearexact import SGPRegressor",
        "reader, writer = os.pipe()",
        "os.close(reader)",
        "os.dup2(writer, 1)",  # standard output that nobody reads
        "X = np.linspace(0.0, 1.0, 40)[:, None]",
        "model = SGPRegressor(random_state=0, progress=True).fit(X, np.sin(9.0 * X[:, 0]))",
        "os.write(2, model.certificate_.verdict.encode())",
    ]
    result = subprocess.run([sys.executable, "-c", "\n".join(program)], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (0, "certified")
