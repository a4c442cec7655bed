"""Key agreement: two parties derive a common secret key from each other's public keys.

It uses X25519 (RFC 7748), and then HKDF-SHA256 (RFC 5869) with a context: the session, the domain (the purpose of the
key), and the names and public keys of both parties in the order of the names. Two parties that disagree about any of
these derive different keys. Public keys must arrive over an authenticated channel; otherwise an attacker can replace
them and read everything (man in the middle).
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
    """A new random X25519 key pair. The private key never leaves the object.

    Attributes:
        public: the public key of 32 bytes.
    """

    __slots__ = ("_private", "public")

    public: bytes

    def __init__(self) -> None:
        self._private = X25519PrivateKey.generate()
        self.public = self._private.public_key().public_bytes_raw()

    def agree(self, peer_public: bytes, *, session: str, party: str, peer: str, domain: str) -> bytes:
        """Derive the common key (32 bytes) of two parties for one session and one purpose.

        Args:
            peer_public: the public key of the peer.
            session: name of the session.
            party: name of this party.
            peer: name of the peer.
            domain: purpose of the key.

        Returns:
            The key.

        Raises:
            CryptoError: if the peer's key is malformed, has low order or equals this party's, or if the names are
                equal.
        """
        if party == peer or peer_public == self.public:
            raise CryptoError(
                f"the key agreement of {party!r} with {peer!r} uses one name or one public key twice",
                "give every party its name and its key",
                code="SVFL-CRYPTO-KEY",
                peer=peer,
            )
        try:
            shared = self._private.exchange(X25519PublicKey.from_public_bytes(peer_public))
        except ValueError:
            raise CryptoError(
                f"the public key of {peer!r} ({len(peer_public)} bytes) is not an X25519 key of full order",
                f"let {peer!r} send a new key of {PUBLIC_KEY_BYTES} bytes",
                code="SVFL-CRYPTO-KEY",
                peer=peer,
            ) from None
        (first, first_key), (second, second_key) = sorted([(party, self.public), (peer, peer_public)])
        info = encode_context("securevfl", "agreement", session, domain, first, first_key, second, second_key)
        return HKDF(SHA256(), SYMMETRIC_KEY_BYTES, salt=None, info=info).derive(shared)
