"""Sums of vectors under RLWE encryption: integers in coefficients, added by adding ciphertexts.

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
import struct
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import tenseal.sealapi as seal

from securevfl.base.arrays import Floats
from securevfl.crypto.lattice import polynomial_ring
from securevfl.crypto.lattice.polynomial_ring import Ring
from securevfl.crypto.scheme import Adder, AdditiveScheme, SumHolder
from securevfl.errors import CryptoError, KeyMismatch, RangeError

_DEGREE = 4096
_BITS = (54, 17)
_EXACT_BITS = 44  # the encoder is exact up to here
_NOISE_BITS = 11  # one encryption's noise stays below 2^11: standard deviation about 21
_FEWEST_STEPS = 2**16
_PUBLIC = struct.Struct("<4s")
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
        room = min(2.0**_EXACT_BITS, 0.9 * 2.0 ** (_BITS[0] - 1) / self.terms)
        return math.floor(room / 2.0**self.shift)

    @property
    def scale(self) -> float:
        """Integers per unit of v, before the shift."""
        return self.steps / self.bound

    @property
    def polynomials(self) -> int:
        return -(-self.m // _DEGREE)


class LatticeSum(AdditiveScheme):
    """Sums in the ring of a CKKS context, 128-bit RLWE. Executors are not used: a call takes milliseconds."""

    name: ClassVar[str] = "lattice"

    def __init__(self) -> None:
        self._ring = Ring(_DEGREE, _BITS)

    def sum_keygen(self, executor: Executor | None = None) -> SumHolder:
        return LatticeSumHolder(self._ring)

    def adder(self, public: bytes, executor: Executor | None = None) -> Adder:
        return LatticeAdder(self._ring, public)


def _parse(ring: Ring, message: bytes, fingerprint: bytes) -> _Shape:
    if len(message) < _SUM.size or message[:4] != b"SLS1":
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


def _size(ring: Ring, values: int) -> int:
    """Return the bytes of an encrypted vector of so many values."""
    return _SUM.size + -(-values // _DEGREE) * 2 * polynomial_ring.packed_size(ring.primes, ring.degree)


def _ciphertext(ring: Ring, message: bytes, index: int) -> Any:
    size = polynomial_ring.packed_size(ring.primes, ring.degree)
    view = memoryview(message)[_SUM.size + 2 * size * index :]
    halves = [polynomial_ring.unpack(part, ring.primes, ring.degree) for part in (view[:size], view[size : 2 * size])]
    if not halves[1].any():
        raise CryptoError("lattice sum: an encrypted vector is not encrypted at all; it is malformed")
    return ring.io.ciphertext(ring.level, np.stack(halves), ntt=True)


class LatticeSumHolder(SumHolder):
    """Owns the secret key, inside SEAL's objects."""

    def __init__(self, ring: Ring) -> None:
        self._ring = ring
        secret = ring.secret_key()
        self._decryptor = seal.Decryptor(ring.context, secret)
        self.public = _PUBLIC.pack(b"SLA2") + ring.public_bytes(seal.Encryptor(ring.context, secret))
        self._fingerprint = hashlib.sha256(self.public).digest()[:16]

    def decrypt(self, total: bytes) -> Floats:
        ring = self._ring
        shape = _parse(ring, total, self._fingerprint)
        out = np.empty((shape.polynomials, ring.degree))
        for index, row in enumerate(out):
            plain = seal.Plaintext()
            self._decryptor.decrypt(_ciphertext(ring, total, index), plain)
            row[:] = ring.decode(plain)
        rounded = np.rint(out.ravel()[: shape.m] / 2.0**shape.shift)
        return np.asarray(rounded / shape.scale)


class LatticeAdder(Adder):
    """Encrypts and adds under the holder's public key."""

    def __init__(self, ring: Ring, public: bytes) -> None:
        expected = _PUBLIC.size + ring.public_size
        if len(public) != expected or public[:4] != b"SLA2":
            raise CryptoError(f"lattice sum: expected a public key of {expected} bytes, got {len(public)}")
        self._ring = ring
        self._encryptor = seal.Encryptor(ring.context, ring.public_key(public[_PUBLIC.size :]))
        self._fingerprint = hashlib.sha256(public).digest()[:16]

    def _message(self, shape: _Shape, ciphers: list[Any]) -> bytes:
        ring = self._ring
        fields = (shape.m, shape.terms, shape.summed, shape.noises, shape.bound)
        parts = [_SUM.pack(b"SLS1", self._fingerprint, *fields)]
        for cipher in ciphers:
            residues = ring.io.residues(cipher, (2, len(ring.primes), ring.degree))
            parts.append(polynomial_ring.pack(residues, ring.primes))
        return b"".join(parts)

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
        integers = np.zeros((shape.polynomials, self._ring.degree))
        integers.ravel()[: len(v)] = np.rint(v * shape.scale) * 2.0**shape.shift
        ciphers = []
        for plain in self._ring.encode(integers):
            cipher = seal.Ciphertext()
            self._encryptor.encrypt(plain, cipher)
            ciphers.append(cipher)
        return self._message(shape, ciphers)

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
            total = seal.Ciphertext()
            self._encryptor.encrypt_zero(ring.level, total)
            total.scale = 1.0
            for part in parts:
                ring.evaluator.add_inplace(total, _ciphertext(ring, part, index))
            totals.append(total)
        return self._message(_Shape(first.m, first.terms, summed, noises, first.bound), totals)
