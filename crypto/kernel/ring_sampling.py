"""Exact random draws on the ring: uniform residues, ternary secrets, errors and dithers."""

from __future__ import annotations

import math

import numpy as np

from securevfl.base.arrays import Floats
from securevfl.crypto.kernel.residues import Primes
from securevfl.crypto.prg import Prg

NOISE_STD = 10.5**0.5

_HALF = 21  # half the bits of an error

_WORD = 32  # bits of which a residue is drawn

_LIMB = 24  # bits of a part of a long integer

_THREES = 255  # the greatest multiple of three that a byte counts up to


def uniform(prg: Prg, primes: Primes, shape: tuple[int, ...]) -> Floats:
    """(P, *shape) residues about zero, each exactly uniform modulo its prime: from the next streams of `prg`, in order.

    A word of 32 bits serves if it is below the greatest multiple of the prime that 32 bits hold. Two who have the same
    `prg` find the same residues.
    """
    words = prg.array((len(primes), math.prod(shape)), np.uint32)
    most = np.array([2**_WORD // p * p - 1 for p in primes.values], np.uint32)
    left = np.flatnonzero(words > most[:, None])
    while len(left):
        words.reshape(-1)[left] = drawn = prg.array(len(left), np.uint32)
        left = left[drawn > most[left // words.shape[1]]]
    return primes.reduce(words.astype(np.float64)).reshape(len(primes), *shape)


def ternary(prg: Prg, shape: tuple[int, ...]) -> Floats:
    """Values -1, 0 and 1 (any shape), each a third of the time: bytes below 255 modulo 3."""
    count, found = math.prod(shape), np.empty(0, np.uint8)
    while len(found) < count:
        drawn = (count - len(found)) * 256 // _THREES + 64
        octets = prg.array(-(-drawn // 8), np.uint64).view(np.uint8)
        found = np.concatenate([found, octets[octets < _THREES]])
    return (found[:count] % np.uint8(3)).astype(np.float64).reshape(shape) - 1.0


def dither(prg: Prg, primes: Primes, bits: int, shape: tuple[int, ...]) -> Floats:
    """(P, *shape) residues of D: three integers uniform below 2^bits, a multiple of 24, less their mean."""
    limbs = prg.array((bits // _LIMB, 3, *shape), np.uint32) & np.uint32(2**_LIMB - 1)
    sums = limbs.sum(axis=1, dtype=np.float64)
    out = np.empty((len(primes), *shape))
    for row, p in zip(out, primes.values, strict=True):
        row[...] = -(3 * 2 ** (bits - 1) % p)
        for at, limb in enumerate(sums):
            row += limb * (pow(2, _LIMB * at, p))
    return primes.reduce(out)


def errors(prg: Prg, shape: tuple[int, ...]) -> Floats:
    """Errors (any shape), from -21 to 21: the bits set in 42, less their mean."""
    bits = np.bitwise_count(prg.array(shape, np.uint64) & np.uint64(2 ** (2 * _HALF) - 1))
    found: Floats = bits.astype(np.float64)
    found -= _HALF
    return found
