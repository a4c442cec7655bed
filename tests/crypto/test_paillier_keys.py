"""Paillier keys: comparison with the textbook, refused keys, and the group that h generates."""

import struct

import gmpy2
import pytest
from gmpy2 import mpz

from securevfl.crypto.paillier import modulus_proof
from securevfl.crypto.paillier.paillier_keys import PublicKey, SecretKey
from securevfl.crypto.paillier.paillier_product import PaillierScheme
from securevfl.errors import ConfigError, CryptoError
from tests.builders import raises_code

BITS = 2048


@pytest.fixture(scope="module")
def key():
    return SecretKey.generate(BITS)


@pytest.mark.parametrize("bits", [0, 512, 1024, 2040, 2047, 2056, 1 << 20])
def test_sizes_refused(bits):
    with pytest.raises(ConfigError):
        PaillierScheme(bits)


def test_default_is_128_bit():
    assert PaillierScheme().bits == 3072
    assert "128-bit" in PaillierScheme().strength
    assert "112-bit" in PaillierScheme(2048).strength


def test_textbook_decryption(key):
    """Decryption equals L(c^lambda mod n^2) mu mod n of the paper."""
    n, p, q = int(key.public.n), *(int(x) for x in key.parts_for_workers()[:2])
    assert p * q == n
    lam = int(gmpy2.lcm(p - 1, q - 1))
    mu = pow((pow(1 + n, lam, n * n) - 1) // n, -1, n)
    plaintexts = [0, 1, n - 1, n // 2, 12345, -1, n + 7]
    sealed = key.encrypt(plaintexts)
    assert [(pow(c, lam, n * n) - 1) // n * mu % n for c in sealed] == [m % n for m in plaintexts]
    assert key.decrypt(sealed) == [m % n for m in plaintexts]


def test_h_covers_all_randomness_of_the_holder(key):
    """The orders of h mod p^2 and mod q^2 share no factor, so <h> is the product of both halves."""
    p, q, hp, hq = (mpz(x) for x in key.parts_for_workers())
    a, b = p - 1, q - 1
    while (common := gmpy2.gcd(a, q - 1)) > 1:
        a //= common
    assert gmpy2.gcd(a, b) == 1
    assert gmpy2.powmod(hp, a, p * p) == 1
    assert gmpy2.powmod(hq, b, q * q) == 1
    assert key.public.h % (p * p) == hp
    assert key.public.h % (q * q) == hq
    assert key.decrypt([int(key.public.h)]) == [0]
    assert a.bit_length() > BITS // 2 - 64


def test_public_key_round_trip(key):
    again = PublicKey.load(key.public.data, BITS)
    assert (again.n, again.h, again.data) == (key.public.n, key.public.h, key.public.data)
    with raises_code(CryptoError, "SVFL-CRYPTO-KEY"):
        PublicKey.load(key.public.data, 3072)


def raw_public(n, h, roots, bits=BITS, magic=b"SVPK", version=2):
    head = struct.pack(">4sBH", magic, version, bits)
    body = int(n).to_bytes(bits // 8, "big") + int(h).to_bytes(bits // 4, "big")
    return head + body + b"".join(root.to_bytes(bits // 8, "big") for root in roots)


def roots_of(data):
    return [int.from_bytes(data[i : i + BITS // 8], "big") for i in range(7 + 3 * BITS // 8, len(data), BITS // 8)]


def test_unfit_public_keys(key):
    n, h, p = key.public.n, key.public.h, mpz(key.parts_for_workers()[0])
    roots = roots_of(key.public.data)
    prime = gmpy2.prev_prime(mpz(1) << BITS)
    of_prime = [int(gmpy2.powmod(e, gmpy2.invert(prime, prime - 1), prime)) for e in modulus_proof._elements(prime)]
    half = gmpy2.prev_prime(mpz(1) << BITS // 2)
    unfit = {
        "cut short": [key.public.data[:-1], key.public.data + b"\0", key.public.data[: 7 + 3 * BITS // 8]],
        "at least": [b"", b"SVPK"],
        "version 2": [raw_public(n, h, roots, magic=b"XXXX"), raw_public(n, h, roots, version=1)],
        "two large primes": [
            raw_public(n - 1, h, roots),
            raw_public(prime, h, of_prime),
            raw_public(half * half, h, roots),
            raw_public(n >> 1 | 1, h, roots),
            raw_public(3 * ((mpz(1) << BITS) // 3) // 9 * 9, h, roots),
        ],
        "no unit": [raw_public(n, bad, roots) for bad in (0, 1, n * n - 1, n * n, p * 5, n)],
        "not proved": [
            raw_public(n, h, [0] * 8),
            raw_public(n, h, [*roots[:-1], roots[-1] + 1]),
            raw_public(n, h, roots[::-1]),
            raw_public(p * gmpy2.next_prime(n // p), h, roots),
        ],
    }
    for keys in unfit.values():
        for data in keys:
            with raises_code(CryptoError, "SVFL-CRYPTO-KEY"):
                PublicKey.load(data, BITS)
    with pytest.raises(CryptoError):
        PaillierScheme(BITS).evaluator(raw_public(n, 1, roots))


def test_the_proof_is_that_of_this_modulus_alone(key):
    p, q = (mpz(x) for x in key.parts_for_workers()[:2])
    roots = modulus_proof.prove_modulus(p, q)
    assert roots == modulus_proof.prove_modulus(q, p) == roots_of(key.public.data)
    assert modulus_proof.verify_modulus(p * q, roots)
    assert not modulus_proof.verify_modulus(p * q, roots[:-1])
    assert not modulus_proof.verify_modulus(p * gmpy2.next_prime(q), roots)
    elements = modulus_proof._elements(p * q)
    assert len({*elements}) == modulus_proof.PROOF_ROOTS
    assert [pow(z, int(p * q), int(p * q)) for z in roots] == elements


def test_primes_are_checked(key):
    p, q = key.parts_for_workers()[:2]
    composite = next(number for number in range(q + 2, q + 100, 2) if not gmpy2.is_prime(number))  # q + 2 may be none
    for pair in ((p, p), (p, composite), (p, int(gmpy2.next_prime(1 << 1100)))):
        with pytest.raises(CryptoError):
            SecretKey.from_primes(*pair)
    with pytest.raises(ConfigError):
        SecretKey.from_primes(int(gmpy2.next_prime(1 << 500)), int(gmpy2.next_prime(3 << 499)))
