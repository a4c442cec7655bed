"""Base oblivious transfers: one end gets pairs of keys, the other one key of each pair, the one it has chosen.

Chou, Orlandi 2015 ("The simplest protocol for oblivious transfer"), on Ed25519's group of prime order l with
generator G, for transfers j = 1 .. n at once:

    1. offerer -> chooser    A = a G
    2. chooser -> offerer    B_j = b_j G + c_j A
       keys                  offerer: Hash(j, A, B_j, a (B_j - m A)) for m = 0, 1;  chooser: Hash(j, A, B_j, b_j A)

B_j is uniform whatever c_j, so the offerer learns nothing of the choices; under computational Diffie-Hellman, with
the hash as a random oracle, the chooser has nothing of the other key. For semi-honest parties over an authenticated
line. Products and sums of points are libsodium's.

Points that come are checked here to be canonical, on the curve and in the group of prime order, and by libsodium once
more. Of an offer with a part of small order each B_j would tell c_j, by whether it has that part too; libsodium took
a part of order two for none until the end of 2025 (CVE-2025-69277).
"""

from __future__ import annotations

import hashlib
import secrets

from gmpy2 import jacobi
from nacl.bindings import (
    crypto_core_ed25519_add,
    crypto_core_ed25519_is_valid_point,
    crypto_core_ed25519_sub,
    crypto_scalarmult_ed25519_base_noclamp,
    crypto_scalarmult_ed25519_noclamp,
)

from securevfl.crypto.key_derivation import SYMMETRIC_KEY_BYTES
from securevfl.crypto.secret import Secret
from securevfl.errors import CryptoError

EDWARDS_POINT_BYTES = 32

_P = 2**255 - 19

_ORDER = 2**252 + 27742317777372353535851937790883648493

_BEFORE_ORDER = (_ORDER - 1).to_bytes(32, "little")


class BaseSender(Secret):
    """The end that gets both keys of every pair; serves once."""

    __slots__ = ("_scalar", "offer")

    offer: bytes  # A, safe to publish

    def __init__(self) -> None:
        self._scalar = _scalar()
        self.offer = crypto_scalarmult_ed25519_base_noclamp(self._scalar)

    def pairs(self, choices: bytes) -> list[tuple[bytes, bytes]]:
        """Two keys of 32 bytes for each of the points (n x 32 bytes) that came. CryptoError if one is none."""
        if len(choices) % EDWARDS_POINT_BYTES:
            raise CryptoError(
                f"base transfers: {len(choices)} bytes of points came, no multiple of {EDWARDS_POINT_BYTES}"
            )
        shift = crypto_scalarmult_ed25519_noclamp(self._scalar, self.offer)
        pairs = []
        for number, start in enumerate(range(0, len(choices), EDWARDS_POINT_BYTES)):
            point = choices[start : start + EDWARDS_POINT_BYTES]
            _check(point)
            shared = crypto_scalarmult_ed25519_noclamp(self._scalar, point)
            other = crypto_core_ed25519_sub(shared, shift)
            pairs.append((_key(number, self.offer, point, shared), _key(number, self.offer, point, other)))
        return pairs


def receive_keys(offer: bytes, choices: list[bool]) -> tuple[bytes, list[bytes]]:
    """Return what to send back (n x 32 bytes), and the key of 32 bytes that each choice gives.

    CryptoError if the offer is no point of the group.
    """
    _check(offer)
    points, keys = [], []
    for number, choice in enumerate(choices):
        scalar = _scalar()
        plain = crypto_scalarmult_ed25519_base_noclamp(scalar)
        shifted = crypto_core_ed25519_add(plain, offer)
        point = shifted if choice else plain
        points.append(point)
        keys.append(_key(number, offer, point, crypto_scalarmult_ed25519_noclamp(scalar, offer)))
    return b"".join(points), keys


def _scalar() -> bytes:
    return (1 + secrets.randbelow(_ORDER - 1)).to_bytes(32, "little")


def _check(point: bytes) -> None:
    if not (_on_curve(point) and crypto_core_ed25519_is_valid_point(point) and _of_prime_order(point)):
        raise CryptoError(
            "base transfers: a canonical point of Ed25519's group of prime order was expected, something else came; "
            "the sender runs other software or is cheating"
        )


def _on_curve(point: bytes) -> bool:
    """Whether these are 32 bytes of a point with y < p, other than those with x = 0 (of order one and two)."""
    y = int.from_bytes(point, "little") & (2**255 - 1)
    # -x^2 + y^2 = 1 + d x^2 y^2 with d = -121665/121666, so x^2 = (y^2 - 1) / (d y^2 + 1): RFC 8032 section 5.1.3.
    return (
        len(point) == EDWARDS_POINT_BYTES
        and y < _P
        and jacobi((y * y - 1) * 121666 * (121666 - 121665 * y * y), _P) == 1
    )


def _of_prime_order(point: bytes) -> bool:
    """Whether (l - 1) P = -P, that is, l P is the neutral point; -P is P with the other sign of x."""
    return crypto_scalarmult_ed25519_noclamp(_BEFORE_ORDER, point) == point[:-1] + bytes([point[-1] ^ 128])


def _key(number: int, offer: bytes, point: bytes, shared: bytes) -> bytes:
    context = number.to_bytes(4, "little") + offer + point + shared
    return hashlib.blake2b(context, digest_size=SYMMETRIC_KEY_BYTES, person=b"securevfl ot").digest()
