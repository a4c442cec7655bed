"""Paillier keys (Paillier 1999, g = 1 + n): what they compute, how they are checked, how they are written.

Randomness. Let a be p-1 stripped of every factor it shares with q-1, and b = q-1. The key holds h, an n-th residue
mod n^2 made from a random element so that its order divides a mod p^2 and b mod q^2. a and b share no factor, so the
group <h> is the product of its two halves: the holder, who encrypts by combs mod p^2 and q^2 with exponents uniform
mod a and mod b, draws exactly uniform elements of <h>. Others encrypt by h^s, s of |n|/2 bits, which hides a plaintext
from everyone but the holder (Damgard, Jurik, Nielsen 2010, section 4.2); that is for sums. What must be hidden from the
holder itself is re-randomised without h.

What a holder may choose. n is checked for size, for factors below 2^16, and for gcd(n, phi(n)) = 1 by the proof that
comes with it. That n has two primes, that p-1 is not smooth and that h has a large order is not checked: a key that is
weak so opens what is encrypted under it to more eyes than the holder's, as would a holder that shows its key.

Nothing here runs in constant time: the holder must not let strangers measure single operations.
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

_MAGIC = b"SVPK"
_VERSION = 2
_HEAD = struct.Struct(">4sBH")


def check_bits(bits: int) -> int:
    """`bits` itself. ConfigError if it is too weak, absurd, or not whole bytes."""
    if bits < MIN_PAILLIER_BITS:
        raise KeySizeError(
            f"a Paillier key needs at least {MIN_PAILLIER_BITS} bits, got {bits}; use 3072 (128-bit security)"
        )
    if bits > 16384 or bits % 16:
        raise ConfigError(f"a Paillier key has at most 16384 bits, a multiple of 16, got {bits}; use 3072")
    return bits


class PublicKey:
    """n, h and the roots that prove gcd(n, phi(n)) = 1. Its bytes are what others may have."""

    def __init__(self, n: int, h: int, roots: Sequence[int] = ()) -> None:
        self.n = mpz(n)
        self.square = self.n * self.n
        self.h = mpz(h)
        self.bits = self.n.bit_length()
        self.size = self.bits // 4  # bytes of a ciphertext
        width = self.bits // 8
        body = int(n).to_bytes(width, "big") + int(h).to_bytes(self.size, "big")
        proof = b"".join(root.to_bytes(width, "big") for root in roots)
        self.data = _HEAD.pack(_MAGIC, _VERSION, self.bits) + body + proof
        self.fingerprint = sha256(self.data).digest()[:16]

    @classmethod
    def load(cls, data: bytes, bits: int) -> PublicKey:
        """Read a key from bytes, for a scheme of `bits`. CryptoError if they are malformed or the key is none.

        Refuses an n that is even, of another size, prime, a perfect power, has a small factor or shares one with
        phi(n), and an h that is no unit or is 1 or -1.
        """
        if len(data) < _HEAD.size:
            raise CryptoError(f"a Paillier public key has at least {_HEAD.size} bytes, got {len(data)}")
        magic, version, size = _HEAD.unpack_from(data)
        if magic != _MAGIC or version != _VERSION:
            raise CryptoError(f"not a Paillier public key of version {_VERSION}; both sides must run the same release")
        if size != bits:
            raise CryptoError(
                f"the holder's key has {size} bits, this job asks for {bits}; set bits alike on all sides"
            )
        width = bits // 8
        expected = _HEAD.size + (3 + PROOF_ROOTS) * width
        if len(data) != expected:
            raise CryptoError(f"a {bits}-bit key has {expected} bytes, got {len(data)}; cut short?")
        parts = [int.from_bytes(data[i : i + width], "big") for i in range(_HEAD.size, expected, width)]
        n, h, roots = mpz(parts[0]), mpz(parts[1] << 8 * width | parts[2]), parts[3:]
        if n.bit_length() != bits or gmpy2.gcd(n, _small_primes()) != 1 or gmpy2.is_power(n) or gmpy2.is_prime(n):
            raise CryptoError(f"the modulus is no product of two large primes of {bits} bits in all; ask for a new key")
        if not verify_modulus(n, roots):
            raise CryptoError("the modulus is not proved to share no factor with phi(n); ask for a new key")
        if not 1 < h < n * n - 1 or gmpy2.gcd(h, n) != 1:
            raise CryptoError("the key's base h is no unit mod n^2 other than 1 and -1; ask for a new key")
        return cls(int(n), int(h), roots)

    def shift(self, plaintext: int) -> mpz:
        """(1 + n)^plaintext mod n^2: multiplied onto a ciphertext, it adds `plaintext`."""
        return (1 + plaintext % self.n * self.n) % self.square

    def check_units(self, values: Iterable[int]) -> list[mpz]:
        """Return the values as ciphertexts. CryptoError unless all are in (0, n^2) and coprime to n."""
        units = [mpz(v) for v in values]
        product = mpz(1)
        for unit in units:
            if not 0 < unit < self.square:
                raise CryptoError("a ciphertext is not in (0, n^2); the bytes were altered or made for another key")
            product = product * unit % self.n
        if gmpy2.gcd(product, self.n) != 1:
            raise CryptoError("a ciphertext shares a factor with n; the bytes were altered or made for another key")
        return units


@lru_cache(maxsize=1)
def _small_primes() -> mpz:
    return gmpy2.primorial(1 << 16)


@lru_cache(maxsize=4)
def noise_table(h: int, square: int, bits: int, window: int) -> FixedBase:
    """Table for h^s with exponents of `bits` bits; one a process and key."""
    return FixedBase(h, square, bits, window)


def noise(public: PublicKey, bits: int, window: int) -> mpz:
    """h^s for a fresh s of `bits` bits: an encryption of zero."""
    return noise_table(int(public.h), int(public.square), bits, window).power(secrets.randbits(bits))


class SecretKey(Secret):
    """p and q: encrypts and decrypts by CRT. `public` is its other half."""

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
        # L(x) = (x-1)/p maps (1+n)^(p-1) mod p^2 to -q mod p
        self._scale_p, self._scale_q = gmpy2.invert(-q, p), gmpy2.invert(-p, q)
        self._tables: tuple[FixedBase, FixedBase] | None = None
        self.public = PublicKey(int(p * q), int(self._join(self._hp, self._hq)), prove_modulus(p, q))

    @classmethod
    def generate(cls, bits: int) -> SecretKey:
        """Draw a fresh key; primes from the RSA key generation of `cryptography`. ConfigError below 2048 bits."""
        numbers = rsa.generate_private_key(public_exponent=65537, key_size=check_bits(bits)).private_numbers()
        return cls.from_primes(numbers.p, numbers.q)

    @classmethod
    def from_primes(cls, p: int, q: int) -> SecretKey:
        """Make a key of given primes and a fresh h. CryptoError if they make no Paillier key of at least 2048 bits."""
        alike = p != q and p.bit_length() == q.bit_length()
        if not (alike and gmpy2.is_prime(p) and gmpy2.is_prime(q)) or math.gcd(p * q, (p - 1) * (q - 1)) != 1:
            raise CryptoError("a Paillier key needs two different primes of one length, gcd(pq, (p-1)(q-1)) = 1")
        check_bits((p * q).bit_length())
        while True:
            x = secrets.randbelow(p * q)
            hp = gmpy2.powmod(x, p * ((p - 1) // _coprime_part(p - 1, q - 1)), p * p)
            hq = gmpy2.powmod(x, q, q * q)
            if hp not in (0, 1) and hq not in (0, 1, q * q - 1):
                return cls(p, q, int(hp), int(hq))

    def parts_for_workers(self) -> tuple[int, int, int, int]:
        """Return the secret numbers of this key for worker processes of the same party, and no one else."""
        return int(self._p), int(self._q), int(self._hp), int(self._hq)

    def _join(self, x: mpz, y: mpz) -> mpz:
        """Return the element of Z_(n^2) that is x mod p^2 and y mod q^2."""
        return y + self._q2 * ((x - y) * self._invert % self._p2)

    def encrypt(self, plaintexts: Sequence[int]) -> list[int]:
        """Fresh encryptions of integers mod n."""
        if self._tables is None:
            self._tables = (
                FixedBase(int(self._hp), int(self._p2), self._a.bit_length()),
                FixedBase(int(self._hq), int(self._q2), self._b.bit_length()),
            )
        comb_p, comb_q = self._tables
        n, a, b = self.public.n, int(self._a), int(self._b)
        sealed = []
        for m in plaintexts:
            r = self._join(comb_p.power(secrets.randbelow(a)), comb_q.power(secrets.randbelow(b)))
            sealed.append(int((r + r % n * (m % n) % n * n) % self.public.square))
        return sealed

    def decrypt(self, ciphertexts: Sequence[int]) -> list[int]:
        """Plaintexts in [0, n)."""
        p, q, p2, q2 = self._p, self._q, self._p2, self._q2
        q_inverse = gmpy2.invert(q, p)
        plaintexts = []
        for c in ciphertexts:
            x = (gmpy2.powmod(c % p2, p - 1, p2) - 1) // p * self._scale_p % p
            y = (gmpy2.powmod(c % q2, q - 1, q2) - 1) // q * self._scale_q % q
            plaintexts.append(int(y + q * ((x - y) * q_inverse % p)))
        return plaintexts


def _coprime_part(x: int, y: int) -> mpz:
    """x without the factors it shares with y."""
    rest = mpz(x)
    while (common := gmpy2.gcd(rest, y)) > 1:
        rest //= common
    return rest
