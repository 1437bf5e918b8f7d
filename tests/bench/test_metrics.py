"""Metrics against SciPy, and that the trace has them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy import integrate, stats

from nearexact import bench
from nearexact.bench import metrics
from nearexact.bench.analysis.losses import CRPS
from nearexact.bench.running.clock import TrainingClock
from nearexact.bench.running.evaluator import Evaluator
from nearexact.bench.running.recorder import Recorder
from nearexact.bench.store import RunFolder, RunSpec, RunStatus


@pytest.mark.parametrize("level", metrics.COVERAGE_LEVELS)
def test_coverage_is_the_share_within_scipys_central_interval(level: int) -> None:
    rng = np.random.default_rng(level)
    mean, variance, y = rng.normal(size=500), rng.uniform(0.1, 3.0, size=500), rng.normal(size=500)
    low, high = stats.norm.interval(level / 100.0, mean, np.sqrt(variance))
    assert metrics.coverage(y, mean, variance, level) == np.mean((low <= y) & (y <= high))


def test_a_calibrated_prediction_covers_what_it_says() -> None:
    y = np.random.default_rng(0).normal(size=200_000)
    for level in metrics.COVERAGE_LEVELS:
        share = metrics.coverage(y, np.zeros_like(y), np.ones_like(y), level)
        assert share == pytest.approx(level / 100.0, abs=0.004)


def test_nlpd_is_scipys_log_density() -> None:
    rng = np.random.default_rng(1)
    mean, variance, y = rng.normal(size=50), rng.uniform(0.1, 3.0, size=50), rng.normal(size=50)
    assert metrics.nlpd(y, mean, variance) == pytest.approx(-stats.norm.logpdf(y, mean, np.sqrt(variance)).mean())


def test_crps_is_the_integral_of_the_squared_distance_of_distribution_functions() -> None:
    """Of what is predicted and of the value that came, by quadrature."""
    mean, std, y = np.array([0.0, 1.0, -2.0]), np.array([1.0, 0.2, 3.0]), np.array([0.5, 0.1, -2.0])

    def integral(value: float, *distribution: float) -> float:
        below, _ = integrate.quad(lambda t: stats.norm.cdf(t, *distribution) ** 2, -np.inf, value)
        above, _ = integrate.quad(lambda t: stats.norm.sf(t, *distribution) ** 2, value, np.inf)
        return float(below + above)

    expected = [integral(*row) for row in zip(y, mean, std, strict=True)]
    assert metrics.crps(y, mean, std**2) == pytest.approx(np.mean(expected))


def test_the_constant_predictor_has_the_crps_that_scales_start_from() -> None:
    y = np.random.default_rng(0).normal(size=200_000)
    assert metrics.crps(y, np.zeros_like(y), np.ones_like(y)) == pytest.approx(CRPS.constant(None), abs=0.003)


def test_every_evaluation_records_coverage(tmp_path: Path) -> None:
    spec = RunSpec("a", "b", 0, 60.0, 100.0)
    folder = RunFolder(spec.folder(tmp_path))
    folder.prepare(spec)
    y = np.array([0.0, 0.5, 1.0, 1.8])
    report = Recorder(Evaluator(folder, y, 60.0), np.zeros((4, 2)), 60.0, TrainingClock())
    report(lambda X: (np.zeros(len(X)), np.ones(len(X))), milestone=True)
    report(lambda X: (np.full(len(X), np.nan), np.ones(len(X))), milestone=True)
    folder.update(status=RunStatus.FINISHED)
    frame = bench.load(tmp_path)
    assert frame["crps"][0] == pytest.approx(metrics.crps(y, np.zeros(4), np.ones(4)))
    assert np.isnan(frame["crps"][1])
    assert frame["coverage_50"].tolist() == [0.5, 0.0]  # within 0.67 standard deviations
    assert frame["coverage_90"].tolist() == [0.75, 0.0]  # 1.64
    assert frame["coverage_95"].tolist() == [1.0, 0.0]  # 1.96; what is not a number covers nothing
