"""The format of Paillier messages: a header with kind, key and sizes, then big-endian integers of fixed width."""

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
    """The kinds of Paillier messages, and the three sizes in their headers.

    For products J^T g, g has the shape (n, c) and J the shape (n, d).

    Attributes:
        SEALED: ciphertexts of g; sizes n, c, 0.
        BLINDED: ciphertexts of J^T g with masks; sizes n, c, d.
        OPENED: the decrypted results with masks; sizes n, c, d.
        SUM: ciphertexts of a sum; sizes: length of the vector, allowed number of vectors, number of added vectors.
    """

    SEALED = 1
    BLINDED = 2
    OPENED = 3
    SUM = 4

    @property
    def words(self) -> str:
        """The content of such a message, for error messages."""
        return _CONTENTS[self]


_CONTENTS = {
    MessageKind.SEALED: "encrypted residuals",
    MessageKind.BLINDED: "an encrypted, masked gradient",
    MessageKind.OPENED: "a decrypted, masked gradient",
    MessageKind.SUM: "an encrypted vector of a sum",
}


@dataclass(frozen=True)
class PaillierHeader:
    """The header of a message.

    Attributes:
        kind: kind of the message.
        fingerprint: fingerprint of the key.
        sizes: three sizes, see `MessageKind`.
        bound: agreed bound on the absolute values of the encrypted numbers.
    """

    kind: MessageKind
    fingerprint: bytes
    sizes: tuple[int, int, int]
    bound: float


def write_message(header: PaillierHeader, numbers: Sequence[int], width: int) -> bytes:
    """Return a message of a header, followed by numbers of `width` bytes each."""
    head = _HEAD.pack(_MAGIC, _VERSION, header.kind, header.fingerprint, *header.sizes, header.bound, len(numbers))
    return head + b"".join(int(x).to_bytes(width, "big") for x in numbers)


def message_size(count: int, width: int) -> int:
    """Return the size in bytes of a message with `count` numbers of `width` bytes each."""
    return _HEAD.size + count * width


def read_message(data: bytes, kind: MessageKind, fingerprint: bytes) -> tuple[PaillierHeader, bytes, int]:
    """Read the header of a message.

    Args:
        data: the message.
        kind: expected kind.
        fingerprint: fingerprint of the expected key.

    Returns:
        The header; the bytes after the header; and the count of numbers that the header states.

    Raises:
        CryptoError: if the message is malformed or of another kind.
        KeyMismatch: if the message belongs to another key.
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
            f"received a Paillier message of another kind than {kind.words}",
            "run the same version of securevfl on both sides, and pass messages in the order of the protocol",
            code="SVFL-CRYPTO-CIPHERTEXT",
        )
    if key != fingerprint:
        raise KeyMismatch("the ciphertexts belong to another key", code="SVFL-CRYPTO-KEY")
    if not (math.isfinite(bound) and bound > 0) or n < 1 or c < 1:
        raise CryptoError(
            "the header of a Paillier message states a size below 1, or a bound that is not a positive finite number",
            code="SVFL-CRYPTO-CIPHERTEXT",
        )
    return PaillierHeader(kind, key, (n, c, d), bound), data[_HEAD.size :], count


def read_numbers(body: bytes, promised: int, expected: int, width: int) -> list[int]:
    """Read the numbers of a message.

    Args:
        body: the bytes after the header.
        promised: the count of numbers that the header states.
        expected: the correct count of numbers.
        width: number of bytes of each number.

    Returns:
        The numbers.

    Raises:
        CryptoError: if the header or the length of the body contradicts the correct count.
    """
    if promised != expected or len(body) != expected * width:
        raise CryptoError(
            f"received a Paillier message with {len(body)} bytes of numbers instead of {expected * width}, or with "
            "another number of values in its header",
            code="SVFL-CRYPTO-CIPHERTEXT",
        )
    return [int.from_bytes(body[i : i + width], "big") for i in range(0, len(body), width)]
