"""Polynomials in and out of SEAL, arithmetic on residues, and the table of secure parameters."""

from __future__ import annotations

import math

import numpy as np
import pytest
import tenseal.sealapi as seal
from hypothesis import given
from hypothesis import strategies as st

from securevfl.crypto.lattice.layout import Layout, choose
from securevfl.crypto.lattice.polynomial_ring import (
    Ring,
    dither_residues,
    fraction_of_modulus,
    mulmod,
    uniform_residues,
)
from securevfl.crypto.prg import random_words
from securevfl.errors import ConfigError

PRIMES = [70368743587841, 70368743669761]


@pytest.fixture(scope="module")
def ring():
    return Ring(4096, (46, 46, 17))


@pytest.mark.parametrize(("degree", "bits"), [(4096, (46, 46, 18)), (2048, (38, 17)), (1024, (20,)), (3000, (30, 20))])
def test_parameters_below_128_bits_are_refused(degree, bits):
    with pytest.raises(ConfigError):
        Ring(degree, bits)


@pytest.mark.parametrize("bits", [1, 20, 44])
def test_integer_polynomials_are_exact(ring, bits):
    rng = np.random.default_rng(bits)
    c = np.rint(rng.uniform(-(2.0**bits), 2.0**bits, (3, 4096)))
    for row, plain in zip(c, ring.encode(c), strict=True):
        values = ring.io.plain_residues(plain, (2, 4096))
        cipher = ring.io.ciphertext(ring.level, np.stack([values, values]), ntt=True)
        got = ring.first_coefficients(cipher, np.arange(4096))
        for i, p in enumerate(ring.primes):
            assert np.array_equal(got[i], (row.astype(np.int64) % p).astype(np.uint64))
        assert np.abs(ring.decode(plain) - row).max() < 0.5


def test_product_is_negacyclic(ring):
    a, b = np.zeros((1, 4096)), np.zeros((1, 4096))
    a[0, [0, 4095]], b[0, [3, 4000]] = [7, -2], [5, 11]
    secret = seal.KeyGenerator(ring.context).secret_key()
    cipher, plain = seal.Ciphertext(), seal.Plaintext()
    seal.Encryptor(ring.context, secret).encrypt_symmetric(ring.encode(a * 2.0**40)[0], cipher)
    ring.evaluator.multiply_plain_inplace(cipher, ring.encode(b)[0])
    seal.Decryptor(ring.context, secret).decrypt(cipher, plain)
    got = np.rint(ring.decode(plain) / 2.0**40)
    expected = np.zeros(4096)
    expected[[3, 4000]] = [35, 77]
    expected[[2, 3999]] += [10, 22]  # x^4096 = -1
    assert np.array_equal(got, expected)


def test_ciphertext_from_coefficients_and_ntt_values(ring):
    first, second = uniform_residues(ring.primes, 4096), uniform_residues(ring.primes, 4096)
    second[:, 5] = 0
    cipher = ring.ciphertext(ring.level, first, second)
    assert np.array_equal(ring.second_polynomial(cipher), second)
    assert np.array_equal(ring.first_coefficients(cipher, np.arange(4096)), first)


@given(st.lists(st.integers(0, 2**54 - 34), min_size=1, max_size=8), st.integers(0, 2**54), st.sampled_from(PRIMES))
def test_mulmod(values, b, p):
    a = np.array([v % p for v in values], np.uint64)
    assert mulmod(a, b % p, p).tolist() == [int(x) * (b % p) % p for x in a]


def test_mulmod_at_the_largest_prime():
    p = 18014398509309953
    a = np.array([0, 1, p - 1, p // 2], np.uint64)
    assert mulmod(a, p - 1, p).tolist() == [int(x) * (p - 1) % p for x in a]


@given(st.integers(0, PRIMES[0] * PRIMES[1] - 1))
def test_fraction_of_modulus(x):
    residues = np.array([[x % p] for p in PRIMES], np.uint64)
    gap = abs(fraction_of_modulus(residues, PRIMES)[0] - x / math.prod(PRIMES))
    assert min(gap, 1 - gap) < 1e-14


def test_uniform_residues_fill_their_range():
    for p in (3, 5, 2**46 - 21):
        got = uniform_residues([p], 30000)[0].astype(np.float64)
        counts = np.bincount((got * min(p, 15) / p).astype(int), minlength=min(p, 15))
        expected = 30000 / len(counts)
        assert len(counts) == min(p, 15)
        assert ((counts - expected) ** 2 / expected).sum() < 80  # 14 degrees at most: once in 1e10


def test_random_words_are_fresh():
    assert not set(random_words(100).tolist()) & set(random_words(100).tolist())


@pytest.mark.parametrize("bits", [5, 24, 32, 33, 67])
def test_dither_is_uniform_below_its_size_and_one_integer_under_all_primes(bits):
    residues = dither_residues(PRIMES, bits, 4000)
    q = math.prod(PRIMES)
    terms = [q // p * pow(q // p, -1, p) for p in PRIMES]
    values = [sum(int(r) * t for r, t in zip(column, terms, strict=True)) % q for column in residues.T]
    assert max(values) < 2**bits
    counts = np.bincount([v * 8 >> bits for v in values], minlength=8)
    assert ((counts - 500) ** 2 / 500).sum() < 60  # 7 degrees: once in 1e9


@given(
    st.sampled_from([64, 256]),
    st.integers(1, 300),
    st.integers(1, 5),
    st.integers(1, 70),
    st.integers(0, 2**32 - 1),
)
def test_layout_puts_every_inner_product_where_it_says(degree, n, c, d, seed):
    rng = np.random.default_rng(seed)
    g, J = rng.integers(-9, 10, (n, c)).astype(float), rng.integers(-9, 10, (n, d)).astype(float)
    layout = choose(degree, n, c, max(1, d + int(rng.integers(-d, 9))))
    assert isinstance(layout, Layout)
    assert layout.p * layout.columns * layout.s <= degree
    messages, plains = layout.messages(g), layout.plaintexts(J)
    assert len(plains) == layout.column_blocks(d)
    expected = J.T @ g
    for P, message in enumerate(messages):
        for F, plain in enumerate(plains):
            product = sum(np.convolve(a, b) for a, b in zip(message, plain, strict=True))
            product = product[:degree] - np.append(product[degree:], 0)
            columns = slice(F * layout.columns, (F + 1) * layout.columns)
            outputs = slice(P * layout.p, (P + 1) * layout.p)
            assert np.array_equal(product[layout.wanted(d, F, P)], expected[columns, outputs].T.ravel())


@pytest.mark.parametrize(("n", "d"), [(24036, 113), (4096, 1500), (256, 100)])
def test_more_openings_make_for_fewer_replies(n, d):
    def ciphertexts(layout, openings):
        return layout.sample_blocks + openings * layout.column_blocks(d)

    once, often = choose(4096, n, 1, d), choose(4096, n, 1, d, 10)
    assert often.column_blocks(d) < once.column_blocks(d)
    assert ciphertexts(often, 10) < 0.95 * ciphertexts(once, 10)
    assert ciphertexts(once, 1) < ciphertexts(often, 1)
