"""Sums of vectors under RLWE encryption in SEAL: integers in coefficients, added by adding ciphertexts.

A vector's entries become integers v' = round(v V / bound), shifted up by t bits, so that the noise of every encryption
and re-randomisation stays in the low t bits and the holder rounds it away: what `decrypt` returns is an exact function
of the rounded vectors, and tells nothing of noise, key or single terms (so it may be passed on; Li and Micciancio 2021
does not apply to it). Scale, V and t depend on `bound` and `terms` alone. With V = 2^(44 - t), t = 12 + log2 of the
number of noises that may pile up, one vector errs by at most bound / (2 V): 2^-26 bound for three terms. V below 2^16
is refused, which is reached beyond a thousand terms.

Every sum is re-randomised by a public-key encryption of zero, so its bytes cannot be linked to its parts. The holder
learns the sum of what it is sent: adders add before the holder sees anything.

A key that the holder chose. Messages enter a total as one sum, in its first polynomial, beside encryptions of zero that
do not depend on them: whatever the key is, the total tells the holder their sum and nothing else. Towards those who add
on the way a part is hidden under RLWE with an honest key; a holder that makes a bad b opens it to them, as it could by
showing them its secret key.
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
from securevfl.crypto.lattice.residue_bytes import Residues, pack, packed_size, unpack
from securevfl.crypto.prg import Prg
from securevfl.crypto.scheme import Adder, AdditiveScheme, SumHolder
from securevfl.errors import CryptoError, KeyMismatch, RangeError

_SIZES = (54, 17)  # bits of the primes, the special one last
_BITS = 53  # to which what is decrypted is known, of the 54 of the modulus
_EXACT_BITS = 44  # of a sum
_NOISE_BITS = 11  # one encryption's noise stays below 2^11: standard deviation about 21
_FEWEST_STEPS = 2**16
_MAGIC = b"SLA3"  # of a public key
_SUM = struct.Struct("<4s16sIIIId")  # magic, key, m, terms, vectors summed so far, encryptions so far, bound


@dataclass(frozen=True)
class _Shape:
    """What travels before the ciphertexts of a sum."""

    m: int
    terms: int
    summed: int
    noises: int
    bound: float

    @property
    def shift(self) -> int:
        """t: bits below the message, for the noise of all encryptions that may pile up."""
        return _NOISE_BITS + 1 + (self.noises_allowed - 1).bit_length()

    @property
    def noises_allowed(self) -> int:
        return 4 * self.terms + 60

    @property
    def steps(self) -> int:
        """V: integers up to the bound, before the shift."""
        room = min(2.0**_EXACT_BITS, 0.9 * 2.0 ** (_SIZES[0] - 1) / self.terms)
        return math.floor(room / 2.0**self.shift)

    @property
    def scale(self) -> float:
        """Integers per unit of v, before the shift."""
        return self.steps / self.bound

    @property
    def polynomials(self) -> int:
        return -(-self.m // DEGREE)


class LatticeSum(AdditiveScheme):
    """Sums in SEAL, 128-bit RLWE. Executors are not used: a call takes milliseconds."""

    name: ClassVar[str] = "lattice"

    def __init__(self) -> None:
        self._ring = SealRing(_SIZES, _BITS)

    def sum_keygen(self, executor: Executor | None = None) -> SumHolder:
        return LatticeSumHolder(self._ring)

    def adder(self, public: bytes, executor: Executor | None = None) -> Adder:
        return LatticeAdder(self._ring, public)


def _parse(ring: SealRing, message: bytes, fingerprint: bytes) -> _Shape:
    if len(message) < _SUM.size or message[:4] != b"SLS2":
        raise CryptoError(f"lattice sum: expected an encrypted vector, got {len(message)} bytes of something else")
    _, key, *fields = _SUM.unpack_from(message)
    if key != fingerprint:
        raise KeyMismatch("lattice sum: the vector is encrypted under another key; exchange public keys again")
    shape = _Shape(*fields)
    if not (
        shape.m >= 1
        and 1 <= shape.summed <= shape.terms < 2**24
        and 1 <= shape.noises <= shape.noises_allowed
        and 0 < shape.bound < math.inf
        and shape.steps >= _FEWEST_STEPS
        and shape.scale < math.inf
    ):
        raise CryptoError("lattice sum: the header of the encrypted vector contradicts itself; it is malformed")
    expected = _size(ring, shape.m)
    if len(message) != expected:
        raise CryptoError(f"lattice sum: message has {len(message)} bytes, expected {expected}; it is cut or altered")
    return shape


def _size(ring: SealRing, values: int) -> int:
    """Return the bytes of an encrypted vector of so many values."""
    return _SUM.size + -(-values // DEGREE) * 2 * packed_size(ring.primes, DEGREE)


def _residues(ring: SealRing, message: bytes, index: int) -> Residues:
    size = packed_size(ring.primes, DEGREE)
    view = memoryview(message)[_SUM.size + 2 * size * index :]
    halves = [unpack(part, ring.primes, DEGREE) for part in (view[:size], view[size : 2 * size])]
    if not halves[1].any():
        raise CryptoError("lattice sum: an encrypted vector is not encrypted at all; it is malformed")
    return np.stack(halves)


def _second(ring: SealRing, seed: bytes) -> Residues:
    """Expand the second polynomial of a key from the seed in it."""
    return ring.second(Prg(seed, "public second polynomial of a key of sums"))


class LatticeSumHolder(SumHolder):
    """Owns the secret key, inside SEAL's objects."""

    def __init__(self, ring: SealRing) -> None:
        seed = os.urandom(SEED_BYTES)
        secret, first = ring.keypair(_second(ring, seed))
        self._ring, self._key = ring, SealSecretKey(ring, secret)
        self.public = _MAGIC + seed + pack(first, ring.key_primes)
        self._fingerprint = hashlib.sha256(self.public).digest()[:16]

    def decrypt(self, total: bytes) -> Floats:
        shape = _parse(self._ring, total, self._fingerprint)
        words = [self._key.decrypt(_residues(self._ring, total, index)) for index in range(shape.polynomials)]
        signed = (np.concatenate(words)[: shape.m] << np.uint64(64 - _BITS)).view(np.int64)
        rounded = np.rint(signed * (self._ring.q / 2.0 ** (64 + shape.shift)))
        return np.asarray(rounded / shape.scale)


