"""Encryption of one secret under a single-use key: ChaCha20-Poly1305 (RFC 8439).

The nonce is always zero, so the key must be derived for this secret alone. The context consists of bytes that both
parties know, such as the name of the protocol. Decryption with another context fails like decryption with another key.
"""

from __future__ import annotations

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from securevfl.errors import CryptoError

_NONCE = bytes(12)


def wrap(key: bytes, secret: bytes, context: bytes) -> bytes:
    """Encrypt a secret; the result is 16 bytes longer. The key of 32 bytes must encrypt nothing else."""
    return ChaCha20Poly1305(key).encrypt(_NONCE, secret, context)


def unwrap(key: bytes, sealed: bytes, context: bytes) -> bytes:
    """Decrypt a secret that `wrap` encrypted.

    Args:
        key: the key that was passed to `wrap`.
        sealed: the ciphertext.
        context: the context that was passed to `wrap`.

    Returns:
        The secret.

    Raises:
        CryptoError: if the key or the context differs, or the ciphertext was altered.
    """
    try:
        return ChaCha20Poly1305(key).decrypt(_NONCE, sealed, context)
    except InvalidTag:
        raise CryptoError(
            f"an encrypted secret of {len(sealed)} bytes was altered, or is for another session or purpose",
            "start the session again",
            code="SVFL-CRYPTO-CIPHERTEXT",
        ) from None
