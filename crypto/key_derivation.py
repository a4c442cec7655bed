"""Derivation of symmetric keys from one key, a different key for each context (HKDF-Expand, RFC 5869).

A context is a list of values that name the purpose of a key, such as a protocol, a session and a number.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable

from securevfl.errors import CryptoError

SYMMETRIC_KEY_BYTES = 32
"""Length of ChaCha20 keys, and of the seeds of other generators, in bytes."""

_FIRST_BLOCK = b"\x01"  # number of the only block of HKDF-Expand's output, which is as long as a SHA-256 digest


def encode_context(*parts: str | bytes | int) -> bytes:
    """Encode a list of values so that different lists have different bytes: each value follows its type and length."""
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
    """Derive a key (32 bytes) for one context. The derived key reveals neither `key` nor the keys of other contexts.

    Args:
        key: the secret key of 32 bytes.
        *context: public values that name the purpose of the new key.

    Returns:
        The derived key.

    Raises:
        CryptoError: if `key` has another length.
    """
    return derive_keys((key,), *context)[0]


def derive_keys(keys: Iterable[bytes], *context: str | bytes | int) -> list[bytes]:
    """Derive a key from each of several keys for one context; see `derive_key`."""
    info = encode_context("securevfl", *context) + _FIRST_BLOCK
    derived = []
    for key in keys:
        if len(key) != SYMMETRIC_KEY_BYTES:
            raise CryptoError(
                f"the key has {len(key)} bytes instead of {SYMMETRIC_KEY_BYTES}",
                "derive a key of 32 bytes with HKDF, or draw one with os.urandom(32)",
                code="SVFL-CRYPTO-KEY",
            )
        # one call of HMAC is faster than the class `HKDFExpand`, and a training derives thousands of keys
        derived.append(hmac.digest(key, info, "sha256"))
    return derived
