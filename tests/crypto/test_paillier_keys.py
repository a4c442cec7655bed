"""Paillier keys: the textbook as oracle, what is refused, and what h must generate."""

import struct

import gmpy2
import pytest
from gmpy2 import mpz

from securevfl.crypto.paillier import PaillierScheme
from securevfl.crypto.paillier_keys import PublicKey, SecretKey
from securevfl.errors import ConfigError, CryptoError

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
    """Against L(c^lambda mod n^2) mu mod n of the paper."""
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
    with pytest.raises(CryptoError, match="2048"):
        PublicKey.load(key.public.data, 3072)


def raw_public(n, h, bits=BITS, magic=b"SVPK", version=1):
    head = struct.pack(">4sBH", magic, version, bits)
    return head + int(n).to_bytes(bits // 8, "big") + int(h).to_bytes(bits // 4, "big")


def test_unfit_public_keys(key):
    n, h, p = key.public.n, key.public.h, mpz(key.parts_for_workers()[0])
    prime = gmpy2.prev_prime(mpz(1) << BITS)
    half = gmpy2.prev_prime(mpz(1) << BITS // 2)
    unfit = [
        key.public.data[:-1],
        key.public.data + b"\0",
        b"",
        b"SVPK",
        raw_public(n, h, magic=b"XXXX"),
        raw_public(n, h, version=9),
        raw_public(n - 1, h),
        raw_public(prime, h),
        raw_public(half * half, h),
        raw_public(n >> 1 | 1, h),
        raw_public(3 * ((mpz(1) << BITS) // 3) // 9 * 9, h),
        raw_public(n, 0),
        raw_public(n, 1),
        raw_public(n, n * n - 1),
        raw_public(n, n * n),
        raw_public(n, p * 5),
        raw_public(n, n),
    ]
    for data in unfit:
        with pytest.raises(CryptoError):
            PublicKey.load(data, BITS)
    with pytest.raises(CryptoError):
        PaillierScheme(BITS).evaluator(raw_public(n, 1))


def test_primes_are_checked(key):
    p, q = key.parts_for_workers()[:2]
    for pair in ((p, p), (p, q + 2), (p, int(gmpy2.next_prime(1 << 1100)))):
        with pytest.raises(CryptoError):
            SecretKey.from_primes(*pair)
    with pytest.raises(ConfigError):
        SecretKey.from_primes(int(gmpy2.next_prime(1 << 500)), int(gmpy2.next_prime(3 << 499)))
