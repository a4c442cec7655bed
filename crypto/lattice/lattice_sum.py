"""Encrypted sums of vectors with the library SEAL (lattice-based encryption under RLWE).

Adders encrypt their vectors under the holder's public key and add ciphertexts; the holder decrypts only the total. The
entries of a vector are the coefficients of polynomials. A value v is encoded as the integer round(v * V / bound),
shifted up by t bits. The noise of all encryptions and re-randomisations stays in the low t bits, and the holder rounds
it away. The result of `decrypt` is therefore an exact function of the rounded vectors. It reveals nothing about noise,
key or single terms, so it may be passed on (the attack of Li and Micciancio 2021 does not apply). V and t depend only
on `bound` and `terms`, the largest number of vectors: t = 12 + log2(number of noises that may add up) and V = 2^(44 -
t). For more than some hundred terms V is smaller, so that a sum fits into the plaintext (`steps`). The error of one
value is at most bound / (2 * V), for three terms 2^-26 * bound. More than 2,033 terms are refused.

Every sum is re-randomised with an encryption of zero under the public key, so that its bytes cannot be linked to its
terms. The holder learns only the sum of the vectors, because the adders add before the holder sees anything.

A holder may choose a bad key. The vectors are added in the first polynomial of a ciphertext, to encryptions of zero
that do not depend on them. So whatever the key is, a total reveals only the sum to the holder. With an honest key, RLWE
hides a vector from the other adders. A holder with a bad key may reveal vectors to them; but it could just as well show
them its secret key.
"""

from __future__ import annotations

import hashlib
import math
import os
import struct
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from securevfl.base.arrays import Floats
from securevfl.crypto.kernel.residues import DEGREE
from securevfl.crypto.key_derivation import SYMMETRIC_KEY_BYTES as SEED_BYTES
from securevfl.crypto.lattice.polynomial_ring import SealRing, SealSecretKey
from securevfl.crypto.lattice.residue_encoding import Residues, pack, packed_size, unpack
from securevfl.crypto.prg import Prg
from securevfl.crypto.scheme import Adder, AdditiveScheme, SumHolder
from securevfl.errors import CryptoError, KeyMismatch, RangeError

_PRIME_BITS = (54, 17)  # bits of the prime of ciphertexts, and of the special prime, which SEAL uses while encrypting
_PLAIN_BITS = 53  # bits of decrypted values, one less than the modulus has
_EXACT_BITS = 44  # bits of an encoded value, including the t low bits
_NOISE_BITS = 11  # the noise of an encryption stays below 2^11; its standard deviation is about 21
_MIN_STEPS = 2**16  # smallest V
_PUBLIC_MAGIC = b"SLA3"  # beginning of a public key
_SUM = struct.Struct("<4s16sIIIId")  # four letters, fingerprint of the key, and the fields of `_Shape`


