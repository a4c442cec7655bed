"""Pair keys from public keys: X25519 (RFC 7748), then HKDF-SHA256 (RFC 5869).

The key is bound to its context: session, domain (what the key is for), and both parties' names with their public
keys, in the order of the names. Two parties that disagree on any of these get different keys. Public keys must come
over an authenticated channel: a peer that can replace them sits in the middle.
"""

from __future__ import annotations

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from securevfl.crypto.key_derivation import SYMMETRIC_KEY_BYTES, encode_context
from securevfl.crypto.secret import Secret
from securevfl.errors import CryptoError

PUBLIC_KEY_BYTES = 32


class KeyPair(Secret):
    """An X25519 key pair. The private key never leaves."""

    __slots__ = ("_private", "public")

    public: bytes  # 32 bytes, safe to publish

    def __init__(self) -> None:
        """Draw a fresh pair from the operating system's generator."""
        self._private = X25519PrivateKey.generate()
        self.public = self._private.public_key().public_bytes_raw()

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
                f"expected {PUBLIC_KEY_BYTES} bytes made by KeyPair, have {peer!r} send a new one"
            ) from None
        (first, first_key), (second, second_key) = sorted([(own, self.public), (peer, peer_public)])
        info = encode_context("securevfl", "agreement", session, domain, first, first_key, second, second_key)
        return HKDF(SHA256(), SYMMETRIC_KEY_BYTES, salt=None, info=info).derive(shared)
