"""Figures of a fit against other ways to get them."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.stats import norm
from sklearn.dummy import DummyRegressor
from sklearn.linear_model import LinearRegression

from nearexact.bench.metrics import nlpd, rmse
from nearexact.kernels import ArcCosine, Kernel, Linear, SquaredExponential
from nearexact.tables import Fitted, fit
from nearexact.tables.columns import Column
from nearexact.tables.recipe import Recipe
from nearexact.tables.summary import Evaluation, relevances
from nearexact.tables.terminal import printable, summary_lines


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> Fitted:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 3))
    y = 100.0 * np.sin(2.0 * X[:, 0]) + 20.0 * X[:, 1] + 10.0 * rng.normal(size=200)
    path = tmp_path_factory.mktemp("summary") / "data.parquet"
    pd.DataFrame({"wavy": X[:, 0], "straight": X[:, 1], "none": X[:, 2], "y": y}).to_parquet(path)
    return fit(path, "y", kernel="se", time_limit="20s", test_fraction=0.3)


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


def test_relevance_and_noise_are_what_the_data_were_made_with(fitted: Fitted) -> None:
    assert [entry.column for entry in fitted.summary.relevance] == ["wavy", "straight", "none"]
    assert fitted.summary.relevance[0].relevance == 1.0
    assert fitted.summary.relevance[2].relevance < 0.1
    assert fitted.summary.noise_std == pytest.approx(10.0, rel=0.25)


def test_a_summary_in_words_and_in_json(fitted: Fitted) -> None:
    words = fitted.summary.to_json()
    assert json.loads(json.dumps(words, allow_nan=False)) == words
    text = "\n".join(summary_lines(words))
    assert str(fitted.summary) == text
    for part in ("RMSE", "nearexact", "linear", "mean", "coverage", fitted.summary.verdict, "wavy 1.00", "repaired"):
        assert part in text
    assert fitted.model.metadata_["recipe"]["summary"] == words


def test_coverage_of_a_perfect_predictor() -> None:
    y = np.random.default_rng(0).normal(size=100_000)
    evaluation = Evaluation(y, np.zeros_like(y), np.ones_like(y), tested=True)
    assert evaluation.coverage([0.5, 0.9]) == pytest.approx([0.5, 0.9], abs=0.01)
    edge = norm.ppf(0.95)
    assert evaluation.coverage([0.9])[0] == np.mean(np.abs(y) <= edge)


@pytest.mark.parametrize(
    "kernel",
    [
        SquaredExponential([0.5, 2.0, 1e3]),
        ArcCosine(0, [5.0, 1.0, 1e-5]),
        Linear([3.0, 1.0, 1e-5]),
        SquaredExponential([0.5, 3.0, 1e3]) + Linear([1e-5, 0.5, 1e-5]),
    ],
    ids=str,
)
def test_relevance_orders_columns_for_every_kernel(kernel: Kernel) -> None:
    recipe = Recipe("y", tuple(Column(name, "number") for name in "abc"))
    rows = np.random.default_rng(0).normal(size=(60, 3))
    found = relevances(kernel, rows, recipe)
    assert [entry.column for entry in found] == ["a", "b", "c"]
    assert found[0].relevance == 1.0
    assert found[2].relevance < 0.1
    assert all(entry.lengthscale is None or math.isfinite(entry.lengthscale) for entry in found)


def test_a_category_counts_as_one_column() -> None:
    recipe = Recipe("y", (Column("x", "number"), Column("k", "category", ("a", "b", "c"))))
    first, second = relevances(SquaredExponential([1.0, 10.0, 0.5, 10.0]), np.zeros((1, 4)), recipe)
    assert (first.column, first.lengthscale) == ("k", 0.5)
    ratio = math.sqrt((1.0 - math.exp(-0.5)) / (1.0 - math.exp(-2.0)))  # of 1 − k over a standard deviation
    assert (second.column, second.relevance) == ("x", pytest.approx(ratio))


def test_a_tiny_lengthscale_is_no_more_relevant_than_the_signal_allows() -> None:
    recipe = Recipe("y", (Column("x", "number"), Column("k", "boolean")))
    kernel = SquaredExponential([1.0, 1e-5]) + Linear([9.0, 1e-5])
    assert [entry.column for entry in relevances(kernel, np.zeros((1, 2)), recipe)] == ["x", "k"]


def test_names_cannot_steer_a_terminal() -> None:
    assert printable("a\nb\x1b[31mé") == "a\\nb\\x1b[31mé"


def test_fitting_again_forgets_the_recipe(fitted: Fitted, tmp_path: Path) -> None:
    import nearexact

    fitted.save(tmp_path / "model.nx")
    loaded = nearexact.load(tmp_path / "model.nx")
    assert loaded.metadata_ == fitted.model.metadata_
    loaded.save(tmp_path / "again.nx")
    assert (tmp_path / "again.nx").read_bytes() == (tmp_path / "model.nx").read_bytes()
    loaded.fit(np.random.default_rng(0).normal(size=(20, 2)), np.arange(20.0))
    assert loaded.metadata_ == {}
