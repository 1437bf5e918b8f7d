"""Standard errors, paired differences and bootstrap intervals against SciPy, NumPy and what they must cover."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from nearexact.bench.analysis.statistics import (
    bootstrap,
    lower_middle,
    mean,
    median,
    paired_difference,
    standard_error,
)

few = st.lists(st.floats(-100.0, 100.0), min_size=2, max_size=8)


@given(few)
def test_the_standard_error_is_scipys(values: list[float]) -> None:
    assert standard_error(np.array(values)) == pytest.approx(stats.sem(values), rel=1e-9, abs=1e-12)


def test_one_value_and_an_infinite_one_have_no_standard_error() -> None:
    assert math.isnan(standard_error(np.array([1.0])))
    assert math.isnan(standard_error(np.array([1.0, math.inf])))


def test_paired_differences_are_scipys_t_test_on_the_splits_that_both_have() -> None:
    random = np.random.default_rng(0)
    first = random.normal(size=7)
    second = first + random.normal(0.3, 0.2, size=7)
    first[2], second[5] = math.nan, math.inf
    both = [0, 1, 3, 4, 6]
    compared = paired_difference(first, second)
    assert compared.splits == 5
    assert compared.mean == pytest.approx(np.mean(first[both] - second[both]))
    assert compared.p == pytest.approx(stats.ttest_rel(first[both], second[both]).pvalue)
    assert math.isnan(paired_difference(first[:1], second[:1]).p)
    assert paired_difference(first[:2], first[:2]).p == 1.0
    assert paired_difference(np.array([1.0, 2.0]), np.array([0.0, 1.0])).p == 0.0  # always the same difference


@given(st.lists(st.lists(st.floats(-5.0, 5.0) | st.just(math.nan), min_size=3, max_size=3), min_size=1, max_size=4))
def test_reductions_leave_out_what_is_not_there(rows: list[list[float]]) -> None:
    table = np.array(rows)
    for k, row in enumerate(rows):
        there = sorted(value for value in row if not math.isnan(value))
        if not there:
            assert math.isnan(mean(table)[k])
            continue
        assert mean(table)[k] == pytest.approx(np.mean(there))
        assert median(table)[k] == pytest.approx(np.median(there))
        assert lower_middle(table)[k] == there[(len(there) - 1) // 2]


def test_an_interval_of_one_data_set_is_that_of_its_seeds() -> None:
    values = np.random.default_rng(1).normal(size=200)
    low, high = bootstrap([values], mean, mean)
    expected = values.mean() + np.array([-1.96, 1.96]) * stats.sem(values)
    assert (low, high) == pytest.approx(tuple(expected), abs=0.02)


def test_data_sets_that_differ_widen_an_interval_that_seeds_alone_would_not() -> None:
    groups = [np.full(50, float(level)) for level in range(5)]  # no spread between seeds
    low, high = bootstrap(groups, mean, mean)
    assert low < 1.0
    assert high > 3.0
    assert bootstrap(groups[:1], mean, mean) == (0.0, 0.0)
    assert all(math.isnan(end) for end in bootstrap([np.array([1.0])], mean, mean))
    assert bootstrap(groups, mean, mean) == (low, high)  # the same every time


def test_an_interval_may_end_in_infinity() -> None:
    low, high = bootstrap([np.array([1.0, math.inf])], median, median)
    assert (low, high) == (1.0, math.inf)
