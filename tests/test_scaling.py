"""Standardisation of columns of every size."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from nearexact.scaling import Scaling


@given(
    arrays(float, (12, 3), elements=st.floats(-1.0, 1.0)),
    st.floats(-290.0, 290.0),
)
@example(np.eye(12, 3) * 5e-324, 0.0)  # too small to be divided by
@example(np.eye(12, 3) * 3e-308, 0.0)  # only its standard deviation is
def test_standardised_columns_and_back(values: np.ndarray, exponent: float) -> None:
    values = values * 10.0**exponent
    scaling = Scaling.of(values)
    standard = scaling.apply(values)
    assert np.isfinite(standard).all()
    np.testing.assert_allclose(standard.mean(0), 0.0, atol=0.01)
    constant = np.abs(standard).max(0) < 1e-300
    np.testing.assert_allclose(standard.std(0)[~constant], 1.0, rtol=0.01)
    np.testing.assert_allclose(scaling.undo(standard), values, atol=1e-9 * 10.0**exponent)


@pytest.mark.parametrize("value", [0.0, 0.1, -3.7e12, 1e300, 1e-300])
def test_a_constant_becomes_exactly_zero(value: float) -> None:
    assert not Scaling.of(np.full((7, 1), value)).apply(np.full((3, 1), value)).any()
    assert not Scaling.of(np.full(7, value)).apply(np.full(3, value)).any()


@pytest.mark.parametrize("offset", [1e6, 1e9, -1e12])
def test_an_offset_loses_no_digits_but_those_of_the_values(offset: float) -> None:
    """Values that float64 holds exactly with the offset: what is left without it is the same."""
    values = np.random.default_rng(0).integers(-1000, 1000, size=500) / 8.0
    near, far = Scaling.of(values), Scaling.of(values + offset)
    assert far.scale == pytest.approx(near.scale, rel=1e-12)
    rounding = 4.0 * np.spacing(abs(offset)) / near.scale  # of the shift
    np.testing.assert_allclose(far.apply(values + offset), near.apply(values), rtol=1e-12, atol=rounding)
