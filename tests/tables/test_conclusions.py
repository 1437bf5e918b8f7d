"""Plain words about a fit are no rosier than its figures."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from nearexact.certificate import Doubt
from nearexact.tables.conclusions import Conclusion, conclusions
from nearexact.verdict_colours import VERDICT_KINDS

COVERAGE = {"0.5": 0.5, "0.8": 0.8, "0.9": 0.9, "0.95": 0.95, "0.99": 0.99}


def record(**changes: Any) -> dict[str, Any]:
    """A summary of a good model."""
    words: dict[str, Any] = {
        "kernel": "se", "verdict": "exact", "doubt": None, "ended": "optimum found", "noise_std": 1.0, "inputs": 3,
        "rows": 1000, "rows_train": 850, "rows_test": 150, "time_limit": "5m", "coverage": COVERAGE, "tried": [],
        "index_like": [], "evidence": {"starts": 9, "rows": 850},
    }  # fmt: skip
    return {**words, "scores": scores(1.02, (2.0, 9.0), (4.0, 20.0)), **changes}


def scores(
    rmse: float, linear: tuple[float, float], mean: tuple[float, float], nlpd: float = 1.0
) -> list[dict[str, Any]]:
    return [
        {"predictor": "nearexact", "rmse": rmse, "nlpd": nlpd, "model_lead": None},
        {"predictor": "linear", "rmse": linear[0], "nlpd": 2.0, "model_lead": linear[1]},
        {"predictor": "mean", "rmse": mean[0], "nlpd": 3.0, "model_lead": mean[1]},
    ]


def answers(**changes: Any) -> list[Conclusion]:
    return conclusions(record(**changes))


def test_a_good_model() -> None:
    quality, intervals, more, steps = answers()
    assert (quality.kind, quality.word) == ("good", "better than a linear model")
    assert "49 % smaller than those of a linear model, and 74 % smaller than those of always predicting" in quality.text
    assert (intervals.kind, intervals.word) == ("good", "yes")
    assert more.word == "time: hardly, rows: hardly"
    assert steps.text == "Predict new rows (nearexact predict)."


def test_nothing_is_green_unless_linear_is_clearly_beaten_on_enough_rows_and_something_was_learnt() -> None:
    leads, counts = (-5.0, -1.0, 0.0, 1.9, 2.1, None), (2, 9, 10, 150)
    for linear, mean, n, verdict, doubt in itertools.product(leads, leads, counts, VERDICT_KINDS, (None, *Doubt)):
        found = scores(1.0, (1.0, linear), (1.0, mean))  # type: ignore[arg-type]
        kinds = [answer.kind for answer in answers(scores=found, rows_test=n, verdict=verdict, doubt=doubt)]
        clear = linear == mean == 2.1 and n >= 10 and verdict != "no better than noise"
        assert (kinds[0] == "good") == clear
        assert clear or "good" not in kinds
    untested = answers(scores=[], coverage={}, rows_test=0)
    assert "good" not in [answer.kind for answer in untested]
    assert "--test-fraction" in untested[3].text


def test_where_a_linear_model_does_as_well() -> None:
    quality, *_, steps = answers(scores=scores(1.0, (1.1, 1.0), (4.0, 20.0)))
    assert (quality.kind, quality.word) == ("open", "a linear model does as well")
    assert "may be chance" in quality.text
    assert "simpler model" in steps.text
    worse = answers(scores=scores(1.1, (1.0, -3.0), (4.0, 20.0)))[0]
    assert (worse.kind, worse.word) == ("bad", "a linear model is better")
    assert "10 % larger than those of a linear model" in worse.text
    assert "take the linear model" in answers(scores=scores(1.1, (1.0, -3.0), (4.0, 20.0)))[3].text
    assert answers(scores=scores(1.0, (1.1, 9.0), (1.1, 1.0)))[0].word == "no clear gain over the mean"


def test_a_few_large_errors_do_not_hide_what_nearly_all_rows_say() -> None:
    found = scores(1.6, (0.4, -1.5), (18.0, 1.2))
    assert answers(scores=found)[0].word == "no clear gain over the mean"
    found[2]["model_rank_lead"] = 6.0
    assert answers(scores=found)[0].word == "a linear model does as well"
    found[1]["model_rank_lead"] = -6.0
    assert answers(scores=found)[0].word == "a linear model is better"
    found[1].update(model_rank_lead=6.0, rmse=2.0, model_lead=1.9)  # praise needs the mean squared error
    assert answers(scores=found)[0].kind == "open"
    found[1].update(model_lead=3.0)  # that over the mean, too
    assert answers(scores=found)[0].kind == "open"


def test_noise_is_blamed_only_after_what_was_tried_is_told() -> None:
    tried = [{"kernel": name, "bound": bound} for name, bound in (("se", -1.0), ("matern12", 0.0), ("arccosine", None))]
    no_gain = scores(1.0, (1.0, 0.0), (1.0, 0.0))
    quality, *_ = answers(verdict="no better than noise", tried=tried, scores=no_gain)
    assert (quality.kind, quality.word) == ("plain", "nothing learnt")
    assert "Tried: 2 kernels, and 9 starts of the optimiser on 850 rows; nothing explains more" in quality.text
    quality, _, more, steps = answers(
        verdict="no better than noise", doubt=Doubt.STILL_RISING, ended="time limit", scores=no_gain
    )
    assert "Tried: the kernel se, and" in quality.text
    assert "nothing explains more" not in quality.text
    assert more.word.startswith("time: yes")
    assert "--kernel auto" in steps.text


def test_what_test_rows_show_is_not_called_nothing() -> None:
    quality, *_, steps = answers(verdict="no better than noise")  # errors are 74 % smaller than the mean's
    assert (quality.kind, quality.word) == ("open", "perhaps")
    assert "do not rely on it" in quality.text
    assert "predict the mean" not in steps.text


@pytest.mark.parametrize(
    ("coverage", "n", "word"),
    [
        ({"0.95": 0.95}, 19, "cannot be told"),
        ({"0.95": 16 / 18}, 18, "cannot be told"),
        ({"0.95": 3 / 18}, 18, "too narrow"),  # few rows, but no chance
        ({"0.95": 0.95}, 20, "yes"),
        ({"0.95": 0.80}, 150, "too narrow"),
        ({"0.95": 0.90}, 30, "yes"),  # 27 of 30: chance
        ({"0.95": 0.935}, 10**6, "yes"),  # significant, but it does not matter
        ({"0.95": 0.995}, 1000, "too wide"),
        ({"0.5": 0.75}, 150, "at 95 %, yes"),
    ],
)
def test_intervals(coverage: dict[str, float], n: int, word: str) -> None:
    assert answers(coverage={**COVERAGE, **coverage}, rows_test=n)[1].word == word


def test_intervals_that_miss_few_values_by_far_are_too_narrow() -> None:
    """Coverage does not see by how much values are missed; a density that is worse than the mean's does."""
    good = ((2.0, 9.0), (4.0, 20.0))
    assert answers(scores=scores(1.0, *good, nlpd=3.05))[1].word == "yes"
    _, intervals, _, steps = answers(scores=scores(1.0, *good, nlpd=3.2))
    assert (intervals.word, intervals.kind) == ("too narrow for some", "bad")
    assert "do not rely on its intervals" in steps.text