class LatticeAdder(Adder):
    """Encrypts and adds under the holder's public key."""

    def __init__(self, ring: SealRing, public: bytes) -> None:
        start = len(_MAGIC) + SEED_BYTES
        expected = start + packed_size(ring.key_primes, DEGREE)
        if len(public) != expected or public[: len(_MAGIC)] != _MAGIC:
            raise CryptoError(f"lattice sum: expected a public key of {expected} bytes, got {len(public)}")
        self._ring = ring
        first = unpack(memoryview(public)[start:], ring.key_primes, DEGREE)
        self._encryptor = ring.encryptor(first, _second(ring, public[len(_MAGIC) : start]))
        self._fingerprint = hashlib.sha256(public).digest()[:16]

    def _message(self, shape: _Shape, ciphertexts: list[Residues]) -> bytes:
        fields = (shape.m, shape.terms, shape.summed, shape.noises, shape.bound)
        parts = (pack(residues, self._ring.primes) for residues in ciphertexts)
        return b"".join([_SUM.pack(b"SLS2", self._fingerprint, *fields), *parts])

    def encrypt(self, v: Floats, *, bound: float, terms: int) -> bytes:
        v = np.asarray(v, np.float64)
        if v.ndim != 1 or len(v) == 0:
            raise RangeError(f"lattice sum: v is a vector of at least one value, got shape {v.shape}")
        if not (math.isfinite(bound) and bound > 0 and 1 <= terms < 2**24):
            raise RangeError("lattice sum: bound must be positive and finite, terms from 1 to 2^24")
        if not np.all(np.abs(v) <= bound):
            raise RangeError(f"lattice sum: values not finite or above the bound {bound}; pass values within it")
        shape = _Shape(len(v), terms, 1, 1, float(bound))
        if shape.steps < _FEWEST_STEPS or not shape.scale < math.inf:
            raise RangeError(
                f"lattice sum: no precise scale for {terms} terms at this bound; use fewer terms or scale v"
            )
        ring, integers = self._ring, np.zeros((shape.polynomials, DEGREE), np.int64)
        integers.ravel()[: len(v)] = np.rint(v * shape.scale).astype(np.int64) << shape.shift
        ciphertexts = []
        for row in integers:
            first, second = ring.io.residues(ring.zero(self._encryptor), ring.shape)
            ciphertexts.append(np.stack([(first + (row % ring.q).astype(np.uint64)) % ring.column, second]))
        return self._message(shape, ciphertexts)

    def size(self, values: int, *, terms: int) -> int:
        return _size(self._ring, values)

    def add(self, *parts: bytes) -> bytes:
        if not parts:
            raise CryptoError("lattice sum: nothing to add; give at least one encrypted vector")
        ring = self._ring
        shapes = [_parse(ring, part, self._fingerprint) for part in parts]
        if len({(shape.m, shape.terms, shape.bound) for shape in shapes}) > 1:
            raise CryptoError("lattice sum: vectors differ in length, bound or terms; all parties must agree on them")
        first = shapes[0]
        summed, noises = sum(shape.summed for shape in shapes), sum(shape.noises for shape in shapes) + 1
        if summed > first.terms or noises > first.noises_allowed:
            raise CryptoError(f"lattice sum: {summed} vectors in {noises - 1} steps, encrypted for {first.terms} terms")
        totals = []
        for index in range(first.polynomials):
            total = ring.zero(self._encryptor)
            for part in parts:
                term = ring.io.ciphertext(ring.level, _residues(ring, part, index), ntt=False)
                ring.evaluator.add_inplace(total, term)
            totals.append(ring.io.residues(total, ring.shape))
        return self._message(_Shape(first.m, first.terms, summed, noises, first.bound), totals)
