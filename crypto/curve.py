"""Blinded ids: the group of Diffie-Hellman private set intersection (Meadows 1986; Huberman, Franklin, Hogg 1999).

    id -> canonical_id -> hash_to_group -> blind by a -> blind by b      =      the same, b before a

Equal ids meet as equal points once every party has blinded them; under decisional Diffie-Hellman, with the hash as a
random oracle, a point blinded by one party is noise to all others. Order leaks as well as values do, so a set is sent
in the order of its points (`sort_points`), which depends on the set alone.

The group is Curve25519 by x-coordinate, products by X25519 (RFC 7748) of libsodium: about three times faster than
Edwards points with the subgroup test, and libsodium as PyNaCl builds it has no ristretto255. What x alone leaves open
is closed here:

- A 32-byte string is an x on the curve or on its twist, and blinding keeps that bit: hashing straight to x would show
  one bit of every id. Ids are hashed to the curve (try-and-increment), and points off it are refused.
- The curve has cofactor 8. Scalars are multiples of 8 (RFC 7748), so blinded points lie in the group of prime order,
  and a point sent to probe a scalar modulo 8 learns nothing.
- Encodings are canonical (x < p) and not of small order, so equal points are equal bytes.

Points travel as one bytes object of n x 32 bytes. Where a function takes an `executor`, the work is cut into chunks
for it (processes or threads of this party; libsodium runs outside the GIL). Scalars reach those processes as bytes.
"""

from __future__ import annotations

import hashlib
import secrets
from concurrent.futures import Executor
from functools import partial

import numpy as np
from gmpy2 import jacobi
from nacl.bindings import crypto_scalarmult
from numpy.typing import NDArray

from securevfl.crypto.identifiers import CanonicalIds
from securevfl.crypto.secret import Secret
from securevfl.errors import CryptoError

POINT_BYTES = 32

_P = 2**255 - 19
_A = 486662
_ORDER = 2**252 + 27742317777372353535851937790883648493
# x of the points of order 1, 2, 4 and 8 that lie on the curve (those of the twist fail the curve test).
_SMALL_ORDER = frozenset(
    {
        0,
        1,
        325606250916557431795983626356110631294008115727848805560023387167927233504,
        39382357235489614581723060781553021112529911719440698176882885853963445705823,
    }
)
_DOMAIN = b"securevfl id to curve25519 v1\x00"
_CHUNK = 4096


def hash_to_group(ids: CanonicalIds, executor: Executor | None = None) -> bytes:
    """Map each of n canonical ids to a point (n x 32 bytes): SHA-512, counted up until x lies on the curve.

    Uniform over the curve's x, as a random oracle (Boneh, Lynn, Shacham 2001, section 3.3). The number of tries, two
    on average, depends on the id; it shows in local time only, and a set is hashed before any of it is sent.
    """
    chunks = [ids[start : start + _CHUNK] for start in range(0, len(ids), _CHUNK)]
    return b"".join(executor.map(_hash_chunk, chunks) if executor else map(_hash_chunk, chunks))


def check_points(points: bytes, executor: Executor | None = None) -> int:
    """Check the points (n x 32 bytes) that a peer sent, and return their number n.

    CryptoError unless every point is canonical (x < p), on the curve and not of small order.
    """
    if len(points) % POINT_BYTES:
        raise CryptoError(f"{len(points)} bytes of points: expected a multiple of {POINT_BYTES}; the message was cut")
    chunks = _chunks(points)
    for number, bad in enumerate(executor.map(_first_bad, chunks) if executor else map(_first_bad, chunks)):
        if bad is not None:
            raise CryptoError(
                f"point {number * _CHUNK + bad} of {len(points) // POINT_BYTES} cannot be a blinded id: expected a "
                "canonical point of Curve25519, not of small order; the sender runs other software or is cheating"
            )
    return len(points) // POINT_BYTES


