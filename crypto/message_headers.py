"""Checks of the header and the length of engine messages."""

from __future__ import annotations

import struct
from typing import Any

from securevfl.errors import CryptoError, KeyMismatch


def read_header(engine: str, shape: struct.Struct, magic: bytes, message: bytes, key: bytes) -> tuple[Any, ...]:
    """Return the fields after magic and key, once these are what they should be; else CryptoError or KeyMismatch."""
    kind = magic.decode()
    if len(message) < shape.size or message[:4] != magic:
        raise CryptoError(f"{engine}: a {kind} message was expected, {len(message)} bytes of another came")
    fields = shape.unpack_from(message)
    if fields[1] != key:
        raise KeyMismatch(f"{engine}: a {kind} message of another key came; exchange public keys again")
    return fields[2:]


def check_length(engine: str, magic: bytes, message: bytes, expected: int) -> None:
    """CryptoError unless a message has so many bytes."""
    if len(message) != expected:
        raise CryptoError(
            f"{engine}: {magic.decode()} message has {len(message)} bytes, expected {expected}; it was altered"
        )
