"""Scores and coverage against other ways to get them."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import norm, ttest_rel, wilcoxon
from sklearn.dummy import DummyRegressor
from sklearn.linear_model import LinearRegression

from nearexact.bench.metrics import nlpd, rmse
from nearexact.tables import Fitted
from nearexact.tables.evaluation import Evaluation, _leads, scores


def test_scores_are_those_of_other_libraries(fitted: Fitted) -> None:
    table = fitted.prepared
    found = {score.predictor: score for score in fitted.summary.scores}
    mean, std = fitted.model.predict(table.recipe.frame(table.test), return_std=True)
    assert found["nearexact"].rmse == pytest.approx(rmse(table.y_test, mean))
    assert found["nearexact"].nlpd == pytest.approx(nlpd(table.y_test, mean, std**2))
    density = fitted.model.log_predictive_density(table.recipe.frame(table.test), table.y_test)
    assert found["nearexact"].nlpd == pytest.approx(-density.mean())
    for name, other in (("linear", LinearRegression()), ("mean", DummyRegressor())):
        other.fit(table.train, table.y_train)
        variance = np.full(len(table.y_test), np.mean((table.y_train - other.predict(table.train)) ** 2))
        predicted = other.predict(table.test)
        assert found[name].rmse == pytest.approx(rmse(table.y_test, predicted))
        assert found[name].nlpd == pytest.approx(nlpd(table.y_test, predicted, variance))
    assert found["nearexact"].rmse < found["linear"].rmse < found["mean"].rmse


def test_scores_of_huge_targets_are_those_of_small_ones_in_other_units(fitted: Fitted) -> None:
    """The squares of such targets overflow."""
    assert fitted.evaluation is not None
    unit, prepared, evaluation = 1e200, fitted.prepared, fitted.evaluation
    large = replace(prepared, y_train=unit * prepared.y_train, y_test=unit * prepared.y_test)
    shown = replace(evaluation, y=unit * evaluation.y, mean=unit * evaluation.mean, std=unit * evaluation.std)
    for small, other in zip(scores(prepared, evaluation), scores(large, shown), strict=True):
        assert other.rmse == pytest.approx(unit * small.rmse)
        assert other.nlpd == pytest.approx(np.log(unit) + small.nlpd)


def test_coverage_of_a_perfect_predictor() -> None:
    y = np.random.default_rng(0).normal(size=100_000)
    evaluation = Evaluation(y, np.zeros_like(y), np.ones_like(y), tested=True)
    assert evaluation.coverage([0.5, 0.9]) == pytest.approx([0.5, 0.9], abs=0.01)
    edge = norm.ppf(0.95)
    assert evaluation.coverage([0.9])[0] == np.mean(np.abs(y) <= edge)


def test_tables_do_not_need_what_only_the_benchmark_needs() -> None:
    """They take their metrics from there."""
    program = """
import sys
for name in ("gpytorch", "matplotlib", "pooch", "psutil", "dask"):
    sys.modules[name] = None
import nearexact.tables
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_leads_are_the_statistics_of_paired_tests() -> None:
    random = np.random.default_rng(0)
    squares, others = random.standard_normal((2, 90)) ** 2
    by_mean, by_rank = _leads(squares, others)
    assert by_mean == pytest.approx(ttest_rel(others, squares).statistic)
    assert by_rank == pytest.approx(wilcoxon(others, squares, method="approx", alternative="greater").zstatistic)
    assert _leads(squares, squares) == (None, None)
