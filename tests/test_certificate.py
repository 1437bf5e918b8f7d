"""The verdict, rule by rule."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import get_args

import numpy as np
import pytest

from nearexact.certificate import NEAR_EXACT, Certificate, Doubt, Verdict, confirm, doubt_about, judge
from nearexact.evidence import Evidence, are_enough, chance_of_missing, strongest
from nearexact.gp import Interval, LikelihoodBounds
from nearexact.verdict_colours import PALETTES, VERDICT_KINDS

N = 1000
NOISE = -0.5 * N * (math.log(2.0 * math.pi) + 1.0)


@pytest.mark.parametrize(
    ("lower", "upper", "elbos", "verdict"),
    [
        (-500.0, -491.0, [-500.0], "certified"),
        (-500.0, -489.0, [-500.0], "not reached"),
        (NOISE + 4.9, NOISE + 4.9, [NOISE + 4.9], "no better than noise"),  # however small the gap
        (NOISE + 5.1, NOISE + 5.1, [NOISE + 5.1], "certified"),
        (NOISE - 1e9, 0.0, [NOISE - 1e9] * 3, "no better than noise"),
        (math.nan, 0.0, [math.nan], "no better than noise"),
        (-500.0, 0.0, [-501.0, -500.5, -500.0], "converged"),
        (-500.0, 0.0, [-499.0, -499.5, -500.0], "converged"),  # either way
        (-500.0, 0.0, [-500.5, -500.0], "not reached"),  # two steps are needed
        (-500.0, 0.0, [-503.0, -500.5, -500.0], "not reached"),
        (-500.0, 0.0, [-501.0, -503.0, -500.0], "not reached"),
        (-500.0, 0.0, [-9.0, -501.0, -500.5, -500.0], "converged"),  # what was before does not matter
        (-500.0, math.nan, [-500.0], "not reached"),
        (-500.0, -5000.0, [-500.0], "not reached"),  # bounds out of order are no proof of anything
        (-500.0, 0.0, [-500.0, -1400.0, -1400.0, -1400.0], "not reached"),  # the steps led to another model
    ],
)
def test_verdict(lower: float, upper: float, elbos: list[float], verdict: str) -> None:
    assert judge(lower, upper, elbos, NOISE, N) == verdict


def test_gap_and_divergence() -> None:
    certificate = Certificate(
        lower=-90.0, upper=-80.0, elbo=-100.0, n=50, verdict="not reached", trace_gap=2.0, residual_gap=8.0
    )
    assert certificate.gap_per_point == 0.2
    assert certificate.kl_bound == 20.0
    assert str(certificate) == (
        "not reached: -90 <= log marginal likelihood <= -80, gap 0.2 nats per point;"
        " hyperparameters: not compared with others"
    )
    assert certificate.dominated_by == "residual"
    assert repr(replace(certificate, iterations=12, seconds=3.21)).splitlines() == [
        "Certificate: not reached",
        "  log marginal likelihood  -90 to -80 nats",
        "  gap per point            0.2 nats (certified below 0.01)",
        "  gap                      mostly residual: 2 trace + 8 residual",
        "  KL to exact posterior    at most 20 nats",
        "  hyperparameters          not compared with others",
        "  cost                     12 CG iterations, 3.2 s",
    ]
    assert replace(certificate, residual_gap=1.0).dominated_by == "trace"
    assert replace(certificate, residual_gap=math.nan).dominated_by == "unknown"


@pytest.mark.parametrize(
    ("lower", "elbo", "verdict"),
    [
        (-491.0, -520.0, "certified"),  # by the tighter bound
        (NOISE + 6.0, NOISE + 4.9, "no better than noise"),  # by the ELBO, whatever else is known
        (-400.0, -500.0, "converged"),  # steps are those of the ELBO
    ],
)
def test_the_models_own_elbo_may_differ_from_the_lower_bound(lower: float, elbo: float, verdict: str) -> None:
    upper = lower + 9.0 if verdict != "converged" else 0.0
    assert judge(lower, upper, [elbo] * 3, NOISE, N, elbo=elbo) == verdict


def test_certificate_of_bounds() -> None:
    bounds = LikelihoodBounds(100, -60.0, Interval(-200.0, -190.0), Interval(90.0, 93.0))
    certificate = Certificate.of(bounds, "not reached", iterations=3, seconds=1.0)
    constant = -50.0 * math.log(2.0 * math.pi)
    assert certificate.lower == pytest.approx(constant + 0.5 * (190.0 - 93.0))
    assert certificate.upper == pytest.approx(constant + 0.5 * (200.0 - 90.0))
    assert (certificate.trace_gap, certificate.residual_gap) == (5.0, 1.5)
    assert certificate.kl_bound == certificate.upper + 60.0
    assert (certificate.n, certificate.iterations, certificate.seconds) == (100, 3, 1.0)
    tighter = bounds.meet(log_det=Interval(-210.0, -195.0), quadratic=Interval(upper=91.0))
    assert tighter.log_det == Interval(-200.0, -195.0)
    assert tighter.quadratic == Interval(90.0, 91.0)


def test_every_verdict_has_a_kind_and_every_kind_its_colours() -> None:
    assert set(VERDICT_KINDS) == set(get_args(Verdict))
    assert {VERDICT_KINDS[verdict] for verdict in NEAR_EXACT} == {"good", "fair"}
    assert set(VERDICT_KINDS.values()) < set(PALETTES)
    for shade in ("light", "dark", "printed"):
        assert len({getattr(palette, shade) for palette in PALETTES.values()}) == len(PALETTES)


@pytest.mark.parametrize(
    ("evidence", "supported"),
    [
        (None, False),  # nobody has looked
        (Evidence(1000, 6, 3, 0.0, -495.0), True),
        (Evidence(1000, 6, 1, 0.0, -495.0), False),  # one start alone may be anywhere
        (Evidence(1000, 2, 2, 0.0, -495.0), True),
        (Evidence(1000, 33, 3, 0.0, -495.0), False),  # where there are many optima, others are missed as easily
        (Evidence(1000, 33, 4, 0.0, -495.0), True),
        (Evidence(1000, 6, 3, 0.02, -470.0), False),  # another θ is better by 0.03 nats per row
        (Evidence(1000, 6, 3, None, -495.0), False),  # the likelihood was still rising
        (Evidence(400, 6, 3, 0.004, -100.0), True),  # of a subset: its likelihood is that of other rows
        (Evidence(400, 6, 3, 0.006, -100.0), False),
    ],
)
def test_near_exactness_needs_evidence_for_the_hyperparameters(evidence: Evidence | None, supported: bool) -> None:
    for verdict in get_args(Verdict):
        expected = verdict if supported or verdict not in NEAR_EXACT else "not reached"
        assert confirm(verdict, -500.0, 1000, evidence) == expected


def test_time_is_to_blame_where_no_two_starts_were_followed() -> None:
    assert doubt_about(Evidence(1000, 0, 0, None, -495.0), -500.0, N) is Doubt.STILL_RISING
    assert doubt_about(Evidence(1000, 1, 1, None, -495.0), -500.0, N) is Doubt.STILL_RISING
    assert doubt_about(Evidence(1000, 6, 1, None, -495.0), -500.0, N) is Doubt.FOUND_ONCE
    assert doubt_about(Evidence(1000, 33, 3, None, -495.0), -500.0, N) is Doubt.STILL_RISING
    assert doubt_about(Evidence(1000, 33, 3, 0.0, -495.0), -500.0, N) is Doubt.FOUND_RARELY
    assert "no time to follow any start" in Evidence(1000, 0, 0, None, -495.0).in_words(N)


@pytest.mark.parametrize(("agreeing", "starts"), [(1, 4), (3, 5), (3, 33)])
def test_the_chance_that_all_starts_miss_what_is_as_easy_to_find(agreeing: int, starts: int) -> None:
    random = np.random.default_rng(0)
    found = random.random((40_000, starts)) < agreeing / starts
    missed = 1.0 - found.any(1).mean()
    assert missed == pytest.approx(chance_of_missing(agreeing, starts), abs=4.0 * math.sqrt(0.25 / len(found)))


def test_more_that_agree_say_more_and_more_that_do_not_say_less() -> None:
    for starts in range(2, 60):
        chances = [chance_of_missing(agreeing, starts) for agreeing in range(starts + 1)]
        assert chances == sorted(chances, reverse=True)
        assert not are_enough(1, starts)
        assert are_enough(starts, starts)
    assert chance_of_missing(3, 30) > chance_of_missing(3, 5)
    assert chance_of_missing(0, 0) == 1.0
    assert strongest((2, 2), (3, 33), (3, 4)) == (3, 4)
