"""The conformance suite finds what is wrong with a plug-in, and nothing with the built-in methods."""

from __future__ import annotations

import pytest

from nearexact.bench import methods
from nearexact.bench.running.check import check_method
from tests.bench.running.helpers import plugin

EXAMPLE = "examples/plugin_sklearn/sklearn_gp.py:SklearnGP"


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("linear", {}),
        pytest.param("sgpr", {"max_inducing": 10}, marks=pytest.mark.slow),
        *(pytest.param(name, {}, marks=pytest.mark.slow) for name in (*methods.BUILT_IN, EXAMPLE) if name != "linear"),
    ],
)
def test_methods_keep_all_rules(name: str, options: dict[str, int]) -> None:
    findings = check_method(name, options)
    assert [finding.explanation for finding in findings if not finding.kept] == []
    assert len(findings) == 9


@pytest.mark.parametrize(
    ("name", "broken"),
    [
        ("NoNoise", {"includes the noise in its variances"}),
        ("Random", {"gives the same again with the same seed"}),
        pytest.param("HidesWork", {"trains while the clock runs"}, marks=pytest.mark.slow),
        pytest.param("Slow", {"keeps to its budget"}, marks=pytest.mark.slow),
        pytest.param("Broken", {"runs to its end"}, marks=pytest.mark.slow),
        ("WrongShape", {"runs to its end", "reports predictions", "reports a milestone"}),
        pytest.param("Exploding", {"predicts finite means and positive variances"}, marks=pytest.mark.slow),
    ],
)
def test_faults_are_found_and_explained(name: str, broken: set[str]) -> None:
    findings = {finding.rule: finding for finding in check_method(plugin(name))}
    assert {rule for rule, finding in findings.items() if not finding.kept} == broken
    if name == "WrongShape":
        assert "predict must return a mean of shape" in findings["runs to its end"].explanation
