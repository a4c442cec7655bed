"""Blinded ids: the elliptic-curve operations of private set intersection, which finds the ids that two parties share.

An id is hashed to a point of a curve (`hash_to_group`). To blind a point, a party multiplies it by its secret number,
its scalar. If two parties with scalars a and b both blind a point, the result does not depend on their order, so equal
ids give equal points (Meadows 1986; Huberman, Franklin, Hogg 1999). Under the decisional Diffie-Hellman assumption,
with the hash as a random oracle, a point that one party has blinded looks random to all others. The order of a set of
points would reveal information as well, so sets are sent in ascending order (`sort_points`).

The curve is Curve25519, whose points are given by their x-coordinates, and multiplication is X25519 (RFC 7748) of
libsodium. That is about three times faster than points with two coordinates, which need a subgroup test; ristretto255
is not available in PyNaCl's libsodium. x-coordinates alone have three problems, which are solved here:

- Half of all numbers x belong to the curve, and the others to another curve, its twist. Blinding does not change which,
  so hashing an id to any x would reveal one bit of it. Ids are therefore hashed repeatedly until x is on the curve, and
  other numbers from peers are refused.
- The number of points is 8 times a prime. Scalars are multiples of 8 (RFC 7748), so blinded points are in the group of
  prime order, and a crafted point reveals nothing about a scalar modulo 8.
- x and x + p would be the same point. Only canonical numbers (x < p) that are not of small order are accepted, so equal
  points have equal bytes.

n points are passed as one bytes object of n * 32 bytes. Functions with an `executor` divide the work among its
processes or threads, which must belong to this party because they receive scalars. libsodium releases Python's lock.
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
# x-coordinates of points of order 1, 2, 4 and 8 on the curve; such points on the twist are refused as not on the curve
_SMALL_ORDER = frozenset(
    {
        0,
        1,
        325606250916557431795983626356110631294008115727848805560023387167927233504,
        39382357235489614581723060781553021112529911719440698176882885853963445705823,
    }
)
_DOMAIN = b"securevfl id to curve25519 v1\x00"
_CHUNK = 4096  # number of ids or points that a worker processes in one call


def hash_to_group(ids: CanonicalIds, executor: Executor | None = None) -> bytes:
    """Map canonical ids to points: SHA-512 of the id and a counter, which increases until the result is on the curve.

    The points are uniform over all x-coordinates of the curve (Boneh, Lynn, Shacham 2001, section 3.3). The number of
    attempts, two on average, depends on the id. Others cannot measure it, because all ids are hashed before any point
    is sent.

    Args:
        ids: n canonical ids.
        executor: runs the work in parallel; None for the calling thread.

    Returns:
        n points of 32 bytes.
    """
    chunks = [ids[start : start + _CHUNK] for start in range(0, len(ids), _CHUNK)]
    return b"".join(executor.map(_hash_chunk, chunks) if executor else map(_hash_chunk, chunks))


def check_points(points: bytes, executor: Executor | None = None) -> int:
    """Check points that a peer sent.

    Args:
        points: n points of 32 bytes.
        executor: runs the work in parallel; None for the calling thread.

    Returns:
        The number n.

    Raises:
        CryptoError: unless every point is canonical (x < p), on the curve and not of small order.
    """
    if len(points) % POINT_BYTES:
        raise CryptoError(
            f"received {len(points)} bytes of points, which is not a multiple of {POINT_BYTES}",
            code="SVFL-CRYPTO-CIPHERTEXT",
        )
    chunks = _chunks(points)
    for number, invalid in enumerate(executor.map(_first_invalid, chunks) if executor else map(_first_invalid, chunks)):
        if invalid is not None:
            raise CryptoError(
                f"point {number * _CHUNK + invalid} of {len(points) // POINT_BYTES} is not a blinded id: it is not "
                "canonical, not on Curve25519 or of small order",
                "check the sender's software; the sender may be cheating",
                code="SVFL-PROTOCOL-CHEATING",
            )
    return len(points) // POINT_BYTES


class Blinder(Secret):
    """A new secret scalar, by which points are multiplied.

    Use a new object for every intersection. With the same scalar, others could recognize the same ids in two runs.
    """

    __slots__ = ("_scalar",)

    def __init__(self) -> None:
        self._scalar = secrets.token_bytes(POINT_BYTES)

    def blind(self, points: bytes, executor: Executor | None = None) -> bytes:
        """Multiply every point by the scalar. Raise CryptoError like `check_points`.

        The order of two blinders a and b does not matter: a.blind(b.blind(points)) == b.blind(a.blind(points)).

        Args:
            points: n points of 32 bytes.
            executor: runs the work in parallel; None for the calling thread.

        Returns:
            The products in the same order.
        """
        return _multiply(self._scalar, points, executor)

    def unblind(self, points: bytes, executor: Executor | None = None) -> bytes:
        """Divide every point by the scalar, which undoes `blind`. Raise CryptoError like `check_points`.

        For two blinders a and b, a.unblind(b.blind(a.blind(points))) == b.blind(points). So the party with b can
        multiply the points of the party with a, and does not see them. That is an oblivious pseudorandom function
        (Jarecki, Kiayias, Krawczyk 2014).

        Args:
            points: n points of 32 bytes.
            executor: runs the work in parallel; None for the calling thread.

        Returns:
            The points in the same order.
        """
        return _multiply(_inverse(self._scalar), points, executor)


def sort_points(points: bytes) -> tuple[bytes, NDArray[np.intp]]:
    """Sort points by their bytes, so that their order reveals nothing about the order of rows.

    Args:
        points: n points of 32 bytes.

    Returns:
        The sorted points, and the original position (n,) of each.
    """
    rows = _rows(points)
    order = np.argsort(rows, kind="stable")
    return rows[order].tobytes(), order


def _rows(points: bytes) -> NDArray[np.bytes_]:
    # numpy ignores zeros at the end of byte strings when it compares them, which is correct since all have 32 bytes
    return np.frombuffer(points, dtype=f"S{POINT_BYTES}") if points else np.empty(0, dtype=f"S{POINT_BYTES}")


def _chunks(points: bytes) -> list[bytes]:
    step = _CHUNK * POINT_BYTES
    return [points[start : start + step] for start in range(0, len(points), step)]


def _on_curve(x: int) -> bool:
    # x^3 + A * x^2 + x must be a square modulo p (equation of the curve, RFC 7748 section 4.1)
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


def _first_invalid(points: bytes) -> int | None:
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
    """Return the inverse of a scalar modulo the prime order, in the form that X25519 requires.

    X25519 needs a scalar 8 * m with 2^251 <= m < 2^252. A point and its negative have the same x, so 8 * m may be the
    inverse or its negative, and one of the two has this form.
    """
    clamped = int.from_bytes(scalar, "little") & (2**255 - 8) | 2**254
    m = pow(8 * clamped, -1, _ORDER)
    return (8 * max(m, _ORDER - m)).to_bytes(POINT_BYTES, "little")


def _multiply_chunk(scalar: bytes, points: bytes) -> bytes:
    starts = range(0, len(points), POINT_BYTES)
    return b"".join([crypto_scalarmult(scalar, points[start : start + POINT_BYTES]) for start in starts])
