"""The training clock and the recorder: evaluation is free, budgets are not."""

from __future__ import annotations

import resource
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nearexact.bench.protocol import BudgetExhausted
from nearexact.bench.running.clock import TrainingClock
from nearexact.bench.running.evaluator import Evaluator
from nearexact.bench.running.recorder import Recorder
from nearexact.bench.store import RunFolder
from tests.bench.plugins import constant


class FakeTime:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def recorder(folder: Path, now: FakeTime, budget: float = 10.0, every: int | None = None) -> Recorder:
    X, y = np.zeros((4, 2)), np.array([1.0, -1.0, 1.0, -1.0])
    return Recorder(Evaluator(RunFolder(folder), y, budget, now), X, budget, TrainingClock(now), every)


def slow_prediction(now: FakeTime, seconds: float) -> Any:
    def predict(X: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        now.now += seconds
        return np.zeros(len(X)), np.ones(len(X))

    return predict


def test_pauses_do_not_count_however_they_are_nested() -> None:
    now = FakeTime()
    clock = TrainingClock(now)
    now.now += 1.0
    with clock.paused() as elapsed:
        assert elapsed == 1.0
        now.now += 50.0
        with clock.paused():
            now.now += 50.0
        assert clock.elapsed() == 1.0
    now.now += 2.0
    assert clock.elapsed() == 3.0


def test_the_device_is_synchronised_before_the_clock_stops_and_before_it_goes_on() -> None:
    now, pending = FakeTime(), [5.0]

    def synchronise() -> None:
        now.now += pending.pop() if pending else 0.0

    clock = TrainingClock(now, synchronise)
    with clock.paused() as elapsed:
        assert elapsed == 5.0  # work that was handed over counts
        pending.append(7.0)
    assert clock.elapsed() == 5.0  # and evaluation's does not


def test_evaluation_costs_no_training_time_and_no_budget(tmp_path: Path) -> None:
    now = FakeTime()
    report = recorder(tmp_path, now, budget=10.0)
    for _ in range(9):
        now.now += 1.0
        report(slow_prediction(now, 1000.0), milestone=True)
    points, problems = RunFolder(tmp_path).points()
    assert problems == []
    assert [point["elapsed"] for point in points] == [float(k) for k in range(1, 10)]
    now.now += 1.0
    with pytest.raises(BudgetExhausted):
        report(slow_prediction(now, 1000.0))
    assert len(RunFolder(tmp_path).points()[0]) == 10  # the last state is evaluated too


def test_nothing_is_recorded_after_the_budget(tmp_path: Path) -> None:
    now = FakeTime()
    report = recorder(tmp_path, now, budget=1.0)
    now.now += 2.0
    for _ in range(3):
        with pytest.raises(BudgetExhausted):
            report(constant(), milestone=True)
    assert len(RunFolder(tmp_path).points()[0]) == 1


def test_evaluations_are_spaced_by_the_logarithm_of_time(tmp_path: Path) -> None:
    now = FakeTime()
    report = recorder(tmp_path, now, budget=1e9)
    for _ in range(20_000):
        now.now += 0.05
        report(constant())
    times = np.array([point["elapsed"] for point in RunFolder(tmp_path).points()[0]])
    assert 0.1 <= times[0] <= 0.2
    assert 40 <= len(times) <= 70
    late = times[times > 10.0]
    assert (late[1:] / late[:-1]).max() < 1.2
    assert (late[1:] / late[:-1]).min() > 1.1


def elapsed_times(folder: Path) -> list[float]:
    return [point["elapsed"] for point in RunFolder(folder).points()[0]]


def test_evaluations_every_so_many_steps(tmp_path: Path) -> None:
    now = FakeTime()
    report = recorder(tmp_path, now, budget=100.0, every=3)
    for step in range(1, 11):
        now.now += 1.0
        report(slow_prediction(now, 50.0), milestone=step == 4)  # however long evaluation takes
    assert elapsed_times(tmp_path) == [3.0, 4.0, 6.0, 9.0]


@pytest.mark.parametrize("step", [0.05, 0.7, 2.9])
def test_there_is_a_point_close_to_the_end_of_the_budget(step: float, tmp_path: Path) -> None:
    now = FakeTime()
    report = recorder(tmp_path, now, budget=100.0)
    with suppress(BudgetExhausted):
        while True:
            now.now += step
            report(constant())
    *within, beyond = elapsed_times(tmp_path)
    assert beyond >= 100.0
    assert within[-1] == pytest.approx(step * (100.0 // step) if step > 2.0 else 98.5, abs=0.7)
    assert len(within) < 70  # and not all of those near the end


def test_figures_do_not_use_up_the_time_for_evaluations(tmp_path: Path) -> None:
    """As in itergp, whose exact likelihood may take longer than a step."""
    times = {}
    for name, figure_seconds in (("none", 0.0), ("some", 1.5), ("long", 40.0)):
        now = FakeTime()
        (tmp_path / name).mkdir()
        report = recorder(tmp_path / name, now, budget=1e9)

        def figure(now: FakeTime = now, seconds: float = figure_seconds) -> float:
            now.now += seconds
            return 1.0

        for _ in range(60):
            now.now += 1.0
            report(slow_prediction(now, 0.1), exact_lml=figure)
        times[name] = elapsed_times(tmp_path / name)
    assert times["none"] == times["some"]
    assert 1 <= len(times["long"]) < 4  # the hard limit counts them


def test_points_hold_what_was_reported(tmp_path: Path) -> None:
    now = FakeTime()
    report = recorder(tmp_path, now)
    now.now += 1.0
    numbers = {"elbo": np.float64(-3.5), "upper_bound": -1, "m": np.int64(7), "flops": 8.0}
    report(constant(0.0, 4.0), **numbers, milestone=True, note="hi")
    (point,) = RunFolder(tmp_path).points()[0]
    assert point["rmse"] == 1.0
    assert point["nlpd"] == pytest.approx(0.5 * np.log(2 * np.pi * 4.0) + 0.125)
    assert (point["elbo"], point["upper_bound"], point["m"], point["flops"]) == (-3.5, -1, 7, 8.0)
    assert point["info"] == {"note": "hi"}
    assert point["peak_memory_mb"] > 10.0
    assert point["predict_seconds"] >= 0.0
    with np.load(tmp_path / "predictions" / "0.npz") as saved:
        np.testing.assert_array_equal(saved["variance"], np.full(4, 4.0))


def test_predictions_of_a_wrong_shape_are_refused(tmp_path: Path) -> None:
    now = FakeTime()
    with pytest.raises(ValueError, match=r"predict must return a mean of shape \(4,\), got \(4, 1\)"):
        recorder(tmp_path, now)(lambda X: (np.zeros((4, 1)), np.ones(4)), milestone=True)


def test_a_full_disk_leaves_whole_lines(tmp_path: Path) -> None:
    now = FakeTime()
    report = recorder(tmp_path, now)
    now.now += 1.0
    report(constant(), milestone=False, note="x" * 100)
    before = (tmp_path / "trace.jsonl").read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 50, limits[1]))
    now.now += 1.0
    try:
        with pytest.raises(OSError, match="File too large"):
            report(constant(), note="y" * 100)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert (tmp_path / "trace.jsonl").read_bytes() == before


def test_a_clock_that_falls_behind_is_replaced_by_the_evaluators(tmp_path: Path) -> None:
    now, frozen = FakeTime(), FakeTime()
    evaluator = Evaluator(RunFolder(tmp_path), np.zeros(4), 10.0, now)
    report = Recorder(evaluator, np.zeros((4, 2)), 10.0, TrainingClock(frozen))
    now.now += 0.3
    report(constant(), milestone=True)  # a message that took a while
    assert evaluator.lost_seconds == 0.0
    now.now += 7.0
    report(slow_prediction(now, 2.0), milestone=True)
    assert [point["elapsed"] for point in RunFolder(tmp_path).points()[0]] == [0.0, pytest.approx(7.3)]
    assert evaluator.lost_seconds == pytest.approx(7.3)
    now.now += 3.0
    with pytest.raises(BudgetExhausted):  # by the evaluator's clock
        report(constant(), milestone=True)


def test_work_in_predict_is_recorded(tmp_path: Path) -> None:
    now = FakeTime()
    report = recorder(tmp_path, now)
    now.now += 1.0
    report(slow_prediction(now, 20.0), elbo=lambda: slow_prediction(now, 3.0)(np.zeros(1))[1][0], milestone=True)
    (point,) = RunFolder(tmp_path).points()[0]
    assert point["elapsed"] == 1.0
    assert point["evaluation_seconds"] == pytest.approx(43.0)  # the figure, the first prediction and the second
    assert point["wall_seconds"] == pytest.approx(44.0)
    assert (point["first_predict_seconds"], point["predict_seconds"]) == (20.0, 20.0)


def test_predictions_that_fail_do_not_stop_the_clocks(tmp_path: Path) -> None:
    now = FakeTime()
    report = recorder(tmp_path, now)

    def fails(X: np.ndarray) -> Any:
        now.now += 5.0
        raise ArithmeticError

    with pytest.raises(ArithmeticError):
        report(fails, milestone=True)
    now.now += 2.0
    report(constant(), milestone=True)
    (point,) = RunFolder(tmp_path).points()[0]
    assert (point["elapsed"], point["wall_seconds"]) == (2.0, pytest.approx(7.0))


@pytest.mark.slow  # it reads a real clock
@pytest.mark.parametrize("milestone", [False, True])
def test_a_report_costs_less_than_two_milliseconds_besides_evaluation(milestone: bool, tmp_path: Path) -> None:
    evaluator = Evaluator(RunFolder(tmp_path), np.zeros(4), 1e9)
    report = Recorder(evaluator, np.zeros((4, 2)), 1e9, TrainingClock())
    seconds = []
    for _ in range(200):
        started = time.perf_counter()
        report(constant(), elbo=1.0, m=3, milestone=milestone)  # its predictions take microseconds
        seconds.append(time.perf_counter() - started)
    assert np.median(seconds) < 2e-3


def test_what_is_put_off_is_computed_off_the_clock_and_only_if_recorded(tmp_path: Path) -> None:
    now = FakeTime()
    report = recorder(tmp_path, now)
    calls = []

    def work() -> float:
        calls.append(now.now)
        now.now += 1000.0
        return -7.0

    now.now += 0.01
    report(constant(), elbo=work, detail=work)  # not due
    assert calls == []
    now.now += 1.0
    report(constant(), elbo=work, detail=work)
    (point,) = RunFolder(tmp_path).points()[0]
    assert (point["elbo"], point["info"]["detail"], point["elapsed"]) == (-7.0, -7.0, pytest.approx(1.01))
    now.now += 0.5
    report(constant(), elbo=work, milestone=True)
    assert RunFolder(tmp_path).points()[0][-1]["elapsed"] == pytest.approx(1.51)


def test_evaluation_does_not_outlast_training(tmp_path: Path) -> None:
    now = FakeTime()
    report = recorder(tmp_path, now, budget=100.0)

    predict = slow_prediction(now, 0.25)  # twice in each evaluation
    for _ in range(30):
        now.now += 0.1
        report(predict)
    times = [point["elapsed"] for point in RunFolder(tmp_path).points()[0]]
    assert 2 <= len(times) <= 6  # 3 s of training, half a second for each; on time alone it would be over 20
    report(predict, milestone=True)
    assert len(RunFolder(tmp_path).points()[0]) == len(times) + 1


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux can forget a peak of memory")
def test_memory_for_the_record_is_not_counted(tmp_path: Path) -> None:
    now = FakeTime()
    report = recorder(tmp_path, now, budget=100.0)

    def diagnose() -> float:
        return float(np.ones(100_000_000 // 8 * 4).sum())  # 400 MB

    for _ in range(2):
        now.now += 1.0
        report(constant(), milestone=True, detail=diagnose)
    first, second = (point["peak_memory_mb"] for point in RunFolder(tmp_path).points()[0])
    assert second < first + 100.0
    used = np.ones(100_000_000 // 8 * 4)
    now.now += 1.0
    report(constant(used.mean() - 1.0), milestone=True)
    assert RunFolder(tmp_path).points()[0][-1]["peak_memory_mb"] > second + 200.0
