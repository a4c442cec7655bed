import math
from fractions import Fraction

import gmpy2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from securevfl.crypto.prg import fresh_mask
from securevfl.crypto.ring import (
    COS_ERROR,
    MAX_PHASE,
    MAX_TERMS,
    circle_error,
    cos_circle,
    from_circle,
    from_ring,
    scale_bits,
    to_circle,
    to_ring,
)
from securevfl.errors import ConfigError, RangeError

bounds = st.floats(1e-300, 1e300)
terms = st.integers(1, MAX_TERMS)


@given(bounds, terms)
def test_the_scale_is_the_largest_that_cannot_wrap(bound, terms):
    f = scale_bits(bound, terms)
    worst = [terms * (Fraction(bound) * Fraction(2) ** e + Fraction(1, 2)) for e in (f, f + 1)]
    assert worst[0] <= 2**63 - 1 < worst[1]


@given(st.data(), st.floats(1e-6, 1e6), st.integers(1, 20))
def test_masked_sums_are_exact_sums_of_rounded_values(data, bound, q):
    values = [np.array(data.draw(st.lists(st.floats(-bound, bound), min_size=3, max_size=3))) for _ in range(q)]
    f = scale_bits(bound, q)
    masks = [fresh_mask(3, np.uint64) for _ in range(q)]
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
        each = to_ring(np.full(4, sign * bound), bound, q)
        total = (each * np.uint64(q)).astype(np.uint64)
        assert np.allclose(from_ring(total, bound, q), sign * bound * q, rtol=1e-12)


def test_a_wrong_number_of_terms_wraps():
    each = to_ring(np.full(1, 1.0), 1.0, 1)
    assert not np.allclose(from_ring(each * np.uint64(4), 1.0, 1), 4.0)


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


def circle_distance(residue: int, phase: float, bits: int) -> float:
    """Exact distance in radians on the circle, in 200-bit arithmetic."""
    with gmpy2.context(precision=200):
        turn = 2 * gmpy2.const_pi()
        gap = (gmpy2.mpfr(residue) * turn / 2**bits - gmpy2.mpfr(phase)) / turn
        return float(abs(gap - gmpy2.rint(gap)) * turn)


@pytest.mark.parametrize("bits", [16, 32])
@given(phase=st.floats(-MAX_PHASE, MAX_PHASE))
def test_phases_are_off_by_at_most_the_stated_error(bits, phase):
    circle = to_circle(np.array([phase]), bits)
    assert circle.dtype.itemsize * 8 == bits
    assert circle_distance(int(circle[0]), phase, bits) <= circle_error(1, bits)
    back = from_circle(circle)[0]
    assert 0 <= back < 2 * math.pi


@pytest.mark.parametrize("bits", [16, 32])
def test_the_stated_error_is_not_slack(bits):
    half_step = math.pi / 2**bits
    worst = circle_distance(int(to_circle(np.array([half_step * 0.999]), bits)[0]), half_step * 0.999, bits)
    assert worst > 0.9 * circle_error(1, bits)


@pytest.mark.parametrize("bits", [16, 32])
@given(phases=st.lists(st.floats(-1000, 1000), min_size=1, max_size=30))
def test_masked_phase_sums_keep_the_error_of_a_sum(bits, phases):
    dtype = np.uint32 if bits == 32 else np.uint16
    total = np.zeros(1, dtype)
    masks = np.zeros(1, dtype)
    for phase in phases:
        r = fresh_mask(1, dtype)
        total += to_circle(np.array([phase]), bits) + r
        masks += r
    with gmpy2.context(precision=200):
        exact = sum(map(gmpy2.mpfr, phases))
        turn = 2 * gmpy2.const_pi()
        gap = (gmpy2.mpfr(int((total - masks)[0])) * turn / 2**bits - exact) / turn
        off = float(abs(gap - gmpy2.rint(gap)) * turn)
    assert off <= circle_error(len(phases), bits)


def test_the_edges_of_the_circle_wrap():
    assert to_circle(np.array([0.0, -1e-15, 2 * math.pi, -2 * math.pi])).tolist() == [0, 0, 0, 0]
    assert to_circle(np.array([math.pi, -math.pi])).tolist() == [2**31, 2**31]
    assert to_circle(np.array([math.pi / 2]), 16).tolist() == [2**14]
    for bad in (math.nan, math.inf, 2 * MAX_PHASE):
        with pytest.raises(RangeError):
            to_circle(np.array([bad]))


def test_a_uniform_mask_hides_a_phase_and_the_papers_real_mask_does_not():
    """Every masked residue is reached once whatever the phase; a real sum outside [0, 2 pi) tells about the phase."""
    every = np.arange(2**16, dtype=np.uint16)
    for phase in (0.1, 3.0):
        assert np.array_equal(np.sort(to_circle(np.array([phase]), 16) + every), every)
    real = np.linspace(0, 2 * math.pi, 1000, endpoint=False)
    assert not np.array_equal(np.sort(0.1 + real), np.sort(3.0 + real))


def test_cosines_of_the_circle():
    every = np.arange(2**16, dtype=np.uint16)
    assert np.abs(cos_circle(every) - np.cos(from_circle(every))).max() <= 2**-25
    edge = np.arange(-(2**17), 2**17, 3).astype(np.uint32)
    sampled = np.concatenate([fresh_mask(200_000, np.uint32), edge, edge + np.uint32(2**30), edge + np.uint32(2**31)])
    off = np.abs(cos_circle(sampled) - np.cos(from_circle(sampled))).max()
    assert 0.95 * COS_ERROR < off <= COS_ERROR
    assert cos_circle(sampled.reshape(2, -1)).shape == (2, sampled.size // 2)
    assert cos_circle(sampled).dtype == np.float32
