"""Polynomial arithmetic with SEAL: products, keys for a given polynomial, numbers from residues, secure parameters."""

from __future__ import annotations

import math
import os

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from securevfl.crypto.kernel.ring_layout import RingLayout
from securevfl.crypto.lattice.lattice_gradient import LatticeGradientParameters, dither
from securevfl.crypto.lattice.polynomial_ring import SealRing, SealSecretKey, uniform
from securevfl.crypto.prg import Prg, random_words
from securevfl.errors import ConfigError
from tests.builders import raises_code

RING = SealRing((46, 46, 17), 40)
WHOLE = RingLayout(1, 1, 1, 1)  # every coefficient belongs to a column


@pytest.mark.parametrize("sizes", [(46, 46, 18), (55, 38, 17), (60, 50)])
def test_parameters_below_128_bits_are_refused(sizes):
    with pytest.raises(ConfigError):
        SealRing(sizes, 40)


def test_a_plaintext_modulus_that_seal_does_not_take_is_refused():
    with raises_code(ConfigError, "SVFL-CRYPTO-PARAMETERS"):
        SealRing((46, 46, 17), 60)


def answered(product, columns=4096):
    """Encrypt a message, apply `product`, and decrypt the answer, which has a mask of zeros."""
    second = RING.second(Prg(os.urandom(32), "a"))
    secret, first = RING.keypair(second)
    key, encryptor = SealSecretKey(RING, secret), RING.encryptor(first, second)
    mask = np.zeros((2, columns, 1), np.uint64)
    reply = RING.answer(WHOLE, product(key), RING.zero(encryptor), mask)
    return key.reveal(WHOLE, (columns, 1), memoryview(reply))[:, 0]


def test_product_is_negacyclic_modulo_t():
    a, b = np.zeros((4096, 1), np.uint64), np.zeros(4096)
    a[[0, 4095], 0], b[[3, 4000]] = [7, 2**40 - 2], [5, -11]
    expected = np.zeros(4096, int)
    expected[[3, 4000]] = [35, -77]
    expected[[2, 3999]] += [10, -22]  # x^4096 = -1

    def product(key):
        return RING.inner([RING.unsealed(WHOLE, 1, key.seal(WHOLE, a))], [RING.plaintext(WHOLE, b)])

    assert np.array_equal(answered(product), (expected % 2**40).astype(np.uint64))


def test_an_encryption_of_zero_alone_opens_to_zero():
    assert not answered(lambda key: None).any()


def test_only_existing_outputs_are_sent():
    layout, message = RingLayout(1, 3, 4, 1), np.arange(1024 * 3, dtype=np.uint64).reshape(1024, 3)
    secret, _ = RING.keypair(RING.second(Prg(os.urandom(32), "a")))
    key = SealSecretKey(RING, secret)
    sealed = key.seal(layout, message)
    assert len(sealed) == RING.sealed_size(layout, 3) < RING.sealed_size(layout, 4)
    cipher = RING.unsealed(layout, 3, sealed)
    RING.evaluator.transform_from_ntt_inplace(cipher)
    got = key.decrypt(RING.io.residues(cipher, RING.shape)).reshape(1024, 4)
    assert np.array_equal(got[:, :3], message)


@given(st.integers(0, RING.q - 1))
def test_numbers_are_put_together_from_residues(x):
    residues = np.array([[x % p] for p in RING.primes], np.uint64)
    assert RING.numbers(residues).tolist() == [x]
    assert RING.nearest(residues).tolist() == [(2 * 2**40 * x + RING.q) // (2 * RING.q) % 2**40]


@pytest.mark.parametrize("p", [3, 5, 2**46 - 21, 2**54 - 33])
def test_uniform_residues_fill_their_range(p):
    got = uniform(Prg.fresh("test"), [p], 30000)[0].astype(np.float64)
    counts = np.bincount((got * min(p, 15) / p).astype(int), minlength=min(p, 15))
    expected = 30000 / len(counts)
    assert len(counts) == min(p, 15)
    assert ((counts - expected) ** 2 / expected).sum() < 80  # at most 14 degrees of freedom: exceeded once in 1e10


def test_random_words_are_fresh():
    assert not set(random_words(100).tolist()) & set(random_words(100).tolist())


@pytest.mark.parametrize("bits", [24, 48, 72])
def test_dithers_are_three_uniform_integers_less_their_mean(bits):
    """A dither is one integer modulo all primes, with a standard deviation of half of 2^bits and a kurtosis of 2.6."""
    residues = dither(Prg.fresh("test"), RING.primes, bits, (4000,))
    values = [int(x) - RING.q if x > RING.q // 2 else int(x) for x in RING.numbers(residues)]
    assert max(abs(x) for x in values) <= 3 * 2 ** (bits - 1)
    unit = np.array([x / 2**bits for x in values])
    assert unit.std() == pytest.approx(0.5, rel=6.5 * 0.63 / math.sqrt(4000))
    assert abs(unit.mean()) < 6.2 * 0.5 / math.sqrt(4000)
    assert len(set(values)) > 3900


@pytest.mark.parametrize(("n", "d"), [(24036, 113), (4096, 1500), (256, 100)])
def test_more_openings_make_for_fewer_replies(n, d):
    def ciphertexts(layout, openings):
        return layout.sample_blocks + openings * layout.column_blocks(d)

    parameters = LatticeGradientParameters()
    once, often = parameters.choose(n, 1, d, 1), parameters.choose(n, 1, d, 10)
    assert often.column_blocks(d) < once.column_blocks(d)
    assert ciphertexts(often, 10) < 0.95 * ciphertexts(once, 10)
    assert ciphertexts(once, 1) < ciphertexts(often, 1)
