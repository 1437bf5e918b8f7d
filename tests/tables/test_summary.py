"""Figures of a fit against other ways to get them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import nearexact
from nearexact.tables import Fitted
from nearexact.tables.terminal import printable, summary_lines


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


def test_fitting_again_forgets_the_recipe(fitted: Fitted, tmp_path: Path) -> None:
    fitted.save(tmp_path / "model.nx")
    loaded = nearexact.load(tmp_path / "model.nx")
    assert loaded.metadata_ == fitted.model.metadata_
    loaded.save(tmp_path / "again.nx")
    assert (tmp_path / "again.nx").read_bytes() == (tmp_path / "model.nx").read_bytes()
    loaded.fit(np.random.default_rng(0).normal(size=(20, 2)), np.arange(20.0))
    assert loaded.metadata_ == {}
