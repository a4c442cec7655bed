"""Exact arithmetic modulo q in float64, for matrix products with BLAS.

q is the product of P primes p, and an integer modulo q is represented by its residues modulo these primes (Chinese
remainder theorem). A residue is stored as a number in about (-p/2, p/2) ("centred"). A float64 represents every integer
up to 2^53 exactly. Centred residues of primes below 2^24 have 23 bits, so a sum of `terms` products of two residues
stays below 2^53. It is exact in any order of additions, with or without fused multiply-add. One reduction, x - p *
rint(x / p), makes the sum a residue again. The quotient in floats can differ slightly from the nearest integer, so a
residue counts as reduced if its absolute value is at most p/2 + 4. Residues that leave this process are brought to
[0, p) first.
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
"""N, the number of coefficients of a polynomial; polynomials are modulo x^N + 1."""
MAX_MODULUS_BITS = 109
"""Largest number of bits of q for N = 4096, 128-bit security and secret keys with coefficients of -1, 0 and 1.

Source: HomomorphicEncryption.org 2018, table 1.
"""
_EXACT = 2**53 - 2**24  # largest sum of products; the reduction's quotient times p is then below 2^53 too
_SPARE = 4  # the absolute value of a reduced residue modulo p may exceed p/2 by this number
_MAX_PRIME_BITS = 24
_CACHED_FLOATS = 1 << 14  # number of floats that fit into the processor's cache
_LOW_BITS = 28  # bits of the lower part if `scaled` divides a word into two parts
_HALF_BITS = 37  # bits of the lower part if `whole` divides a float into two parts
_SINGLE_THREAD_PRODUCTS = 1 << 18  # OpenBLAS starts no threads for products with at most this many multiplications


class Primes:
    """The `count` largest primes of `bits` bits modulo which x^4096 + 1 has 4096 roots, and their product q.

    Args:
        bits: number of bits of a prime, from 14 to 24.
        count: number P of primes.

    Raises:
        ConfigError: if the number of bits is out of range, or there are fewer primes.

    Attributes:
        values: the primes.
        q: the product of the primes.
        terms: largest number of products of residues whose sum is exact.
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
        """Return integers of any shape, at most 2^53 - 2^24 in magnitude, as residues modulo each prime (P, *shape)."""
        out = np.empty((len(self), *integers.shape))
        out[...] = integers
        return self.reduce(out)

    def reduce(self, x: Floats) -> Floats:
        """Reduce sums of at most `terms` products, an array (P, ...), modulo each prime in place, and return it."""
        if x.size <= _CACHED_FLOATS * len(self):
            # The same computation as the function `reduce`, for all primes at once, which is faster for small arrays.
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
        """Return round(q * m / 2^bits) modulo each prime p.

        With t = 2^bits and w = (q * m + t/2) modulo t, this is (t/2 - w) / t modulo p, because p divides q.

        Args:
            words: the integers m of any shape, below 2^bits.
            bits: number of bits, at most 56.

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
        """Return integers that are stored in floats of any shape, below 2^89, as residues (P, *shape)."""
        high = np.rint(x * 2.0**-_HALF_BITS)
        low = x - high * 2.0**_HALF_BITS
        out = self.centred(high)
        for row, p in zip(out, self.values, strict=True):
            row *= _about_zero(2**_HALF_BITS, p)
            row += low
        return self.reduce(out)

    def fraction(self, x: Floats) -> Floats:
        """Return x / q in [-1/2, 1/2], in float64 precision, for integers x modulo q given as residues (P, *shape)."""
        total = np.zeros(x.shape[1:])
        for row, p in zip(x, self.values, strict=True):
            digit = row * _about_zero(pow(self.q // p, -1, p), p)
            reduce(digit, p)
            total += digit * (1.0 / p)
        total -= np.rint(total)
        return total

    def nearest(self, x: Floats, bits: int) -> Words:
        """Return round(2^bits * x / q) modulo 2^bits, exactly.

        Let t = 2^bits and x_i = x * (q / p_i)^-1 mod p_i for each prime p_i. Then t * x / q is the sum of t * x_i / p_i
        over all primes, modulo t. Let t = I_i * p_i + f_i. Each summand is the integer I_i * x_i plus the fraction f_i
        * x_i / p_i. The integers are added modulo 2^64, and the fractions in floats. If the sum of the fractions is so
        close to a half that floats cannot decide how to round, the result is computed with Python integers.

        Args:
            x: residues (P, *shape) of integers x modulo q.
            bits: number of bits of the result.

        Returns:
            The results as uint64 (*shape).
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
    """Reduce integers up to 2^53 - 2^24 in a contiguous array modulo p to centred residues, in place."""
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
    """Write the K products left (K, m, n) @ right (K, n, w) to out (K, m, w).

    The work is divided so that BLAS does not start threads, which would take longer than the products.
    """
    step = max(1, _SINGLE_THREAD_PRODUCTS // (left.shape[-2] * left.shape[-1]))
    for start in range(0, right.shape[-1], step):
        columns = slice(start, start + step)
        np.matmul(left, right[..., columns], out=out[..., columns])


def _about_zero(integer: int, p: int) -> int:
    remainder = integer % p
    return remainder - p if remainder > p // 2 else remainder


@functools.lru_cache(maxsize=16)
def _largest(bits: int, count: int) -> tuple[int, ...]:
    """Return the `count` largest primes of this number of bits that are 1 modulo 8192, or all if there are fewer."""
    return tuple(itertools.islice(_descending(bits), count))


def _descending(bits: int) -> Iterator[int]:
    step = 2 * DEGREE
    for p in range((2**bits - 2) // step * step + 1, 2 ** (bits - 1), -step):
        if all(p % k for k in range(3, math.isqrt(p) + 1, 2)):
            yield p