def test_many_columns_for_few_rows_are_named_as_a_cause_of_narrow_intervals() -> None:
    narrow = {**COVERAGE, "0.95": 0.6}
    assert "leave out columns that cannot matter" in answers(coverage=narrow, inputs=200)[3].text
    assert "leave out columns" not in answers(coverage=narrow)[3].text


def test_known_noise_is_a_part_of_the_error_that_more_rows_do_not_remove() -> None:
    assert answers(noise_std=0.0, known_noise_std=1.0)[2].word == "time: hardly, rows: hardly"
    assert answers(noise_std=0.0, known_noise_std=0.3)[2].word == "time: hardly, rows: yes"


def test_more_time_and_more_rows() -> None:
    rows = {noise: answers(noise_std=noise)[2] for noise in (1.0, 0.9, 0.3)}
    assert [answer.word for answer in rows.values()] == [
        "time: hardly, rows: hardly", "time: hardly, rows: hardly", "time: hardly, rows: yes"
    ]  # fmt: skip
    assert "noise is 9 % of the squared error" in rows[0.3].text
    assert answers(rows=20)[2].word == "time: hardly, rows: yes"
    unsound = answers(coverage={**COVERAGE, "0.95": 0.5})
    assert unsound[2].word == "time: hardly, rows: not clear"  # who is too sure does not know the noise either
    assert "do not rely on its intervals" in unsound[3].text
    cut = answers(verdict="not reached", doubt=Doubt.STILL_RISING, ended="time limit")
    assert "the limit of 5m came before the search for the best model was over" in cut[2].text
    assert "allow more time (--time-limit)" in cut[3].text.lower()
    assert "more memory" in answers(verdict="not reached", ended="memory limit")[2].text
    untried = [{"kernel": "se", "bound": -1.0}, {"kernel": "arccosine", "bound": None}]
    assert "let 1 further kernels be tried" in answers(tried=untried)[2].text


@pytest.mark.parametrize(("limit", "seconds", "blamed"), [
    ("60s", 0.5, False), ("60s", 10.0, True), ("60s", 61.0, True), (None, 1e9, False), ("1e+06 s", 1.0, True),
    ("60s", None, True),
])  # fmt: skip
def test_time_is_blamed_only_where_it_was_used(limit: str | None, seconds: float | None, blamed: bool) -> None:
    for ended in ("time limit", "line search"):
        found = {"verdict": "not reached", "doubt": Doubt.STILL_RISING, "ended": ended}
        _, _, more, steps = answers(time_limit=limit, seconds=seconds, **found)
        assert more.word.startswith("time: yes" if blamed else "time: hardly")
        assert ("--time-limit" in steps.text) == blamed


def test_a_fit_that_was_stopped_is_said_to_be() -> None:
    untested = {"scores": [], "coverage": {}, "verdict": "not reached", "ended": "time limit"}
    quality, _, more, steps = answers(interrupted=True, **untested)
    assert quality.text == "It was stopped by Ctrl-C before the test, so nothing is known about errors on new rows."
    assert "stopped by Ctrl-C" in more.text
    assert "limit came" not in more.text
    assert steps.text.startswith("Fit again, and let it come to its end")
    earlier, _, more, steps = answers(**untested)  # summaries of earlier releases do not say so
    assert earlier.word == "not tested"
    assert steps.text


def test_columns_that_look_like_an_index_come_first() -> None:
    assert answers(index_like=["row no"])[3].text.startswith("Leave out row no (--ignore) if it only numbers the rows")
