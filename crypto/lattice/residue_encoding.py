"""Residues (integers modulo SEAL's primes) as bytes; each has the fewest whole bytes that its prime allows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from securevfl.errors import CryptoError

Residues = NDArray[np.uint64]


def width(prime: int) -> int:
    """Return the number of bytes of one residue modulo a prime."""
    return (prime.bit_length() + 7) // 8


def packed_size(primes: Sequence[int], count: int) -> int:
    """Return the number of bytes of `count` residues modulo every prime."""
    return count * sum(width(p) for p in primes)


def pack(residues: Residues, primes: Sequence[int]) -> bytes:
    """Convert residues (..., primes, count) to little-endian bytes."""
    octets = np.ascontiguousarray(residues, np.dtype("<u8")).view(np.uint8).reshape(*residues.shape, 8)
    flat = octets.reshape(-1, *residues.shape[-2:], 8)
    return b"".join(row[i, :, : width(p)].tobytes() for row in flat for i, p in enumerate(primes))


def unpack(data: bytes | memoryview, primes: Sequence[int], count: int) -> Residues:
    """Read the residues (primes, count) at the start of `data`. Raise CryptoError if there are too few bytes."""
    if len(data) < packed_size(primes, count):
        raise CryptoError(
            f"received {len(data)} bytes of residues instead of {packed_size(primes, count)}",
            code="SVFL-CRYPTO-CIPHERTEXT",
        )
    octets = np.zeros((len(primes), count, 8), np.uint8)
    start = 0
    for row, p in zip(octets, primes, strict=True):
        w = width(p)
        row[:, :w] = np.frombuffer(data, np.uint8, count * w, offset=start).reshape(count, w)
        start += count * w
    return octets.view(np.dtype("<u8"))[..., 0].astype(np.uint64, copy=False)
