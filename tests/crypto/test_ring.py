"""Real numbers as integers modulo 2^b (`securevfl.crypto.fixed_point_ring`): sums are exact and never wrap."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from securevfl.crypto.fixed_point_ring import COSINE_ERROR, MAX_RING_TERMS, cos_circle, from_ring, scale_bits, to_ring
from securevfl.crypto.prg import Prg
from securevfl.errors import ConfigError, RangeError

bounds = st.floats(1e-300, 1e300)
terms = st.integers(1, MAX_RING_TERMS)


@given(bounds, terms)
def test_the_scale_is_the_largest_that_cannot_wrap(bound, terms):
    f = scale_bits(bound, terms)
    worst = [terms * (Fraction(bound) * Fraction(2) ** e + Fraction(1, 2)) for e in (f, f + 1)]
    assert worst[0] <= 2**63 - 1 < worst[1]


@given(st.data(), st.floats(1e-6, 1e6), st.integers(1, 20))
def test_masked_sums_are_exact_sums_of_rounded_values(data, bound, q):
    values = [np.array(data.draw(st.lists(st.floats(-bound, bound), min_size=3, max_size=3))) for _ in range(q)]
    f = scale_bits(bound, q)
    masks = [Prg.fresh("mask").array(3, np.uint64) for _ in range(q)]
    total = np.zeros(3, np.uint64)
    for v, r in zip(values, masks, strict=True):
        total += to_ring(v, bound, q) + r
    for r in masks:
        total -= r
    got = from_ring(total, bound, q)
    for i in range(3):
        exact = sum(Fraction(float(v[i])) for v in values)
        assert abs(Fraction(float(got[i])) - exact) <= q * Fraction(2) ** (-f - 1) + abs(exact) / 2**52


@pytest.mark.parametrize("q", [1, 3, 1000])
@pytest.mark.parametrize("sign", [-1.0, 1.0])
def test_a_sum_of_values_at_the_bound_does_not_wrap(q, sign):
    for bound in (1.0, 0.3, 7e9, 1e-9):
        element = to_ring(np.full(4, sign * bound), bound, q)
        total = (element * np.uint64(q)).astype(np.uint64)
        assert np.allclose(from_ring(total, bound, q), sign * bound * q, rtol=1e-12)


def test_a_wrong_number_of_terms_wraps():
    element = to_ring(np.full(1, 1.0), 1.0, 1)
    assert not np.allclose(from_ring(element * np.uint64(4), 1.0, 1), 4.0)


@pytest.mark.parametrize("bad", [1.0000001, -2.0, math.nan, math.inf, -math.inf])
def test_values_beyond_the_bound_are_refused_without_being_shown(bad):
    with pytest.raises(RangeError) as caught:
        to_ring(np.array([0.5, bad]), 1.0, 2)
    assert str(bad) not in str(caught.value)
    assert "0.5" not in str(caught.value)


@pytest.mark.parametrize(
    ("bound", "terms"), [(0.0, 1), (-1.0, 1), (math.nan, 1), (math.inf, 1), (1.0, 0), (1.0, 2**33)]
)
def test_bad_bounds_and_terms_are_refused(bound, terms):
    with pytest.raises(ConfigError):
        scale_bits(bound, terms)


def test_cosines_of_the_circle():
    every = np.arange(2**16, dtype=np.uint16)
    assert np.abs(cos_circle(every) - np.cos(every * (2 * math.pi / 2**16))).max() <= 2**-25
    edge = np.arange(-(2**17), 2**17, 3).astype(np.uint32)
    sampled = np.concatenate(
        [Prg.fresh("phases").array(200_000, np.uint32), edge, edge + np.uint32(2**30), edge + np.uint32(2**31)]
    )
    off = np.abs(cos_circle(sampled) - np.cos(sampled * (2 * math.pi / 2**32))).max()
    assert 0.95 * COSINE_ERROR < off <= COSINE_ERROR
    assert cos_circle(sampled.reshape(2, -1)).shape == (2, sampled.size // 2)
    assert cos_circle(sampled).dtype == np.float32
