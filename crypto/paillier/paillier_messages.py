"""Format of Paillier messages: a header with kind, key and sizes, then big-endian numbers of fixed width."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from securevfl.errors import CryptoError, KeyMismatch

_MAGIC = b"SVPC"

_VERSION = 1

_HEAD = struct.Struct(">4sBB16sIIIdI")


class MessageKind(IntEnum):
    """Kinds of Paillier messages.

    Attributes:
        SEALED: ciphertexts of g; sizes n, c, 0.
        BLINDED: ciphertexts of the masked J^T g; sizes n, c, d.
        OPENED: windows of its plaintexts; sizes n, c, d.
        SUM: ciphertexts of a sum; sizes m, allowed terms, added terms.
    """

    SEALED = 1
    BLINDED = 2
    OPENED = 3
    SUM = 4


@dataclass(frozen=True)
class PaillierHeader:
    """The header of a message.

    Attributes:
        kind: kind of the message.
        fingerprint: fingerprint of the key.
        sizes: three sizes, see `MessageKind`.
        bound: agreed bound on a value.
    """

    kind: MessageKind
    fingerprint: bytes
    sizes: tuple[int, int, int]
    bound: float


def write_message(header: PaillierHeader, numbers: Sequence[int], width: int) -> bytes:
    """Return a message of a header and of numbers with `width` bytes each."""
    head = _HEAD.pack(_MAGIC, _VERSION, header.kind, header.fingerprint, *header.sizes, header.bound, len(numbers))
    return head + b"".join(int(x).to_bytes(width, "big") for x in numbers)


def message_size(count: int, width: int) -> int:
    """Return the size of a message with `count` numbers of `width` bytes."""
    return _HEAD.size + count * width


def read_message(data: bytes, kind: MessageKind, fingerprint: bytes) -> tuple[PaillierHeader, bytes, int]:
    """Read the header of a message.

    Args:
        data: the message.
        kind: expected kind.
        fingerprint: fingerprint of the expected key.

    Returns:
        The header, the bytes of the numbers, and their number according to the header.

    Raises:
        CryptoError: if the message is malformed or of another kind.
        KeyMismatch: if it belongs to another key.
    """
    if len(data) < _HEAD.size:
        raise CryptoError(
            f"received {len(data)} bytes, which are too short for a Paillier message", code="SVFL-CRYPTO-CIPHERTEXT"
        )
    magic, version, got, key, n, c, d, bound, count = _HEAD.unpack_from(data)
    if magic != _MAGIC or version != _VERSION:
        raise CryptoError(
            f"the bytes are not a Paillier message of version {_VERSION}",
            "run the same version of securevfl on both sides",
            code="SVFL-CRYPTO-CIPHERTEXT",
        )
    if got != kind:
        raise CryptoError(
            f"received a Paillier message of kind {got} instead of {kind.value}",
            "pass the messages in order",
            code="SVFL-CRYPTO-CIPHERTEXT",
        )
    if key != fingerprint:
        raise KeyMismatch("the ciphertexts belong to another key", code="SVFL-CRYPTO-KEY")
    if not (math.isfinite(bound) and bound > 0) or n < 1 or c < 1:
        raise CryptoError("a Paillier message has an impossible size or bound", code="SVFL-CRYPTO-CIPHERTEXT")
    return PaillierHeader(kind, key, (n, c, d), bound), data[_HEAD.size :], count


def read_numbers(body: bytes, promised: int, expected: int, width: int) -> list[int]:
    """Read numbers of a message.

    Args:
        body: their bytes.
        promised: their number according to the header.
        expected: their expected number.
        width: bytes of a number.

    Returns:
        The numbers.

    Raises:
        CryptoError: if the header or the length contradicts the expected number.
    """
    if promised != expected or len(body) != expected * width:
        raise CryptoError(
            f"received {len(body)} bytes with a header for {promised} numbers instead of {expected} of {width} bytes",
            code="SVFL-CRYPTO-CIPHERTEXT",
        )
    return [int.from_bytes(body[i : i + width], "big") for i in range(0, len(body), width)]
