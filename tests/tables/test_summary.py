"""Figures of a fit against other ways to get them."""

from __future__ import annotations

import json
import warnings
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning

import nearexact
from nearexact.gp.safety import Repairs
from nearexact.kernels import ArcCosine, Kernel, Linear, Matern12, Periodic, SquaredExponential
from nearexact.model_header import read_header
from nearexact.tables import Fitted
from nearexact.tables.terminal import REPAIRS, kernel_text, model_facts, printable, summary_lines


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


def test_names_cannot_steer_a_terminal() -> None:
    assert printable("a\nb\x1b[31mé") == "a\\nb\\x1b[31mé"


def test_every_repair_that_is_counted_is_told() -> None:
    counted = {field.name for field in fields(Repairs)} - {"largest_jitter"}
    assert counted <= REPAIRS.keys()


def test_fitting_again_forgets_the_recipe(fitted: Fitted, tmp_path: Path) -> None:
    fitted.save(tmp_path / "model.nx")
    loaded = nearexact.load(tmp_path / "model.nx")
    assert loaded.metadata_ == fitted.model.metadata_
    loaded.save(tmp_path / "again.nx")
    assert (tmp_path / "again.nx").read_bytes() == (tmp_path / "model.nx").read_bytes()
    loaded.fit(np.random.default_rng(0).normal(size=(20, 2)), np.arange(20.0))
    assert loaded.metadata_ == {}


@pytest.mark.parametrize(
    "kernel",
    [
        SquaredExponential([0.5, 1234.5678], 2.0),
        ArcCosine(),
        ArcCosine(order=1) + Linear([1.0, 2.0]),
        (Matern12() + Linear()) * Periodic(),
    ],
    ids=repr,
)
def test_a_kernel_in_a_file_is_written_as_it_writes_itself(kernel: Kernel, tmp_path: Path) -> None:
    X = np.random.default_rng(0).normal(size=(10, 2))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model = nearexact.GPRegressor(kernel, method="cholesky", time_limit=0.001).fit(X, X[:, 0])
    model.save(tmp_path / "model.nx")
    header = read_header(tmp_path / "model.nx")
    assert model_facts(header)["kernel"] == repr(model.kernel_)
    lengthscales = {"name": "SquaredExponential", "values": {"lengthscales": [1.0] * 200, "variance": 1.0}}
    assert kernel_text(lengthscales, 2) == "SquaredExponential(lengthscales=[1, 1, … 198 more], variance=1)"
