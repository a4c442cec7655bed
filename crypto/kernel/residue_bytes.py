"""Residues as bytes, in as many bytes as their primes need."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securevfl.base.arrays import Floats
from securevfl.crypto.kernel.residues import Primes
from securevfl.errors import CryptoError

_PLANES = {3: (2, 1), 5: (4, 1)}  # bytes of a word, as sizes of numpy's integers, the low ones first


def _words(primes: Primes) -> tuple[int, tuple[int, ...]]:
    """Residues that share a word, and its planes."""
    together = 2 if primes.bits % 8 == 4 and len(primes) % 2 == 0 else 1
    return together, _PLANES[-(-primes.bits * together // 8)]


def packed_size(primes: Primes, count: int) -> int:
    """Bytes that `count` residues of every prime take."""
    together, planes = _words(primes)
    return count * len(primes) // together * sum(planes)


def pack(primes: Primes, residues: Floats) -> bytes:
    """(P, *shape) residues about zero as bytes, little-endian: word by word of primes, low parts before high ones."""
    together, planes = _words(primes)
    whole = residues.reshape(len(primes), -1).astype(np.int32)
    whole += whole >> 31 & _column(primes)  # p where it is below zero
    kind: Any = np.uint32 if together == 1 else np.uint64
    words: NDArray[Any] = whole[::together].astype(kind) if together > 1 else whole.view(kind)
    for k in range(1, together):
        words |= whole[k::together].astype(kind) << kind(k * primes.bits)
    parts, at = [], 0
    for size in planes:
        parts.append((words >> kind(8 * at) if at else words).astype(f"<u{size}").tobytes())
        at += size
    return b"".join(parts)


def _column(primes: Primes) -> NDArray[np.int32]:
    return np.array(primes.values, np.int32)[:, None]


def unpack(primes: Primes, data: bytes | memoryview, shape: tuple[int, ...]) -> Floats:
    """Read the residues (P, *shape), centred about zero, at the start of `data`.

    CryptoError if there are too few bytes, or a residue is not below its prime.
    """
    together, planes = _words(primes)
    count, rows = math.prod(shape), len(primes) // together
    if len(data) < packed_size(primes, count):
        raise CryptoError(f"residues: expected {packed_size(primes, count)} bytes, got {len(data)}; the message is cut")
    kind: Any = np.uint32 if together == 1 else np.uint64
    words: NDArray[Any] = np.zeros((rows, count), kind)
    at = 0
    for size in planes:
        plane = np.frombuffer(data, f"<u{size}", rows * count, offset=at * rows * count).reshape(rows, count)
        words |= plane.astype(kind) << kind(8 * at)
        at += size
    own = np.empty((len(primes), count), np.uint32)
    for k in range(len(primes)):
        shifted = words[k // together] >> kind(k % together * primes.bits) if together > 1 else words[k]
        own[k] = shifted & kind(2**primes.bits - 1) if k % together < together - 1 else shifted
    column = _column(primes)
    if count and (own >= column.view(np.uint32)).any():
        raise CryptoError("residues: a message with one that is not below its prime is refused; it was altered")
    signed = own.view(np.int32)
    signed -= column // 2 - signed >> 31 & column  # less p where it is above p / 2
    return signed.astype(np.float64).reshape(len(primes), *shape)
