"""Random numbers for encryption: uniform residues, secret keys, errors and dithers.

All numbers are drawn from a `Prg`, a pseudorandom generator. Its key is random, or bytes that both parties have if they
need the same numbers. Uniform residues (integers modulo primes) are drawn by rejection, so the time depends only on
rejected random numbers. Secret keys are ternary: they consist of -1, 0 and 1. An error is the number of ones in 42
random bits, minus 21. That is a centred binomial distribution with a standard deviation of sqrt(10.5), the same as in
SEAL. A dither is a large random number that hides the noise in decrypted values.
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

_WORD_BITS = 32  # number of bits of the random words from which residues are drawn

_LIMB_BITS = 24  # long integers of a dither are drawn in parts of this number of bits

_MULTIPLE_OF_3 = 255  # bytes below this number are uniform modulo 3


def uniform(prg: Prg, primes: Primes, shape: tuple[int, ...]) -> Floats:
    """Draw residues that are exactly uniform modulo their primes, in about (-p/2, p/2).

    A random word of 32 bits is accepted if it is below the largest multiple of the prime. Generators with the same key
    give the same residues.

    Args:
        prg: the generator; every array that is drawn from it uses its next stream.
        primes: the prime moduli: a number is stored as its remainder modulo each of them.
        shape: shape of the array of residues for each prime.

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
    """Draw an array of uniformly random numbers -1, 0 and 1."""
    count, accepted = math.prod(shape), np.empty(0, np.uint8)
    while len(accepted) < count:
        drawn = (count - len(accepted)) * 256 // _MULTIPLE_OF_3 + 64
        octets = prg.array(-(-drawn // 8), np.uint64).view(np.uint8)
        accepted = np.concatenate([accepted, octets[octets < _MULTIPLE_OF_3]])
    return (accepted[:count] % np.uint8(3)).astype(np.float64).reshape(shape) - 1.0


def dither(prg: Prg, primes: Primes, bits: int, shape: tuple[int, ...]) -> Floats:
    """Draw dithers: sums of three integers that are uniform below 2^bits, minus their mean.

    Args:
        prg: the generator.
        primes: the prime moduli: a number is stored as its remainder modulo each of them.
        bits: number of bits, a multiple of 24.
        shape: shape of the array of dithers.

    Returns:
        Residues (P, *shape) of the dithers.
    """
    limbs = prg.array((bits // _LIMB_BITS, 3, *shape), np.uint32) & np.uint32(2**_LIMB_BITS - 1)
    sums = limbs.sum(axis=1, dtype=np.float64)
    out = np.empty((len(primes), *shape))
    for row, p in zip(out, primes.values, strict=True):
        row[...] = -(3 * 2 ** (bits - 1) % p)
        for number, limb in enumerate(sums):
            row += limb * (pow(2, _LIMB_BITS * number, p))
    return primes.reduce(out)


def errors(prg: Prg, shape: tuple[int, ...]) -> Floats:
    """Draw an array of errors from -21 to 21: for each, the number of ones in 42 random bits, minus 21."""
    bits = np.bitwise_count(prg.array(shape, np.uint64) & np.uint64(2 ** (2 * _HALF_ERROR_BITS) - 1))
    centred: Floats = bits.astype(np.float64)
    centred -= _HALF_ERROR_BITS
    return centred
