"""Checkpoints, and what runs had at them, against their definitions."""

from __future__ import annotations

import math
from statistics import median
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nearexact.bench.analysis.checkpoints import checkpoints, reference_methods
from tests.bench.synthetic import as_results, points

times = st.lists(st.floats(0.1, 20.0), min_size=1, max_size=6).map(sorted)


@st.composite
def traces(draw: Any) -> list[dict[str, Any]]:
    """Up to three seeds of SGPR, which may end early, and of a method beside it."""
    rows: list[dict[str, Any]] = []
    for seed in range(draw(st.integers(1, 3))):
        for k, time in enumerate(draw(times)):
            end = {"m": (10, 20, 50, 100, 200, 500)[k], "milestone": True, "method": "sgpr"}
            rows.append({**end, "seed": seed, "elapsed": time, "elbo": draw(st.floats(-9.0, 9.0)), "rmse": 0.5})
        other = {"method": "other", "seed": seed, "rmse": 0.4}
        rows += [{**other, "elapsed": time, "elbo": draw(st.floats(-9.0, 9.0))} for time in draw(times)]
    return rows


@settings(deadline=None, max_examples=50)
@given(traces())
def test_checkpoints_and_what_runs_had_at_them(rows: list[dict[str, Any]]) -> None:
    seeds = {row["seed"] for row in rows}
    marks = {}
    for m in {row["m"] for row in rows if row["method"] == "sgpr"}:
        ended = {row["seed"]: row["elapsed"] for row in rows if row.get("m") == m}
        if 2 * len(ended) > len(seeds):  # the others count as never
            marks[m] = median(ended.get(seed, math.inf) for seed in seeds)
    marked = checkpoints(points(rows))
    assert dict(zip(marked["m"], marked["seconds"], strict=True)) == pytest.approx(marks)
    assert marked["seconds"].tolist() == sorted(marked["seconds"])

    expected = {}
    for seed in {row["seed"] for row in rows}:
        own = [row for row in rows if row["seed"] == seed]
        for row in own:
            if row["method"] == "sgpr" and row["m"] in marks:
                expected["sgpr", seed, row["m"]] = -row["elbo"]
        other = sorted((row for row in own if row["method"] == "other"), key=lambda row: row["elapsed"])
        expected["other", seed, "final"] = -other[-1]["elbo"]
        for m, moment in marks.items():
            before = [row for row in other if row["elapsed"] <= moment]
            if before:
                expected["other", seed, m] = -before[-1]["elbo"]
    table = as_results(points(rows)).checkpoint_values
    got = {(row.method, row.seed, row.checkpoint): row.negative_lml for row in table.itertuples()}
    finals = {key: got.pop(key) for key in list(got) if key[0] == "sgpr" and key[2] == "final"}
    assert got == pytest.approx(expected)
    assert len(finals) == len({row["seed"] for row in rows})


def test_a_stage_that_was_cut_short_makes_no_checkpoint() -> None:
    rows = [
        {"elapsed": 1.0, "m": 10, "elbo": -5.0, "milestone": True, "stopped": "converged"},
        {
            "elapsed": 2.0,
            "m": 10,
            "scheduled_m": 20,
            "elbo": -5.0,
            "milestone": True,
            "stopped": "no better than a smaller M",
        },
        {"elapsed": 3.0, "m": 50, "elbo": -9.0, "milestone": True, "stopped": "time limit"},
    ]
    assert checkpoints(points(rows))["m"].tolist() == [10, 20]


def test_the_papers_procedure_makes_the_checkpoints_then_its_family_and_without_that_nobody() -> None:
    row = {"elapsed": 1.0, "m": 10, "elbo": -5.0, "milestone": True}

    def reference(*methods: str) -> str | None:
        return reference_methods(points(row | {"method": method} for method in methods)).get("a")

    assert reference("sgpr", "sgpr-paper", "other") == "sgpr-paper"
    assert reference("sgpr-tight", "sgpr", "other") == "sgpr"
    assert reference("sgpr-tight", "other") == "sgpr-tight"
    assert reference("other") is None
    assert reference("sgpr_fast.py:SGPR", "sgpr_fast") is None  # what a plug-in is called says nothing
    mixed = points([row | {"method": "sgpr"}, row | {"method": "sgpr-paper"}, row | {"dataset": "b"}])
    assert dict(zip(checkpoints(mixed)["dataset"], checkpoints(mixed)["reference"], strict=True)) == {
        "a": "sgpr-paper", "b": "sgpr"
    }  # fmt: skip
    values = as_results(points([row | {"method": "other"}])).checkpoint_values
    assert values["checkpoint"].tolist() == ["final"]
