"""Checks of messages between the two parties of an encryption scheme ("engine"): their headers and lengths.

A message begins with four letters ("magic") that name its kind and the version of its format, followed by the
fingerprint of its key.
"""

from __future__ import annotations

import struct
from typing import Any

from securevfl.errors import CryptoError, KeyMismatch

_CONTENTS = {
    "K": "a public key",
    "G": "encrypted residuals",
    "B": "an encrypted, masked gradient",
    "O": "a decrypted, masked gradient",
    "V": "an encrypted query",
    "U": "an encrypted query with seeds",
    "T": "a part of an encrypted answer",
    "R": "an encrypted answer",
}
"""The content of a message in words, by the third of the letters that name its kind."""


def read_header(engine: str, shape: struct.Struct, magic: bytes, message: bytes, key: bytes) -> tuple[Any, ...]:
    """Check the kind and the key of a message, and return the other fields of its header.

    Args:
        engine: name of the engine, for error messages.
        shape: format of the whole header.
        magic: the four letters of this kind of message.
        message: the message.
        key: fingerprint of the expected key.

    Returns:
        The fields of the header that follow the fingerprint.

    Raises:
        CryptoError: if the message is of another kind or version.
        KeyMismatch: if the message belongs to another key.
    """
    kind, content = magic.decode(), _content(magic)
    if len(message) < shape.size or message[:4] != magic:
        raise CryptoError(
            f"{engine}: received {len(message)} bytes that are not {content} of this version",
            "run the same version of securevfl on both sides",
            code="SVFL-CRYPTO-CIPHERTEXT",
            kind=kind,
        )
    fields = shape.unpack_from(message)
    if fields[1] != key:
        raise KeyMismatch(f"{engine}: received {content} of another key", code="SVFL-CRYPTO-KEY", kind=kind)
    return fields[2:]


def check_length(engine: str, magic: bytes, message: bytes, expected: int) -> None:
    """Check the length of a message.

    Args:
        engine: name of the engine, for error messages.
        magic: the four letters of this kind of message.
        message: the message.
        expected: the correct length in bytes.

    Raises:
        CryptoError: if the message has another length.
    """
    if len(message) != expected:
        raise CryptoError(
            f"{engine}: received {_content(magic)} of {len(message)} bytes instead of {expected}",
            code="SVFL-CRYPTO-CIPHERTEXT",
            kind=magic.decode(),
        )


def _content(magic: bytes) -> str:
    """Return the content of a kind of message in words."""
    return _CONTENTS[magic.decode()[2]]
