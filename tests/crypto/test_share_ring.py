"""Arithmetic modulo 2^L against Python's integers."""

from __future__ import annotations

import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from securevfl.crypto.prg import Prg
from securevfl.crypto.share_ring import IncrementalPacking, IntegerFactor, ShareRing, narrowest_integers
from securevfl.errors import ConfigError, RangeError
from tests.builders import raises_code


def words(ring, shape):
    return np.frombuffer(os.urandom(8 * int(np.prod(shape))), np.uint64).reshape(shape) & ring.mask


@settings(max_examples=60)
@given(st.integers(8, 64), st.integers(1, 40), st.integers(1, 9), st.integers(1, 3), st.integers(1, 2**14))
def test_products_are_those_of_integers(bits, n, d, c, largest):
    ring = ShareRing(bits)
    A = np.random.default_rng(n * d).integers(-largest, largest, (n, d), endpoint=True)
    A[0, 0] = largest
    factor = IntegerFactor(ring, A)
    for left, right, got in (
        (A, V := words(ring, (d, c)), factor.times(V)),
        (A.T, U := words(ring, (n, c)), factor.transpose_times(U)),
    ):
        slow = [
            [sum(a * int(b) for a, b in zip(row, column, strict=True)) % 2**bits for column in right.T]
            for row in left.tolist()
        ]
        assert got.tolist() == slow


def test_products_of_the_largest_words_and_entries_are_exact():
    """At the bound of the limbs (parts of l bits), n max|A| 2^l is just below 2^53, and all terms have one sign."""
    ring = ShareRing(64)
    for n in (4095, 4096, 100_000):
        A = np.full((n, 1), -2047)
        top = np.full((n, 1), 2**64 - 1, np.uint64)
        assert int(IntegerFactor(ring, A).transpose_times(top)[0, 0]) == n * 2047 % 2**64


def test_entries_too_large_for_their_size_are_refused():
    with pytest.raises(RangeError):
        IntegerFactor(ShareRing(56), np.full((1000, 2), 2**40))
    for A in (np.zeros((2, 2)), np.zeros(3, int), np.zeros((0, 2), int)):
        with pytest.raises(RangeError):
            IntegerFactor(ShareRing(56), A)


@given(st.integers(1, 64), st.integers(0, 30))
def test_packing_is_lossless_and_short(bits, count):
    ring = ShareRing(bits)
    values = words(ring, (count, 2))
    data = ring.pack(values)
    assert len(data) == ShareRing(bits).size(2 * count)
    short = bits < 16 and bits % 8
    assert len(data) == (-(-2 * count * bits // 8) if short else 2 * count * -(-bits // 8))
    np.testing.assert_array_equal(ring.unpack(data, (count, 2)), values)
    if not short:
        packing = IncrementalPacking(ring, (count, 2))
        for column in (1, 0):
            packing.put((slice(None), slice(column, column + 1)), values[:, column : column + 1])
        assert packing.packed() == data
    picked = np.arange(count) % 2
    np.testing.assert_array_equal(
        ring.unpack(data, (count, 2), (np.arange(count), picked)), values[np.arange(count), picked]
    )
    with raises_code(RangeError, "SVFL-PROTOCOL-SIZE"):
        ring.unpack(data + b"\0", (count, 2))


def test_words_beyond_the_ring_are_refused():
    ring = ShareRing(41)
    data = ShareRing(48).pack(np.full(3, 2**41, np.uint64))
    with raises_code(RangeError, "SVFL-PROTOCOL-VALUES"):
        ring.unpack(data, (3,))


@given(st.integers(8, 64), st.lists(st.integers(-(2**62), 2**62), min_size=1))
def test_signed_is_the_nearest_representative(bits, values):
    ring = ShareRing(bits)
    expected = [(value + 2 ** (bits - 1)) % 2**bits - 2 ** (bits - 1) for value in values]
    assert ring.signed(ring.of(np.array(values))).tolist() == expected


def test_uniform_words_fill_the_ring():
    ring = ShareRing(41)
    values = ring.uniform(Prg.fresh("test"), 8000)
    assert (values <= ring.mask).all()
    for part in (values >> np.uint64(37), values & np.uint64(15)):
        counts = np.bincount(part.astype(int), minlength=16)
        assert ((counts - 500) ** 2 / 500).sum() < 80  # 15 degrees of freedom: exceeded once in 1e10


@pytest.mark.parametrize("bits", [0, 65])
def test_rings_that_words_do_not_hold_are_refused(bits):
    with pytest.raises(ConfigError):
        ShareRing(bits)


@pytest.mark.parametrize("bits", [8, 16, 32])
@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("beyond", [-1, 0, 1])
@pytest.mark.parametrize("other", [0, 5, -5])
def test_narrow_integers_are_the_same_numbers(bits: int, sign: int, beyond: int, other: int) -> None:
    edge = sign * (2 ** (bits - 1) + beyond)
    integers = np.array([[other, edge], [edge, other]])
    narrow = narrowest_integers(integers)
    assert narrow.tolist() == integers.tolist()
    assert narrow.dtype == next((dtype for dtype in (np.int16, np.int32) if fits(edge, dtype)), np.int64)


def fits(value: int, dtype: type[np.signedinteger]) -> bool:
    return np.iinfo(dtype).min <= value <= np.iinfo(dtype).max
