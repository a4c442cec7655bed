"""Paillier keys: generation, encryption, decryption, checks of received keys, and their format.

A secret key consists of two primes p and q, and the public modulus is n = p * q. A plaintext m modulo n is encrypted as
(1 + n)^m * r modulo n^2, with random r that is an n-th power (Paillier 1999). Multiplying ciphertexts adds plaintexts.

Computing n-th powers is slow, so r is a power of a fixed h in the key, which is an n-th power itself. Let b = q - 1,
and let a be p - 1 without all factors that it shares with q - 1. h is chosen so that its order divides a modulo p^2,
and b modulo q^2. The holder computes powers of h modulo p^2 and q^2 separately, with tables for a fixed base and
exponents that are uniform modulo a and b. Since a and b have no common factor, r is exactly uniform over all powers of
h. Other parties use r = h^s with a random s that has half as many bits as n. That hides a plaintext from everyone
except the holder (Damgard, Jurik, Nielsen 2010, section 4.2); sums use it. Values that must be hidden from the holder
itself are re-randomised with a random n-th power instead.

A holder may send a bad key. Receivers check the size of n, that it has no factor below 2^16, and gcd(n, phi(n)) = 1 by
a proof in the key. They do not check that n has just two primes, that p - 1 has large factors, and that h has a large
order. A key that is weak in these respects reveals data that is encrypted under it to parties other than the holder;
but the holder could just as well show them its secret key.

Nothing here runs in constant time, so others must not be able to measure single operations of the holder.
"""

from __future__ import annotations

import math
import secrets
import struct
from collections.abc import Iterable, Sequence
from functools import lru_cache
from hashlib import sha256

import gmpy2
from cryptography.hazmat.primitives.asymmetric import rsa
from gmpy2 import mpz

from securevfl.crypto.paillier.fixed_base import FixedBase
from securevfl.crypto.paillier.modulus_proof import PROOF_ROOTS, prove_modulus, verify_modulus
from securevfl.crypto.secret import Secret
from securevfl.errors import ConfigError, CryptoError, KeySizeError

MIN_PAILLIER_BITS = 2048
"""Smallest key that is accepted (112-bit security)."""

_MAGIC = b"SVPK"
_VERSION = 2
_HEAD = struct.Struct(">4sBH")


def check_bits(bits: int) -> int:
    """Return the size of a key if it is acceptable.

    Args:
        bits: the number of bits of n.

    Returns:
        The same number.

    Raises:
        KeySizeError: if the number is too small.
        ConfigError: if the number is too large or not a multiple of 16.
    """
    if bits < MIN_PAILLIER_BITS:
        raise KeySizeError(
            f"a Paillier key of {bits} bits is shorter than {MIN_PAILLIER_BITS} bits",
            "use 3072 bits (128-bit security)",
            code="SVFL-JOB-KEY-SIZE",
        )
    if bits > 16384 or bits % 16:
        raise ConfigError(
            f"a Paillier key cannot have {bits} bits",
            "use 3072 bits, or another multiple of 16 up to 16384",
            code="SVFL-CRYPTO-PARAMETERS",
        )
    return bits


