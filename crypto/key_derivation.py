"""Derive symmetric keys for named contexts (HKDF-Expand, RFC 5869)."""

from __future__ import annotations

from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

from securevfl.errors import CryptoError

SYMMETRIC_KEY_BYTES = 32


def encode_context(*parts: str | bytes | int) -> bytes:
    """One byte string per list of parts: every part carries its type and length, so no two lists collide."""
    encoded = []
    for part in parts:
        if isinstance(part, str):
            tag, raw = b"s", part.encode()
        elif isinstance(part, int):
            tag, raw = b"i", str(part).encode()
        else:
            tag, raw = b"b", part
        encoded.append(tag + len(raw).to_bytes(4, "little") + raw)
    return b"".join(encoded)


def derive_key(key: bytes, *context: str | bytes | int) -> bytes:
    """Derive a 32-byte key for one context (HKDF-Expand with SHA-256, RFC 5869). It does not lead back to `key`.

    CryptoError if `key` is not 32 bytes.
    """
    if len(key) != SYMMETRIC_KEY_BYTES:
        raise CryptoError(
            f"key: expected {SYMMETRIC_KEY_BYTES} bytes, got {len(key)}; derive one with HKDF or os.urandom(32)"
        )
    return HKDFExpand(SHA256(), SYMMETRIC_KEY_BYTES, encode_context("securevfl", *context)).derive(key)
