"""Exact random draws on the ring: uniform residues, ternary secrets, errors and dithers.

All draws come from a `Prg`: under a key from the operating system, or from a coin or seed if both parties need the same
values. Uniform values are drawn by rejection, so the time depends on discarded words alone. An error is the number of
ones in 42 bits minus 21. That is distributed as the ones in 21 bits minus those in 21 other bits: a centred binomial
distribution of standard deviation sqrt(10.5), the same as in SEAL.
"""

from __future__ import annotations

import math

import numpy as np

from securevfl.base.arrays import Floats
from securevfl.crypto.kernel.residues import Primes
from securevfl.crypto.prg import Prg

NOISE_STD = 10.5**0.5
"""Standard deviation of an error."""

_HALF_ERROR_BITS = 21

_WORD_BITS = 32  # of a word that a residue is drawn from

_LIMB_BITS = 24  # of a part of a long integer

_MULTIPLE_OF_3 = 255  # the largest one in a byte


def uniform(prg: Prg, primes: Primes, shape: tuple[int, ...]) -> Floats:
    """Draw centred residues, each exactly uniform modulo its prime.

    A 32-bit word is accepted if it is below the largest multiple of the prime. Equal generators give equal residues.

    Args:
        prg: the generator; its next streams are used in order.
        primes: the primes.
        shape: shape of the result for each prime.

    Returns:
        Residues (P, *shape).
    """
    words = prg.array((len(primes), math.prod(shape)), np.uint32)
    limits = np.array([2**_WORD_BITS // p * p - 1 for p in primes.values], np.uint32)
    rejected = np.flatnonzero(words > limits[:, None])
    while len(rejected):
        words.reshape(-1)[rejected] = drawn = prg.array(len(rejected), np.uint32)
        rejected = rejected[drawn > limits[rejected // words.shape[1]]]
    return primes.reduce(words.astype(np.float64)).reshape(len(primes), *shape)


def ternary(prg: Prg, shape: tuple[int, ...]) -> Floats:
    """Draw uniform values -1, 0 and 1 of any shape, from bytes below 255 modulo 3."""
    count, accepted = math.prod(shape), np.empty(0, np.uint8)
    while len(accepted) < count:
        drawn = (count - len(accepted)) * 256 // _MULTIPLE_OF_3 + 64
        octets = prg.array(-(-drawn // 8), np.uint64).view(np.uint8)
        accepted = np.concatenate([accepted, octets[octets < _MULTIPLE_OF_3]])
    return (accepted[:count] % np.uint8(3)).astype(np.float64).reshape(shape) - 1.0


def dither(prg: Prg, primes: Primes, bits: int, shape: tuple[int, ...]) -> Floats:
    """Draw residues (P, *shape) of the sum of three integers uniform below 2^bits, minus its mean; 24 divides bits."""
    limbs = prg.array((bits // _LIMB_BITS, 3, *shape), np.uint32) & np.uint32(2**_LIMB_BITS - 1)
    sums = limbs.sum(axis=1, dtype=np.float64)
    out = np.empty((len(primes), *shape))
    for row, p in zip(out, primes.values, strict=True):
        row[...] = -(3 * 2 ** (bits - 1) % p)
        for number, limb in enumerate(sums):
            row += limb * (pow(2, _LIMB_BITS * number, p))
    return primes.reduce(out)


def errors(prg: Prg, shape: tuple[int, ...]) -> Floats:
    """Draw errors of any shape, from -21 to 21: the number of ones in 42 bits minus its mean."""
    bits = np.bitwise_count(prg.array(shape, np.uint64) & np.uint64(2 ** (2 * _HALF_ERROR_BITS) - 1))
    centred: Floats = bits.astype(np.float64)
    centred -= _HALF_ERROR_BITS
    return centred
