"""Pair keys from public keys: X25519 (RFC 7748), then HKDF-SHA256 (RFC 5869).

The key is bound to its context: session, domain (what the key is for), and both parties' names with their public
keys, in the order of the names. Two parties that disagree on any of these get different keys. Public keys must come
over an authenticated channel: a peer that can replace them sits in the middle.
"""

from __future__ import annotations

from collections.abc import Sequence

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from securevfl.crypto.masking.shamir import Share, combine, split
from securevfl.crypto.prg import KEY_BYTES, encode_context
from securevfl.crypto.scheme import Secret
from securevfl.errors import CryptoError

__all__ = ["PUBLIC_BYTES", "KeyPair"]

PUBLIC_BYTES = 32


class KeyPair(Secret):
    """An X25519 key pair. The private key leaves only as Shamir shares."""

    __slots__ = ("_private", "public")

    public: bytes  # 32 bytes, safe to publish

    def __init__(self) -> None:
        """Draw a fresh pair from the operating system's generator."""
        self._take(X25519PrivateKey.generate())

    def _take(self, private: X25519PrivateKey) -> None:
        self._private = private
        self.public = private.public_key().public_bytes_raw()

    def agree(self, peer_public: bytes, *, session: str, own: str, peer: str, domain: str) -> bytes:
        """Derive the 32-byte key shared by parties `own` and `peer` in this session, for this domain.

        CryptoError if the peer's key is malformed, of low order (the shared secret would be zero) or this very key,
        or if the names are equal.
        """
        if own == peer or peer_public == self.public:
            raise CryptoError(
                f"key agreement of {own!r} with {peer!r}: expected two parties with two keys, got one twice"
            )
        try:
            shared = self._private.exchange(X25519PublicKey.from_public_bytes(peer_public))
        except ValueError:
            raise CryptoError(
                f"key agreement: the public key of {peer!r} ({len(peer_public)} bytes) is no X25519 key of full order; "
                f"expected {PUBLIC_BYTES} bytes made by KeyPair, have {peer!r} send a new one"
            ) from None
        (first, first_key), (second, second_key) = sorted([(own, self.public), (peer, peer_public)])
        info = encode_context("securevfl", "agreement", session, domain, first, first_key, second, second_key)
        return HKDF(SHA256(), KEY_BYTES, salt=None, info=info).derive(shared)

    def split(self, *, threshold: int, holders: int) -> list[Share]:
        """Shares of the private key, so that `threshold` holders can stand in for a party that dropped out.

        Only for a pair made for one round (Bonawitz et al. 2017, round 1): whoever restores it can remove the pair
        masks of every round in which it was used.
        """
        return split(self._private.private_bytes_raw(), threshold=threshold, holders=holders)

    @classmethod
    def restore(cls, shares: Sequence[Share], *, threshold: int) -> KeyPair:
        """Restore the pair behind `shares`. CryptoError as in `shamir.combine`."""
        pair = cls.__new__(cls)
        pair._take(X25519PrivateKey.from_private_bytes(combine(shares, threshold=threshold)))
        return pair
