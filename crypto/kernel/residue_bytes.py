"""Residues as bytes, in the fewest bytes that their primes allow; two residues of 20-bit primes share five bytes.

Residues are sent in [0, p). A residue that is not below its prime is refused, as is a message of another length, so
every residue has only one encoding.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securevfl.base.arrays import Floats
from securevfl.crypto.kernel.residues import Primes
from securevfl.errors import CryptoError

_PLANES = {3: (2, 1), 5: (4, 1)}  # bytes of a word as sizes of numpy integers, the low ones first


def _words(primes: Primes) -> tuple[int, tuple[int, ...]]:
    """Return how many residues share a word, and the sizes of its byte planes."""
    together = 2 if primes.bits % 8 == 4 and len(primes) % 2 == 0 else 1
    return together, _PLANES[-(-primes.bits * together // 8)]


def packed_size(primes: Primes, count: int) -> int:
    """Return the bytes of `count` residues of every prime."""
    together, planes = _words(primes)
    return count * len(primes) // together * sum(planes)


def pack(primes: Primes, residues: Floats) -> bytes:
    """Pack centred residues (P, *shape) into little-endian bytes, prime by prime, low byte planes before high ones."""
    together, planes = _words(primes)
    integers = residues.reshape(len(primes), -1).astype(np.int32)
    integers += integers >> 31 & _column(primes)  # plus p if negative
    kind: Any = np.uint32 if together == 1 else np.uint64
    words: NDArray[Any] = integers[::together].astype(kind) if together > 1 else integers.view(kind)
    for k in range(1, together):
        words |= integers[k::together].astype(kind) << kind(k * primes.bits)
    parts, below = [], 0
    for size in planes:
        parts.append((words >> kind(8 * below) if below else words).astype(f"<u{size}").tobytes())
        below += size
    return b"".join(parts)


def _column(primes: Primes) -> NDArray[np.int32]:
    return np.array(primes.values, np.int32)[:, None]


def unpack(primes: Primes, data: bytes | memoryview, shape: tuple[int, ...]) -> Floats:
    """Read the residues at the start of `data`.

    Args:
        primes: the primes.
        data: the bytes.
        shape: shape of the residues for each prime.

    Returns:
        Centred residues (P, *shape).

    Raises:
        CryptoError: if there are too few bytes, or a residue is not below its prime.
    """
    together, planes = _words(primes)
    count, rows = math.prod(shape), len(primes) // together
    if len(data) < packed_size(primes, count):
        raise CryptoError(
            f"received {len(data)} bytes of residues instead of {packed_size(primes, count)}",
            code="SVFL-CRYPTO-CIPHERTEXT",
        )
    kind: Any = np.uint32 if together == 1 else np.uint64
    words: NDArray[Any] = np.zeros((rows, count), kind)
    below = 0
    for size in planes:
        plane = np.frombuffer(data, f"<u{size}", rows * count, offset=below * rows * count).reshape(rows, count)
        words |= plane.astype(kind) << kind(8 * below)
        below += size
    integers = np.empty((len(primes), count), np.uint32)
    for k in range(len(primes)):
        shifted = words[k // together] >> kind(k % together * primes.bits) if together > 1 else words[k]
        integers[k] = shifted & kind(2**primes.bits - 1) if k % together < together - 1 else shifted
    column = _column(primes)
    if count and (integers >= column.view(np.uint32)).any():
        raise CryptoError("a message contains a residue that is not below its prime", code="SVFL-CRYPTO-CIPHERTEXT")
    signed = integers.view(np.int32)
    signed -= column // 2 - signed >> 31 & column  # minus p if above p / 2
    return signed.astype(np.float64).reshape(len(primes), *shape)