@dataclass(frozen=True)
class _Shape:
    """The header of an encrypted vector or sum.

    Attributes:
        m: length of the vector.
        terms: largest number of vectors that may be added.
        summed: number of vectors that were added.
        noises: number of encryptions that were added, including re-randomisations.
        bound: bound on the absolute values of a vector.
    """

    m: int
    terms: int
    summed: int
    noises: int
    bound: float

    @property
    def shift(self) -> int:
        """The number t of low bits that are reserved for the noise of all encryptions that may be added."""
        return _NOISE_BITS + 1 + (self.noises_allowed - 1).bit_length()

    @property
    def noises_allowed(self) -> int:
        """Largest number of encryptions that may be added, including re-randomisations."""
        return 4 * self.terms + 60

    @property
    def steps(self) -> int:
        """The number V: the integer that the bound becomes, before the shift by t bits."""
        room = min(2.0**_EXACT_BITS, 0.9 * 2.0 ** (_PRIME_BITS[0] - 1) / self.terms)
        return math.floor(room / 2.0**self.shift)

    @property
    def scale(self) -> float:
        """The integer that a value of 1 becomes, before the shift by t bits."""
        return self.steps / self.bound

    @property
    def polynomials(self) -> int:
        """Number of ciphertexts, each with `DEGREE` values."""
        return -(-self.m // DEGREE)


class LatticeSum(AdditiveScheme):
    """The scheme for encrypted sums with SEAL, with 128-bit security. Calls take milliseconds and use no executor."""

    name: ClassVar[str] = "lattice"

    def __init__(self) -> None:
        self._ring = SealRing(_PRIME_BITS, _PLAIN_BITS)

    def sum_keygen(self, executor: Executor | None = None) -> SumHolder:
        """Create a holder with a new key; see `AdditiveScheme.sum_keygen`."""
        return LatticeSumHolder(self._ring)

    def adder(self, public: bytes, executor: Executor | None = None) -> Adder:
        """Create an adder for a holder's public key; see `AdditiveScheme.adder`."""
        return LatticeAdder(self._ring, public)


def _parse(ring: SealRing, message: bytes, fingerprint: bytes) -> _Shape:
    if len(message) < _SUM.size or message[:4] != b"SLS2":
        raise CryptoError(
            f"lattice sum: received {len(message)} bytes that are not an encrypted vector",
            code="SVFL-CRYPTO-CIPHERTEXT",
        )
    _, key, *fields = _SUM.unpack_from(message)
    if key != fingerprint:
        raise KeyMismatch("lattice sum: the vector is encrypted under another key", code="SVFL-CRYPTO-KEY")
    shape = _Shape(*fields)
    if not (
        shape.m >= 1
        and 1 <= shape.summed <= shape.terms < 2**24
        and 1 <= shape.noises <= shape.noises_allowed
        and 0 < shape.bound < math.inf
        and shape.steps >= _MIN_STEPS
        and shape.scale < math.inf
    ):
        raise CryptoError(
            "lattice sum: the header of an encrypted vector states numbers that no sum can have",
            code="SVFL-CRYPTO-CIPHERTEXT",
        )
    expected = _size(ring, shape.m)
    if len(message) != expected:
        raise CryptoError(
            f"lattice sum: an encrypted vector has {len(message)} bytes instead of {expected}",
            code="SVFL-CRYPTO-CIPHERTEXT",
        )
    return shape


def _size(ring: SealRing, values: int) -> int:
    """Return the number of bytes of an encrypted vector of `values` values."""
    return _SUM.size + -(-values // DEGREE) * 2 * packed_size(ring.primes, DEGREE)


def _residues(ring: SealRing, message: bytes, index: int) -> Residues:
    size = packed_size(ring.primes, DEGREE)
    view = memoryview(message)[_SUM.size + 2 * size * index :]
    halves = [unpack(part, ring.primes, DEGREE) for part in (view[:size], view[size : 2 * size])]
    if not halves[1].any():
        raise CryptoError(
            "lattice sum: a received vector is not encrypted, so its sender does not follow the protocol",
            "ask the operator of the sender for the reason",
            code="SVFL-CRYPTO-CIPHERTEXT",
        )
    return np.stack(halves)


def _second(ring: SealRing, seed: bytes) -> Residues:
    """Compute the second polynomial of a public key from its seed."""
    return ring.second(Prg(seed, "public second polynomial of a key of sums"))


class LatticeSumHolder(SumHolder):
    """The party that learns the sum, with its secret key."""

    def __init__(self, ring: SealRing) -> None:
        seed = os.urandom(SEED_BYTES)
        secret, first = ring.keypair(_second(ring, seed))
        self._ring, self._key = ring, SealSecretKey(ring, secret)
        self.public = _PUBLIC_MAGIC + seed + pack(first, ring.key_primes)
        self._fingerprint = hashlib.sha256(self.public).digest()[:16]

    def decrypt(self, total: bytes) -> Floats:
        """Decrypt a sum of vectors; see `SumHolder.decrypt`."""
        shape = _parse(self._ring, total, self._fingerprint)
        words = [self._key.decrypt(_residues(self._ring, total, index)) for index in range(shape.polynomials)]
        signed = (np.concatenate(words)[: shape.m] << np.uint64(64 - _PLAIN_BITS)).view(np.int64)
        rounded = np.rint(signed * (self._ring.q / 2.0 ** (64 + shape.shift)))
        return np.asarray(rounded / shape.scale)


class LatticeAdder(Adder):
    """A party that encrypts its vector under the holder's public key and adds encrypted vectors.

    Args:
        ring: SEAL's context, with all parameters.
        public: the holder's public key.

    Raises:
        CryptoError: if the key is malformed.
    """

    def __init__(self, ring: SealRing, public: bytes) -> None:
        start = len(_PUBLIC_MAGIC) + SEED_BYTES
        expected = start + packed_size(ring.key_primes, DEGREE)
        if len(public) != expected or public[: len(_PUBLIC_MAGIC)] != _PUBLIC_MAGIC:
            raise CryptoError(
                f"lattice sum: received {len(public)} bytes that are not a public key of {expected} bytes",
                code="SVFL-CRYPTO-KEY",
            )
        self._ring = ring
        first = unpack(memoryview(public)[start:], ring.key_primes, DEGREE)
        self._encryptor = ring.encryptor(first, _second(ring, public[len(_PUBLIC_MAGIC) : start]))
        self._fingerprint = hashlib.sha256(public).digest()[:16]

    def _message(self, shape: _Shape, ciphertexts: list[Residues]) -> bytes:
        fields = (shape.m, shape.terms, shape.summed, shape.noises, shape.bound)
        parts = (pack(residues, self._ring.primes) for residues in ciphertexts)
        return b"".join([_SUM.pack(b"SLS2", self._fingerprint, *fields), *parts])

    def encrypt(self, v: Floats, *, bound: float, terms: int) -> bytes:
        """Encrypt a vector; see `Adder.encrypt`."""
        v = np.asarray(v, np.float64)
        if v.ndim != 1 or len(v) == 0:
            raise RangeError(
                f"lattice sum: an array of shape {v.shape} was passed instead of a non-empty vector",
                code="SVFL-CRYPTO-SHAPE",
            )
        if not (math.isfinite(bound) and bound > 0 and 1 <= terms < 2**24):
            raise RangeError(
                "lattice sum: the bound is not a positive finite number, or the number of terms is not below 2^24",
                "pass a positive bound, and 1 to 2^24 - 1 terms",
                code="SVFL-CRYPTO-RANGE",
            )
        if not np.all(np.abs(v) <= bound):
            raise RangeError(
                f"lattice sum: values are not finite or exceed the bound {bound}", code="SVFL-CRYPTO-RANGE"
            )
        shape = _Shape(len(v), terms, 1, 1, float(bound))
        if shape.steps < _MIN_STEPS or not shape.scale < math.inf:
            raise RangeError(
                f"lattice sum: a sum of {terms} vectors with this bound is too large for precise fixed-point numbers",
                "add fewer vectors, or pass a smaller bound",
                code="SVFL-CRYPTO-RANGE",
            )
        ring, integers = self._ring, np.zeros((shape.polynomials, DEGREE), np.int64)
        integers.ravel()[: len(v)] = np.rint(v * shape.scale).astype(np.int64) << shape.shift
        ciphertexts = []
        for row in integers:
            first, second = ring.io.residues(ring.zero(self._encryptor), ring.shape)
            ciphertexts.append(np.stack([(first + (row % ring.q).astype(np.uint64)) % ring.column, second]))
        return self._message(shape, ciphertexts)

    def size(self, values: int, *, terms: int) -> int:
        """Return the size of an encrypted vector in bytes; see `Adder.size`."""
        return _size(self._ring, values)

    def add(self, *parts: bytes) -> bytes:
        """Add encrypted vectors, and re-randomise the sum; see `Adder.add`."""
        if not parts:
            raise CryptoError(
                "lattice sum: there is nothing to add", "pass at least one encrypted vector", code="SVFL-CRYPTO-SHAPE"
            )
        ring = self._ring
        shapes = [_parse(ring, part, self._fingerprint) for part in parts]
        if len({(shape.m, shape.terms, shape.bound) for shape in shapes}) > 1:
            raise CryptoError(
                "lattice sum: the vectors differ in length, bound or number of summands",
                "use the same values at all parties",
                code="SVFL-CRYPTO-SHAPE",
            )
        first = shapes[0]
        summed, noises = sum(shape.summed for shape in shapes), sum(shape.noises for shape in shapes) + 1
        if summed > first.terms or noises > first.noises_allowed:
            raise CryptoError(
                f"lattice sum: {summed} vectors were added in {noises - 1} steps, but only {first.terms} may be added",
                "encrypt with a larger `terms`",
                code="SVFL-CRYPTO-RANGE",
            )
        totals = []
        for index in range(first.polynomials):
            total = ring.zero(self._encryptor)
            for part in parts:
                term = ring.io.ciphertext(ring.level, _residues(ring, part, index), ntt=False)
                ring.evaluator.add_inplace(total, term)
            totals.append(ring.io.residues(total, ring.shape))
        return self._message(_Shape(first.m, first.terms, summed, noises, first.bound), totals)