class PublicKey:
    """A public key.

    Args:
        n: the modulus.
        h: an n-th power modulo n^2, whose powers randomise ciphertexts.
        roots: the proof that gcd(n, phi(n)) = 1 (modulus_proof.py).

    Attributes:
        square: n^2, the modulus of ciphertexts.
        size: number of bytes of a ciphertext.
        data: the key as bytes.
        fingerprint: digest that identifies the key.
    """

    def __init__(self, n: int, h: int, roots: Sequence[int] = ()) -> None:
        self.n = mpz(n)
        self.square = self.n * self.n
        self.h = mpz(h)
        self.bits = self.n.bit_length()
        self.size = self.bits // 4
        width = self.bits // 8
        body = int(n).to_bytes(width, "big") + int(h).to_bytes(self.size, "big")
        proof = b"".join(root.to_bytes(width, "big") for root in roots)
        self.data = _HEAD.pack(_MAGIC, _VERSION, self.bits) + body + proof
        self.fingerprint = sha256(self.data).digest()[:16]

    @classmethod
    def load(cls, data: bytes, bits: int) -> PublicKey:
        """Read a key from bytes.

        A modulus n is refused if it is even, a prime, a perfect power or of another size, or if it has a factor below
        2^16 or a common factor with phi(n). A base h is refused if it is 1, -1 or not a unit modulo n^2.

        Args:
            data: the bytes.
            bits: the expected number of bits of n.

        Returns:
            The key.

        Raises:
            CryptoError: if the bytes are malformed or the key is refused.
        """
        if len(data) < _HEAD.size:
            raise CryptoError(
                f"received {len(data)} bytes, which are too short for a Paillier public key", code="SVFL-CRYPTO-KEY"
            )
        magic, version, size = _HEAD.unpack_from(data)
        if magic != _MAGIC or version != _VERSION:
            raise CryptoError(
                f"the bytes are not a Paillier public key of version {_VERSION}",
                "run the same version of securevfl on both sides",
                code="SVFL-CRYPTO-KEY",
            )
        if size != bits:
            raise CryptoError(
                f"the holder's key has {size} bits, but this job requires {bits}",
                "set the same number of bits at all parties",
                code="SVFL-CRYPTO-KEY",
            )
        width = bits // 8
        expected = _HEAD.size + (3 + PROOF_ROOTS) * width
        if len(data) != expected:
            raise CryptoError(
                f"a key of {bits} bits has {len(data)} bytes instead of {expected}", code="SVFL-CRYPTO-KEY"
            )
        parts = [int.from_bytes(data[i : i + width], "big") for i in range(_HEAD.size, expected, width)]
        n, h, roots = mpz(parts[0]), mpz(parts[1] << 8 * width | parts[2]), parts[3:]
        if n.bit_length() != bits or gmpy2.gcd(n, _small_primes()) != 1 or gmpy2.is_power(n) or gmpy2.is_prime(n):
            raise CryptoError(
                f"the modulus is not a product of two large primes of {bits} bits in all",
                "ask for a new key",
                code="SVFL-CRYPTO-KEY",
            )
        if not verify_modulus(n, roots):
            raise CryptoError(
                "the proof that the modulus has no common factor with phi(n) is invalid",
                "ask for a new key",
                code="SVFL-CRYPTO-KEY",
            )
        if not 1 < h < n * n - 1 or gmpy2.gcd(h, n) != 1:
            raise CryptoError(
                "the base h of the key is 1, -1 or not a unit mod n^2", "ask for a new key", code="SVFL-CRYPTO-KEY"
            )
        return cls(int(n), int(h), roots)

    def shift(self, plaintext: int) -> mpz:
        """Return (1 + n)^plaintext mod n^2. Multiplying a ciphertext by it adds `plaintext` to its plaintext."""
        return (1 + plaintext % self.n * self.n) % self.square

    def check_units(self, values: Iterable[int]) -> list[mpz]:
        """Return received numbers as ciphertexts. Raise CryptoError unless all are in (0, n^2) and coprime to n."""
        units = [mpz(v) for v in values]
        product = mpz(1)
        for unit in units:
            if not 0 < unit < self.square:
                raise CryptoError("a ciphertext is not in (0, n^2)", code="SVFL-CRYPTO-CIPHERTEXT")
            product = product * unit % self.n
        if gmpy2.gcd(product, self.n) != 1:
            raise CryptoError("a ciphertext has a common factor with n", code="SVFL-CRYPTO-CIPHERTEXT")
        return units


@lru_cache(maxsize=1)
def _small_primes() -> mpz:
    return gmpy2.primorial(1 << 16)


@lru_cache(maxsize=4)
def noise_table(h: int, square: int, bits: int, window: int) -> FixedBase:
    """Return the table for powers of h with exponents of `bits` bits; a process computes it once for each key."""
    return FixedBase(h, square, bits, window)


def noise(public: PublicKey, bits: int, window: int) -> mpz:
    """Return h^s for a new random s of `bits` bits, which is an encryption of zero."""
    return noise_table(int(public.h), int(public.square), bits, window).power(secrets.randbits(bits))


