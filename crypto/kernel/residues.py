"""Integers modulo q = p_1 ... p_P as centred residues in float64, with exact arithmetic on any BLAS.

A float64 holds every integer up to 2^53. A centred residue of a prime below 2^24 has 23 bits, so a sum of `terms`
products of two residues stays below 2^53. It is exact in any order of additions, with or without fused multiplication.
One reduction, x - p rint(x / p), brings the sum back. The quotient in floats can differ slightly from the nearest
integer, so a residue counts as reduced if it is within p/2 + 4. Residues that leave this process are brought to [0, p)
first.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from securevfl.base.arrays import Floats
from securevfl.crypto.share_ring import Words
from securevfl.errors import ConfigError

DEGREE = 4096
"""N, the degree of the ring Z_q[x]/(x^N + 1)."""
MAX_MODULUS_BITS = 109
"""Largest size of q for N = 4096, 128-bit security and ternary secrets (HomomorphicEncryption.org 2018, table 1)."""
_EXACT = 2**53 - 2**24  # so that quotient times prime stays below 2^53 too
_SPARE = 4  # by how much a reduced residue may exceed p/2
_MAX_PRIME_BITS = 24
_CACHED_FLOATS = 1 << 14  # floats that stay in the processor's cache
_LOW_BITS = 28  # of the lower part of a word
_HALF_BITS = 37  # of the lower half of an integer in a float
_SINGLE_THREAD_PRODUCTS = 1 << 18  # multiplications up to which OpenBLAS starts no threads


class Primes:
    """The largest primes of a size modulo which x^4096 + 1 has only linear factors, and their product q.

    Args:
        bits: size of the primes, from 14 to 24.
        count: number P of primes.

    Raises:
        ConfigError: if the size is out of range, or there are fewer primes.

    Attributes:
        values: the primes.
        q: their product.
        terms: how many products a sum may have to be exact.
    """

    def __init__(self, bits: int, count: int) -> None:
        if not 14 <= bits <= _MAX_PRIME_BITS:
            raise ConfigError(
                f"products of residues modulo primes of {bits} bits are not exact in floats",
                f"use 14 to {_MAX_PRIME_BITS} bits",
                code="SVFL-CRYPTO-PARAMETERS",
            )
        values = _largest(bits, count)
        if len(values) < count:
            raise ConfigError(
                f"there are only {len(values)} suitable primes of {bits} bits, not {count}",
                "use larger or fewer primes",
                code="SVFL-CRYPTO-PARAMETERS",
            )
        self.bits = bits
        self.values = values
        self.q = math.prod(values)
        self._column = np.array(values, np.float64)[:, None]
        self._inverses = 1.0 / self._column
        self.terms = min(_EXACT // (p // 2 + _SPARE) ** 2 for p in values)

    def __len__(self) -> int:
        return len(self.values)

    def centred(self, integers: NDArray[np.int64] | Floats) -> Floats:
        """Return integers of any shape, below 2^53, as residues (P, *shape)."""
        out = np.empty((len(self), *integers.shape))
        out[...] = integers
        return self.reduce(out)

    def reduce(self, x: Floats) -> Floats:
        """Reduce sums of at most `terms` products (P, ...) in place, and return them."""
        if x.size <= _CACHED_FLOATS * len(self):
            # the function `reduce`, with one call of each operation for all primes
            assert x.flags.c_contiguous, "a view would be reduced in a copy"
            rows = x.reshape(len(self), -1)
            quotient = rows * self._inverses
            np.rint(quotient, out=quotient)
            quotient *= self._column
            rows -= quotient
            return x
        for row, p in zip(x, self.values, strict=True):
            reduce(row, p)
        return x

    def scaled(self, words: Words, bits: int) -> Floats:
        """Return round(q m / 2^bits) modulo each prime.

        With t = 2^bits and w = q m + t/2 modulo t, this is (t/2 - w) / t modulo p, because p divides q.

        Args:
            words: words m of any shape, below 2^bits.
            bits: at most 56.

        Returns:
            Residues (P, *shape).
        """
        half = 1 << (bits - 1)
        remainder = (words * np.uint64(self.q % 2**64) + np.uint64(half)) & np.uint64(2**bits - 1)
        high = (remainder >> np.uint64(_LOW_BITS)).astype(np.float64)
        low = (remainder & np.uint64(2**_LOW_BITS - 1)).astype(np.float64)
        out = np.empty((len(self), *words.shape))
        for row, p in zip(out, self.values, strict=True):
            inverse = pow(-(2**bits), -1, p)
            np.multiply(high, _about_zero(2**_LOW_BITS * inverse, p), out=row)
            row += low * _about_zero(inverse, p)
            row += _about_zero(-half * inverse, p)
            reduce(row, p)
        return out

    def whole(self, x: Floats) -> Floats:
        """Return integers in floats of any shape, below 2^90, as residues (P, *shape); both halves are exact."""
        high = np.rint(x * 2.0**-_HALF_BITS)
        low = x - high * 2.0**_HALF_BITS
        out = self.centred(high)
        for row, p in zip(out, self.values, strict=True):
            row *= _about_zero(2**_HALF_BITS, p)
            row += low
        return self.reduce(out)

    def fraction(self, x: Floats) -> Floats:
        """Return x / q in [-1/2, 1/2], to the precision of floats, for residues (P, *shape) of integers x modulo q."""
        total = np.zeros(x.shape[1:])
        for row, p in zip(x, self.values, strict=True):
            digit = row * _about_zero(pow(self.q // p, -1, p), p)
            reduce(digit, p)
            total += digit * (1.0 / p)
        total -= np.rint(total)
        return total

    def nearest(self, x: Floats, bits: int) -> Words:
        """Return round(2^bits x / q) modulo 2^bits, exactly.

        With x_i = x (q/p_i)^-1 mod p_i and t = 2^bits, t x / q = sum t x_i / p_i modulo t. Let t = I_i p_i + f_i. Then
        t x_i / p_i is the integer I_i x_i, which may wrap, plus f_i x_i / p_i, whose quotient and remainder fit into
        floats. The sum of the fractions decides the rounding. If it is too close to a half for floats, Python integers
        decide.

        Args:
            x: residues (P, *shape) of integers x modulo q.
            bits: bits of the result.

        Returns:
            Words of this shape.
        """
        integers, fractions = np.zeros(x.shape[1:], np.uint64), np.zeros(x.shape[1:])
        digits = []
        for row, p in zip(x, self.values, strict=True):
            digit = row * _about_zero(pow(self.q // p, -1, p), p)
            reduce(digit, p)
            digits.append(digit)
            remainder = _about_zero(2**bits, p)
            product = digit * remainder
            quotient = np.rint(product * (1.0 / p))
            product -= quotient * p
            fractions += product * (1.0 / p)
            factor = np.uint64((2**bits - remainder) // p % 2**64)
            integers += digit.astype(np.int64).view(np.uint64) * factor + quotient.astype(np.int64).view(np.uint64)
        rounded = np.floor(fractions + 0.5)
        integers += rounded.astype(np.int64).view(np.uint64)
        close = np.abs(fractions + 0.5 - np.rint(fractions + 0.5)) < 2.0**-40
        for index in zip(*np.nonzero(close), strict=True):
            exact = sum(int(digit[index]) * (self.q // p) for digit, p in zip(digits, self.values, strict=True))
            integers[index] = np.uint64((exact * 2 ** (bits + 1) + self.q) // (2 * self.q) % 2**64)
        return integers & np.uint64(2**bits - 1)


def reduce(x: Floats, p: int) -> None:
    """Reduce a contiguous array of integers up to 2^53 - 2^24 to centred residues modulo p, in place."""
    assert x.flags.c_contiguous, "a view would be reduced in a copy"
    flat, inverse = x.reshape(-1), 1.0 / p
    spare = np.empty(min(_CACHED_FLOATS, flat.size))
    for start in range(0, flat.size, _CACHED_FLOATS):
        chunk = flat[start : start + _CACHED_FLOATS]
        quotient = np.multiply(chunk, inverse, out=spare[: chunk.size])
        np.rint(quotient, out=quotient)
        quotient *= p
        chunk -= quotient


def matmul(left: Floats, right: Floats, out: Floats) -> None:
    """Write left (K, m, n) times right (K, n, w) to out (K, m, w), in products that need no further threads."""
    step = max(1, _SINGLE_THREAD_PRODUCTS // (left.shape[-2] * left.shape[-1]))
    for start in range(0, right.shape[-1], step):
        columns = slice(start, start + step)
        np.matmul(left, right[..., columns], out=out[..., columns])


def _about_zero(integer: int, p: int) -> int:
    remainder = integer % p
    return remainder - p if remainder > p // 2 else remainder


@functools.lru_cache(maxsize=16)
def _largest(bits: int, count: int) -> tuple[int, ...]:
    """Return the `count` largest primes of a size that are 1 modulo 2 N, or all of them if there are fewer."""
    return tuple(itertools.islice(_descending(bits), count))


def _descending(bits: int) -> Iterator[int]:
    step = 2 * DEGREE
    for p in range((2**bits - 2) // step * step + 1, 2 ** (bits - 1), -step):
        if all(p % k for k in range(3, math.isqrt(p) + 1, 2)):
            yield p
