"""A secret under a key that serves once: ChaCha20-Poly1305 (RFC 8439).

The nonce is zero throughout, so the key must be derived for this one secret. What the secret belongs to is bound to
it: who opens it with another context is refused, as with another key.
"""

from __future__ import annotations

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from securevfl.errors import CryptoError

_NONCE = bytes(12)


def wrap(key: bytes, secret: bytes, context: bytes) -> bytes:
    """Return the secret sealed, 16 bytes longer. `key` has 32 bytes and seals nothing else."""
    return ChaCha20Poly1305(key).encrypt(_NONCE, secret, context)


def unwrap(key: bytes, sealed: bytes, context: bytes) -> bytes:
    """Open what `wrap` has sealed. CryptoError under another key or context, or if the bytes were altered."""
    try:
        return ChaCha20Poly1305(key).decrypt(_NONCE, sealed, context)
    except InvalidTag:
        raise CryptoError(
            f"a sealed secret of {len(sealed)} bytes does not open: it was altered or is for another session or "
            "purpose; start the session again"
        ) from None
