"""Encrypted sums compared with numpy, their headers, and what re-randomisation hides."""

from __future__ import annotations

import gc
import math
import os
import pickle
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from securevfl.crypto.lattice import lattice_sum
from securevfl.crypto.lattice.lattice_sum import LatticeAdder, LatticeSum
from securevfl.errors import CryptoError, KeyMismatch, RangeError
from tests.builders import raises_code

SCHEME = LatticeSum()
HOLDER = SCHEME.sum_keygen()
ADDER = SCHEME.adder(HOLDER.public)
HEADER = 44


def integers(v, shape):
    """Encode a vector with plain integers, to compare."""
    return np.rint(np.asarray(v) * shape.scale)


@settings(max_examples=25)
@given(
    st.sampled_from([1, 2, 100, 4096, 4097, 9000]),
    st.integers(1, 6),
    st.integers(0, 50),
    st.sampled_from([1e-9, 1.0, 3.7, 1e12]),
    st.integers(0, 2**32 - 1),
)
def test_decrypts_exactly_the_sum_of_the_rounded_vectors(m, count, spare, bound, seed):
    vectors = np.random.default_rng(seed).uniform(-bound, bound, (count, m))
    vectors[0, 0], vectors[-1, -1] = bound, -bound
    parts = [ADDER.encrypt(v, bound=bound, terms=count + spare) for v in vectors]
    got = HOLDER.decrypt(ADDER.add(*parts))
    shape = lattice_sum._parse(SCHEME._ring, parts[0], HOLDER._fingerprint)
    assert np.array_equal(got, sum(integers(v, shape) for v in vectors) / shape.scale)
    assert np.abs(got - vectors.sum(axis=0)).max() <= 1e-6 * bound


def test_a_chain_of_additions_is_as_good_as_one():
    vectors = np.random.default_rng(0).uniform(-1, 1, (8, 50))
    parts = [ADDER.encrypt(v, bound=1.0, terms=8) for v in vectors]
    total = parts[0]
    for part in parts[1:]:
        total = ADDER.add(total, part)
    assert np.array_equal(HOLDER.decrypt(total), HOLDER.decrypt(ADDER.add(*parts)))


def test_many_terms():
    v = np.linspace(-1, 1, 30)
    parts = [ADDER.encrypt(v, bound=1.0, terms=1000) for _ in range(40)]
    assert np.abs(HOLDER.decrypt(ADDER.add(*parts)) - 40 * v).max() < 1e-4


def test_noise_stays_inside_the_room_left_for_it():
    """After the largest allowed number of encryptions, the noise is far too small to change the message."""
    part = ADDER.encrypt(np.zeros(10), bound=1.0, terms=1)
    shape = lattice_sum._parse(SCHEME._ring, part, HOLDER._fingerprint)
    for _ in range(shape.noises_allowed - 1):
        part = ADDER.add(part)
    words = HOLDER._key.decrypt(lattice_sum._residues(SCHEME._ring, part, 0))  # as a share of half the modulus
    assert np.abs((words << np.uint64(11)).view(np.int64) / 2.0**10).max() < 2.0 ** (shape.shift - 1) / 16
    with raises_code(CryptoError, "SVFL-CRYPTO-RANGE"):
        ADDER.add(part)


def test_more_vectors_than_agreed():
    parts = [ADDER.encrypt(np.ones(3), bound=1.0, terms=2) for _ in range(3)]
    with raises_code(CryptoError, "SVFL-CRYPTO-RANGE"):
        ADDER.add(*parts)
    both = ADDER.add(*parts[:2])
    with raises_code(CryptoError, "SVFL-CRYPTO-RANGE"):
        ADDER.add(both, parts[2])


@pytest.mark.parametrize("other", [(4, 1.0, 3), (3, 2.0, 3), (3, 1.0, 4)])
def test_vectors_that_do_not_match(other):
    m, bound, terms = other
    with raises_code(CryptoError, "SVFL-CRYPTO-SHAPE"):
        ADDER.add(ADDER.encrypt(np.ones(3), bound=1.0, terms=3), ADDER.encrypt(np.ones(m), bound=bound, terms=terms))


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1.001, -7.0])
def test_values_out_of_range(bad):
    with pytest.raises(RangeError):
        ADDER.encrypt(np.array([0.0, bad]), bound=1.0, terms=2)


