"""How Paillier ciphertexts travel: a header that names kind, key and sizes, then fixed-width big-endian numbers."""

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
    """The kinds of content that a Paillier message can have."""

    SEALED = 1  # ciphertexts of g; sizes n, c, 0
    BLINDED = 2  # ciphertexts of the masked J^T g; sizes n, c, d
    OPENED = 3  # windows of its plaintexts; sizes n, c, d
    SUM = 4  # ciphertexts of a sum; sizes m, terms allowed, terms added


@dataclass(frozen=True)
class PaillierHeader:
    """`sizes` mean what `MessageKind` says; `bound` is the agreed bound on a value."""

    kind: MessageKind
    fingerprint: bytes
    sizes: tuple[int, int, int]
    bound: float


def write_message(header: PaillierHeader, numbers: Sequence[int], width: int) -> bytes:
    """Header, then each number in `width` bytes."""
    head = _HEAD.pack(_MAGIC, _VERSION, header.kind, header.fingerprint, *header.sizes, header.bound, len(numbers))
    return head + b"".join(int(x).to_bytes(width, "big") for x in numbers)


def message_size(count: int, width: int) -> int:
    """Return the bytes of what `write_message` writes of so many numbers."""
    return _HEAD.size + count * width


def read_message(data: bytes, kind: MessageKind, fingerprint: bytes) -> tuple[PaillierHeader, bytes, int]:
    """Header, the numbers' bytes, and how many the header promises. KeyMismatch, or CryptoError if malformed."""
    if len(data) < _HEAD.size:
        raise CryptoError(f"expected Paillier {kind.name.lower()} bytes, got {len(data)} bytes; cut short?")
    magic, version, got, key, n, c, d, bound, count = _HEAD.unpack_from(data)
    if magic != _MAGIC or version != _VERSION:
        raise CryptoError(f"not Paillier bytes of version {_VERSION}; both sides must run the same release")
    if got != kind:
        raise CryptoError(f"expected Paillier {kind.name.lower()} bytes, got kind {got}; messages were mixed up")
    if key != fingerprint:
        raise KeyMismatch("the ciphertexts belong to another key; exchange public keys again")
    if not (math.isfinite(bound) and bound > 0) or n < 1 or c < 1:
        raise CryptoError("the header has an impossible size or bound; the bytes were altered")
    return PaillierHeader(kind, key, (n, c, d), bound), data[_HEAD.size :], count


def read_numbers(body: bytes, promised: int, expected: int, width: int) -> list[int]:
    """Read `expected` numbers of `width` bytes. CryptoError if the header or the length say otherwise."""
    if promised != expected or len(body) != expected * width:
        raise CryptoError(
            f"expected {expected} numbers of {width} bytes, the header says {promised} and {len(body)} bytes came"
        )
    return [int.from_bytes(body[i : i + width], "big") for i in range(0, len(body), width)]
