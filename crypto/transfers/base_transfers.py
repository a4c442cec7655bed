"""Base oblivious transfers: the sender gets pairs of keys, and the receiver the key of each pair that it has chosen.

This is the protocol of Chou, Orlandi 2015 ("The simplest protocol for oblivious transfer"), for n transfers at once. G
is the generator of the group of Ed25519 points with prime order l. a and b_j are secret random numbers of the sender
and the receiver, and c_j (0 or 1) is the receiver's choice in transfer j:

    1. sender -> receiver    the offer A = a * G
    2. receiver -> sender    B_j = b_j * G + c_j * A for each transfer j
       sender                key m of transfer j is Hash(j, A, B_j, a * (B_j - m * A)), for m = 0 and 1
       receiver              key c_j of transfer j is Hash(j, A, B_j, b_j * A)

B_j is uniform whatever c_j is, so the sender learns nothing about the choices. Under the computational Diffie-Hellman
assumption, with the hash as a random oracle, the other key of a pair is pseudorandom to the receiver. The protocol is
for semi-honest parties over an authenticated channel. libsodium multiplies and adds points.

Received points must be canonical, on the curve and in the group of prime order; this module checks that, and libsodium
checks it again. If an offer had a component of small order, each B_j would reveal c_j by whether it has the component
too. Until the end of 2025, libsodium accepted a component of order two (CVE-2025-69277).
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
"""Length of an encoded point."""

_P = 2**255 - 19

_ORDER = 2**252 + 27742317777372353535851937790883648493

_BEFORE_ORDER = (_ORDER - 1).to_bytes(32, "little")


class BaseSender(Secret):
    """The sender, which gets both keys of every pair. The object is single-use.

    Attributes:
        offer: the offer A, a point that is sent to the receiver.
    """

    __slots__ = ("_scalar", "offer")

    offer: bytes

    def __init__(self) -> None:
        self._scalar = _scalar()
        self.offer = crypto_scalarmult_ed25519_base_noclamp(self._scalar)

    def pairs(self, points: bytes) -> list[tuple[bytes, bytes]]:
        """Compute both keys of every transfer.

        Args:
            points: the receiver's n points B_j, of 32 bytes each, which hide its choices.

        Returns:
            n pairs of keys of 32 bytes.

        Raises:
            CryptoError: if the bytes are not points of the group.
        """
        if len(points) % EDWARDS_POINT_BYTES:
            raise CryptoError(
                f"received {len(points)} bytes of points, which is not a multiple of {EDWARDS_POINT_BYTES}",
                code="SVFL-CRYPTO-CIPHERTEXT",
            )
        shift = crypto_scalarmult_ed25519_noclamp(self._scalar, self.offer)
        pairs = []
        for number, start in enumerate(range(0, len(points), EDWARDS_POINT_BYTES)):
            point = points[start : start + EDWARDS_POINT_BYTES]
            _check(point)
            shared = crypto_scalarmult_ed25519_noclamp(self._scalar, point)
            other = crypto_core_ed25519_sub(shared, shift)
            pairs.append((_key(number, self.offer, point, shared), _key(number, self.offer, point, other)))
        return pairs


def receive_keys(offer: bytes, choices: list[bool]) -> tuple[bytes, list[bytes]]:
    """Run the receiver's side.

    Args:
        offer: the sender's offer A.
        choices: n choices; True selects the second key of a pair.

    Returns:
        The n points B_j for the sender, of 32 bytes each; and the n chosen keys of 32 bytes.

    Raises:
        CryptoError: if the offer is not a point of the group.
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
            "received a point that is not canonical, or not in the group of Ed25519 of prime order",
            "check the software of the party that sent the point; it may be cheating",
            code="SVFL-PROTOCOL-CHEATING",
        )


def _on_curve(point: bytes) -> bool:
    """Return whether 32 bytes encode a point of the curve with y < p and x not 0, so not of order one or two."""
    y = int.from_bytes(point, "little") & (2**255 - 1)
    # x^2 = (y^2 - 1) / (d * y^2 + 1), d = -121665/121666 (RFC 8032, section 5.1.3); the Jacobi symbol finds squares
    return (
        len(point) == EDWARDS_POINT_BYTES
        and y < _P
        and jacobi((y * y - 1) * 121666 * (121666 - 121665 * y * y), _P) == 1
    )


def _of_prime_order(point: bytes) -> bool:
    """Return whether (l - 1) * P = -P for a point P, so that its order is l. -P is P with the other sign bit of x."""
    return crypto_scalarmult_ed25519_noclamp(_BEFORE_ORDER, point) == point[:-1] + bytes([point[-1] ^ 128])


def _key(number: int, offer: bytes, point: bytes, shared: bytes) -> bytes:
    context = number.to_bytes(4, "little") + offer + point + shared
    return hashlib.blake2b(context, digest_size=SYMMETRIC_KEY_BYTES, person=b"securevfl ot").digest()