@pytest.mark.parametrize(
    ("bound", "terms"),
    [(0.0, 2), (-1.0, 2), (math.nan, 2), (math.inf, 2), (5e-324, 2), (1.0, 0), (1.0, 5000), (1.0, 2**24)],
)
def test_bounds_out_of_range(bound, terms):
    with pytest.raises(RangeError):
        ADDER.encrypt(np.zeros(2), bound=bound, terms=terms)


def test_shapes_and_nothing():
    for shape in ((0,), (2, 2)):
        with pytest.raises(RangeError):
            ADDER.encrypt(np.zeros(shape), bound=1.0, terms=1)
    with pytest.raises(CryptoError):
        ADDER.add()


def test_wrong_key():
    other = SCHEME.sum_keygen()
    part = SCHEME.adder(other.public).encrypt(np.ones(2), bound=1.0, terms=2)
    with pytest.raises(KeyMismatch):
        ADDER.add(part)
    with pytest.raises(KeyMismatch):
        HOLDER.decrypt(part)
    assert other.public != HOLDER.public


def test_encryption_and_addition_are_fresh():
    v = np.ones(5)
    first, second = (ADDER.encrypt(v, bound=1.0, terms=2)[HEADER:] for _ in range(2))
    assert first != second
    part = ADDER.encrypt(v, bound=1.0, terms=2)
    assert ADDER.add(part)[HEADER:] != ADDER.add(part)[HEADER:]


class Linkable(LatticeAdder):
    """Mutant: adds without a fresh encryption of zero."""

    def add(self, *parts):
        ring = self._ring
        total = sum(lattice_sum._residues(ring, part, 0) for part in parts) % ring.column
        shape = lattice_sum._parse(ring, parts[0], self._fingerprint)
        return self._message(lattice_sum._Shape(shape.m, shape.terms, 2, 3, shape.bound), [total])


def test_a_sum_cannot_be_linked_to_its_parts():
    """An observer of [[a]], [[b]] and a total can recognise their sum, unless the total is re-randomised."""

    def linked(adder):
        a, b = (adder.encrypt(np.ones(5), bound=1.0, terms=2) for _ in range(2))
        ring = adder._ring
        halves = [lattice_sum._residues(ring, part, 0)[1] for part in (a, b, adder.add(a, b))]
        return np.array_equal((halves[0] + halves[1]) % np.uint64(ring.primes[0]), halves[2])

    assert linked(Linkable(SCHEME._ring, HOLDER.public))
    assert not linked(ADDER)


def test_holder_shows_nothing():
    assert "secret" in repr(HOLDER)
    with pytest.raises(TypeError):
        pickle.dumps(HOLDER)


def test_altered_messages_raise_and_nothing_crashes():
    rng = np.random.default_rng(1)
    message = ADDER.encrypt(rng.uniform(-1, 1, 20), bound=1.0, terms=3)
    calls = [(ADDER.add, message), (HOLDER.decrypt, message), (SCHEME.adder, HOLDER.public)]
    refused = 0
    for call, good in calls:
        for i in range(300):
            data = bytearray(good)
            kind = i % 5
            if kind == 0:
                del data[rng.integers(len(data)) :]
            elif kind == 1:
                data[rng.integers(HEADER)] = rng.integers(256)
            elif kind == 2:
                data[rng.integers(len(data))] ^= 1 << rng.integers(8)
            elif kind == 3:
                data[HEADER:] = (b"\xff" if i % 2 else b"\0") * (len(data) - HEADER)
            else:
                field = 20 + 4 * int(rng.integers(6))
                data[field : field + 4] = struct.pack("<I", int(rng.choice([0, 1, 4, 2**24, 2**31, 2**32 - 1])))
            try:
                call(bytes(data))
            except CryptoError:
                refused += 1
    assert refused > 300


def test_memory_and_descriptors_stay_flat():
    def resident():
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    v = np.ones(4096)

    def rounds(count):
        for _ in range(count):
            HOLDER.decrypt(ADDER.add(ADDER.encrypt(v, bound=1.0, terms=2), ADDER.encrypt(v, bound=1.0, terms=2)))

    def grown(count):
        memory = resident()
        rounds(count)
        return resident() - memory

    rounds(30)
    gc.collect()  # clean up after other tests
    descriptors = len(os.listdir("/proc/self/fd"))
    assert any(grown(100) < 2**20 for _ in range(4))  # a leak grows each time, but an allocator stops growing
    assert len(os.listdir("/proc/self/fd")) <= descriptors
