"""Numbers in fixed point: errors of at most half a step, checked ranges, and exact columns of multiples of the step."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from securevfl.crypto.paillier.fixed_point_integers import column_bits, decode, encode, encode_columns
from securevfl.errors import RangeError

bounds = st.floats(1e-6, 1e6)


@given(bounds, st.lists(st.floats(-1, 1), min_size=1, max_size=20), st.integers(8, 40))
def test_decoding_is_within_half_a_step(bound, fractions, bits):
    values = np.clip(np.array(fractions) * bound, -bound, bound)
    ints = encode(values, bound, bits)
    assert max(map(abs, ints.tolist())) <= 2**bits
    back = np.array([decode(int(i), bound, bits) for i in ints])
    assert np.abs(back - values).max() <= bound * 2.0 ** -(bits + 1) * (1 + 1e-9)


@pytest.mark.parametrize("value", [1.0000001, -2.0, math.inf, -math.inf, math.nan])
def test_out_of_range_raises(value):
    with pytest.raises(RangeError) as caught:
        encode(np.array([0.5, value]), 1.0, 16)
    assert repr(value) not in str(caught.value)


@pytest.mark.parametrize("bound", [0.0, -1.0, math.inf, math.nan])
def test_impossible_bounds_raise(bound):
    with pytest.raises(RangeError):
        encode(np.zeros(2), bound, 16)


def test_small_multiples_are_exact():
    J = np.array([[0, 0.5, -3.0, 0.1], [1, -1.5, 0.0, 0.25], [1, 0.0, 6.0, 0.7]])
    ints, scales = encode_columns(J, 16)
    assert ints[:, 0].tolist() == [0, 1, 1]
    assert ints[:, 1].tolist() == [1, -3, 0]
    assert ints[:, 2].tolist() == [-1, 0, 2]
    assert np.array_equal(ints[:, :3] / scales[:3], J[:, :3])


@given(st.integers(0, 2**32 - 1), st.integers(1, 40), st.floats(-300, 300))
def test_columns_are_within_half_a_step(seed, n, magnitude):
    J = np.random.default_rng(seed).normal(size=(n, 3)) * 10.0**magnitude
    J[:, 1] = 0
    ints, scales = encode_columns(J, 20)
    assert np.abs(ints).max() <= 2**20
    largest = np.abs(J).max(axis=0)
    assert (np.abs(ints / scales - J) <= np.maximum(largest * 2.0**-20, 1e-289)).all()


def test_columns_must_be_finite():
    with pytest.raises(RangeError):
        encode_columns(np.array([[1.0, math.nan]]), 16)


@pytest.mark.parametrize("n", [1, 2, 63, 64, 65, 1000, 1025, 40_000])
def test_rounding_J_moves_a_sum_by_little(n):
    """With the worst g for the encoder's rounding: each entry is +-1 with the sign of the
    error, so that all errors add up.
    """
    J = np.random.default_rng(n).uniform(-1, 1, (n, 5)) * [1, 1e-3, 1e3, math.pi, 1]
    ints, scales = encode_columns(J, column_bits(n))
    moved = np.abs(ints / scales - J).sum(axis=0)
    assert (moved <= 2.0**-10.99 * np.abs(J).max(axis=0)).all()
    coarse, scales = encode_columns(J, column_bits(n) - 6)
    assert n < 1000 or (np.abs(coarse / scales - J).sum(axis=0) > 2.0**-10.99 * np.abs(J).max(axis=0)).any()
