"""Words about verdicts are no rosier than what is known."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from nearexact.certificate import NEAR_EXACT, Doubt, confirm, doubt_about
from nearexact.evidence import Evidence
from nearexact.tables.wording import DOUBTS, SUPPORT, VERDICTS, method_words, verdict_words
from nearexact.verdict_colours import VERDICT_KINDS


def record(verdict: str, doubt: Doubt | None, gap: float | None = 0.0) -> dict[str, Any]:
    return {"verdict": verdict, "doubt": doubt, "gap_per_point": gap}


def test_all_verdicts_have_words_and_colours() -> None:
    assert set(VERDICTS) == set(VERDICT_KINDS)
    assert set(DOUBTS) == set(Doubt)


@pytest.mark.parametrize("doubt", Doubt)
def test_a_model_without_support_is_never_said_to_be_near_exact(doubt: Doubt) -> None:
    """A smooth local optimum has no gap either."""
    words = verdict_words(record("not reached", doubt))
    assert words == DOUBTS[doubt]
    assert not any(VERDICTS[verdict] in words for verdict in NEAR_EXACT)
    assert SUPPORT not in words
    assert "these columns do not explain" not in verdict_words(record("no better than noise", doubt))
    both = verdict_words(record("not reached", doubt, 0.5))
    assert both == f"{VERDICTS['not reached']} {DOUBTS[doubt]}"
    assert verdict_words(record("not reached", doubt, None)) == both  # bounds that could not be computed


@pytest.mark.parametrize("verdict", NEAR_EXACT)
def test_a_supported_verdict_says_what_supports_it(verdict: str) -> None:
    assert verdict_words(record(verdict, None)) == f"{VERDICTS[verdict]} {SUPPORT}"


def test_a_verdict_is_confirmed_exactly_where_there_is_no_doubt() -> None:
    cases = itertools.product((50, 100), (1, 2, 4), (0.0, 0.02, float("nan")), (-10.0, -8.0))
    seen = {doubt_about(None, -10.0, 100)}
    assert confirm("certified", -10.0, 100, None) == "not reached"
    for rows, agreeing, gain, likelihood in cases:
        evidence = Evidence(rows, 6, agreeing, gain, likelihood)
        doubt = doubt_about(evidence, -10.0, 100)
        seen.add(doubt)
        assert (confirm("certified", -10.0, 100, evidence) == "certified") == (doubt is None)
        assert confirm("no better than noise", -10.0, 100, evidence) == "no better than noise"
    assert seen == {None, *Doubt}


def test_every_method_has_words_also_an_unknown_one() -> None:
    assert method_words({"method": "cholesky", "m": 5}) == "exact GP"
    assert method_words({"method": "sparse", "m": 5}) == "sparse GP with 5 inducing points"
    assert method_words({"method": "iterative", "m": 5}) == "exact GP, by conjugate gradients"
    assert method_words({"method": "quantum", "m": 5}) == "GP by the method quantum"