class SecretKey(Secret):
    """A secret key, which encrypts and decrypts modulo p^2 and q^2 separately (Chinese remainder theorem).

    Args:
        p: the first prime.
        q: the second prime.
        hp: h modulo p^2.
        hq: h modulo q^2.

    Attributes:
        public: the public key.
    """

    __slots__ = (
        "_a",
        "_b",
        "_hp",
        "_hq",
        "_invert",
        "_p",
        "_p2",
        "_q",
        "_q2",
        "_scale_p",
        "_scale_q",
        "_tables",
        "public",
    )

    def __init__(self, p: int, q: int, hp: int, hq: int) -> None:
        self._p, self._q = p, q = mpz(p), mpz(q)
        self._p2, self._q2 = p * p, q * q
        self._hp, self._hq = mpz(hp), mpz(hq)
        self._a, self._b = _coprime_part(p - 1, q - 1), q - 1
        self._invert = gmpy2.invert(self._q2, self._p2)
        # Decryption modulo p computes (c^(p - 1) - 1) / p, which is -q * m modulo p, and divides by -q; same for q.
        self._scale_p, self._scale_q = gmpy2.invert(-q, p), gmpy2.invert(-p, q)
        self._tables: tuple[FixedBase, FixedBase] | None = None
        self.public = PublicKey(int(p * q), int(self._join(self._hp, self._hq)), prove_modulus(p, q))

    @classmethod
    def generate(cls, bits: int) -> SecretKey:
        """Generate a new key with primes of RSA keys from `cryptography`. Raise KeySizeError below 2048 bits."""
        numbers = rsa.generate_private_key(public_exponent=65537, key_size=check_bits(bits)).private_numbers()
        return cls.from_primes(numbers.p, numbers.q)

    @classmethod
    def from_primes(cls, p: int, q: int) -> SecretKey:
        """Return the key of two given primes, with a new random h.

        Args:
            p: the first prime.
            q: the second prime.

        Returns:
            The key.

        Raises:
            CryptoError: if the numbers are not two different primes of equal length, or n and phi(n) share a factor.
        """
        same_length = p != q and p.bit_length() == q.bit_length()
        if not (same_length and gmpy2.is_prime(p) and gmpy2.is_prime(q)) or math.gcd(p * q, (p - 1) * (q - 1)) != 1:
            raise CryptoError(
                "the numbers are not two different primes of equal length with gcd(pq, (p-1)(q-1)) = 1",
                "choose other primes",
                code="SVFL-CRYPTO-KEY",
            )
        check_bits((p * q).bit_length())
        while True:
            x = secrets.randbelow(p * q)
            hp = gmpy2.powmod(x, p * ((p - 1) // _coprime_part(p - 1, q - 1)), p * p)
            hq = gmpy2.powmod(x, q, q * q)
            if hp not in (0, 1) and hq not in (0, 1, q * q - 1):
                return cls(p, q, int(hp), int(hq))

    def parts_for_workers(self) -> tuple[int, int, int, int]:
        """Return the secret numbers of this key, for worker processes of the same party only."""
        return int(self._p), int(self._q), int(self._hp), int(self._hq)

    def _join(self, x: mpz, y: mpz) -> mpz:
        """Return the number modulo n^2 that is x modulo p^2 and y modulo q^2."""
        return y + self._q2 * ((x - y) * self._invert % self._p2)

    def encrypt(self, plaintexts: Sequence[int]) -> list[int]:
        """Encrypt integers modulo n, each with new randomness."""
        if self._tables is None:
            self._tables = (
                FixedBase(int(self._hp), int(self._p2), self._a.bit_length()),
                FixedBase(int(self._hq), int(self._q2), self._b.bit_length()),
            )
        table_p, table_q = self._tables
        n, a, b = self.public.n, int(self._a), int(self._b)
        sealed = []
        for m in plaintexts:
            r = self._join(table_p.power(secrets.randbelow(a)), table_q.power(secrets.randbelow(b)))
            sealed.append(int((r + r % n * (m % n) % n * n) % self.public.square))
        return sealed

    def decrypt(self, ciphertexts: Sequence[int]) -> list[int]:
        """Decrypt ciphertexts to plaintexts in [0, n)."""
        p, q, p2, q2 = self._p, self._q, self._p2, self._q2
        q_inverse = gmpy2.invert(q, p)
        plaintexts = []
        for c in ciphertexts:
            x = (gmpy2.powmod(c % p2, p - 1, p2) - 1) // p * self._scale_p % p
            y = (gmpy2.powmod(c % q2, q - 1, q2) - 1) // q * self._scale_q % q
            plaintexts.append(int(y + q * ((x - y) * q_inverse % p)))
        return plaintexts


def _coprime_part(x: int, y: int) -> mpz:
    """Return x divided by all prime factors, with their powers, that it shares with y."""
    coprime = mpz(x)
    while (common := gmpy2.gcd(coprime, y)) > 1:
        coprime //= common
    return coprime