class Blinder(Secret):
    """A fresh secret scalar. Make a new one for every intersection: with one kept, two runs can be linked."""

    __slots__ = ("_scalar",)

    def __init__(self) -> None:
        self._scalar = secrets.token_bytes(POINT_BYTES)

    def blind(self, points: bytes, executor: Executor | None = None) -> bytes:
        """Each point (n x 32 bytes) times the scalar, in the same order; CryptoError as `check_points`.

        Blinders commute: a.blind(b.blind(points)) == b.blind(a.blind(points)).
        """
        return _multiply(self._scalar, points, executor)

    def unblind(self, points: bytes, executor: Executor | None = None) -> bytes:
        """Take this scalar off again, under whatever other scalars remain; CryptoError as `check_points`.

        a.unblind(b.blind(a.blind(points))) == b.blind(points): b's function of points that b has not seen, an
        oblivious pseudorandom function (Jarecki, Kiayias, Krawczyk 2014).
        """
        return _multiply(_inverse(self._scalar), points, executor)


def sort_points(points: bytes) -> tuple[bytes, NDArray[np.intp]]:
    """Sort the points (n x 32 bytes) by their bytes, ascending; return them and the position (n,) each one came from.

    The sorted sequence is a function of the set of points alone, so their order no longer reveals anything.
    """
    rows = _rows(points)
    order = np.argsort(rows, kind="stable")
    return rows[order].tobytes(), order


def _rows(points: bytes) -> NDArray[np.bytes_]:
    # Fixed-width byte strings compare as if padded with zeros, which changes nothing when all have 32 bytes.
    return np.frombuffer(points, dtype=f"S{POINT_BYTES}") if points else np.empty(0, dtype=f"S{POINT_BYTES}")


def _chunks(points: bytes) -> list[bytes]:
    step = _CHUNK * POINT_BYTES
    return [points[start : start + step] for start in range(0, len(points), step)]


def _on_curve(x: int) -> bool:
    # x^3 + A x^2 + x is a square: Montgomery form of the curve, RFC 7748 section 4.1.
    return bool(jacobi(x * (x * (x + _A) + 1), _P) == 1)


def _hash_chunk(ids: CanonicalIds) -> bytes:
    return b"".join([_hash_one(canonical) for canonical in ids])


def _hash_one(canonical: bytes) -> bytes:
    attempt = 0
    while True:
        digest = hashlib.sha512(_DOMAIN + attempt.to_bytes(2, "little") + canonical).digest()
        x = int.from_bytes(digest, "little") % _P
        if _on_curve(x) and x not in _SMALL_ORDER:
            return x.to_bytes(POINT_BYTES, "little")
        attempt += 1


def _first_bad(points: bytes) -> int | None:
    for start in range(0, len(points), POINT_BYTES):
        x = int.from_bytes(points[start : start + POINT_BYTES], "little")
        if x >= _P or x in _SMALL_ORDER or not _on_curve(x):
            return start // POINT_BYTES
    return None


def _multiply(scalar: bytes, points: bytes, executor: Executor | None) -> bytes:
    check_points(points, executor)
    multiply = partial(_multiply_chunk, scalar)
    chunks = _chunks(points)
    return b"".join(executor.map(multiply, chunks) if executor else map(multiply, chunks))


def _inverse(scalar: bytes) -> bytes:
    """Return the scalar that undoes one on the group of prime order, in the form X25519 wants: 8 m, 2^251 <= m < 2^252.

    A point and its negative share x, so 8 m may be the inverse modulo the order or its negative; one of the two fits.
    """
    clamped = int.from_bytes(scalar, "little") & (2**255 - 8) | 2**254
    m = pow(8 * clamped, -1, _ORDER)
    return (8 * max(m, _ORDER - m)).to_bytes(POINT_BYTES, "little")


def _multiply_chunk(scalar: bytes, points: bytes) -> bytes:
    starts = range(0, len(points), POINT_BYTES)
    return b"".join([crypto_scalarmult(scalar, points[start : start + POINT_BYTES]) for start in starts])
