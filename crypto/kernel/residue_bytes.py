"""Residues (integers modulo small primes) as bytes, for messages and keys.

A residue is sent as a number in [0, p), in the fewest bytes that its prime p allows. A word is the bytes of one
residue, or of two residues of 20-bit primes, which share five bytes. A number that is not below its prime is refused,
and so is a message of another length. Therefore every residue has only one encoding. The bytes of many words are stored
in planes: first the low bytes of all words, then the next ones. P is the number of primes.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securevfl.base.arrays import Floats
from securevfl.crypto.kernel.residues import Primes
from securevfl.errors import CryptoError

_PLANES = {3: (2, 1), 5: (4, 1)}  # bytes of a word: bytes of each of its planes; numpy has integers of these sizes


def _words(primes: Primes) -> tuple[int, tuple[int, ...]]:
    """Return the number of residues in a word, and the number of bytes of each of its planes."""
    together = 2 if primes.bits % 8 == 4 and len(primes) % 2 == 0 else 1
    return together, _PLANES[-(-primes.bits * together // 8)]


def packed_size(primes: Primes, count: int) -> int:
    """Return the number of bytes for `count` residues modulo every prime."""
    together, planes = _words(primes)
    return count * len(primes) // together * sum(planes)


def pack(primes: Primes, residues: Floats) -> bytes:
    """Convert residues (P, *shape) in (-p/2, p/2] to bytes."""
    together, planes = _words(primes)
    integers = residues.reshape(len(primes), -1).astype(np.int32)
    integers += integers >> 31 & _column(primes)  # adds p to negative numbers, without a branch on secret values
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
    """Read the residues at the start of `data`; more bytes may follow.

    Args:
        primes: the prime moduli: a number is stored as its remainder modulo each of them.
        data: the bytes.
        shape: shape of the array of residues for each prime.

    Returns:
        Residues (P, *shape) in (-p/2, p/2].

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
    signed -= column // 2 - signed >> 31 & column  # subtracts p from numbers above p / 2, without a branch
    return signed.astype(np.float64).reshape(len(primes), *shape)
