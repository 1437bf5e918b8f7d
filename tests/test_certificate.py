"""The verdict, rule by rule."""

from __future__ import annotations

import math

import pytest

from nearexact.certificate import Certificate, judge

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
    certificate = Certificate(lower=-90.0, upper=-80.0, elbo=-100.0, n=50, verdict="not reached")
    assert certificate.gap_per_point == 0.2
    assert certificate.kl_bound == 20.0
    assert str(certificate) == "not reached: -90 <= log marginal likelihood <= -80, gap 0.2 nats per point"
