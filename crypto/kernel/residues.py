"""Integers modulo q = p_1 ... p_P as centred residues in float64, on which a BLAS computes exactly.

A float64 holds every integer up to 2^53. A residue of a prime below 2^24 that lies about zero has 23 bits, so that a
sum of `terms` products of two of them stays below 2^53: exact in any order, with or without fused multiplication. One
reduction, x - p rint(x / p), brings the sum back. The quotient in floats may miss the nearest integer by a little, so
that a residue counts as reduced within p/2 + 4; what leaves this process is brought to [0, p) first.

Sums of products are taken at all points: (P, M) products of small matrices, each entry a residue. A sum of more
products than floats hold exactly (`Primes.terms`) is cut into stretches, each reduced before it is added. Factors may
be of float32, which holds residues of 24 bits about zero, and are widened a few points at a time.
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

DEGREE = 4096  # N
_EXACT = 2**53 - 2**24  # so that quotient times prime stays below 2^53 too
_SPARE = 4  # what a reduced residue may exceed p/2 by
_MOST_BITS = 24
_STRETCH = 1 << 14  # floats that stay in the cache
_LOW = 28  # bits of the lower half of a word
_HALF = 37  # bits of the lower half of a whole float
_ONE_THREAD = 1 << 18  # multiplications that OpenBLAS does without waking threads, which then spin


class Primes:
    """The largest `count` primes of `bits` bits that x^4096 + 1 splits into linear factors over, and their product q.

    ConfigError unless 14 <= bits <= 24 and there are so many.
    """

    def __init__(self, bits: int, count: int) -> None:
        if not 14 <= bits <= _MOST_BITS:
            raise ConfigError(f"residues: primes of 14 to {_MOST_BITS} bits are exact in floats, {bits} were asked for")
        found = _largest(bits, count)
        if len(found) < count:
            raise ConfigError(f"residues: there are {len(found)} primes of {bits} bits, {count} were asked for")
        self.bits = bits
        self.values = found
        self.q = math.prod(found)
        self._column = np.array(found, np.float64)[:, None]
        self._inverses = 1.0 / self._column
        self.terms = min(_EXACT // (p // 2 + _SPARE) ** 2 for p in found)  # products in one sum

    def __len__(self) -> int:
        return len(self.values)

    def centred(self, integers: NDArray[np.int64] | Floats) -> Floats:
        """Integers (any shape) of less than 2^53 as residues (P, *shape)."""
        out = np.empty((len(self), *integers.shape))
        out[...] = integers
        return self.reduce(out)

    def reduce(self, x: Floats) -> Floats:
        """x (P, ...), sums of at most `terms` products, reduced in place."""
        if x.size <= _STRETCH * len(self):
            # `reduce`, all primes in one call of each operation
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
        """round(q m / 2^bits) modulo each prime, (P, *shape), for words m below 2^bits, bits <= 56.

        With w = q m + t/2 modulo t = 2^bits it is (t/2 - w) / t modulo p, since p divides q.
        """
        half = 1 << (bits - 1)
        rest = (words * np.uint64(self.q % 2**64) + np.uint64(half)) & np.uint64(2**bits - 1)
        high = (rest >> np.uint64(_LOW)).astype(np.float64)
        low = (rest & np.uint64(2**_LOW - 1)).astype(np.float64)
        out = np.empty((len(self), *words.shape))
        for row, p in zip(out, self.values, strict=True):
            inverse = pow(-(2**bits), -1, p)
            np.multiply(high, _about_zero(2**_LOW * inverse, p), out=row)
            row += low * _about_zero(inverse, p)
            row += _about_zero(-half * inverse, p)
            reduce(row, p)
        return out

    def whole(self, x: Floats) -> Floats:
        """Whole floats (any shape) below 2^90 as residues (P, *shape): in two halves, each exact."""
        high = np.rint(x * 2.0**-_HALF)
        low = x - high * 2.0**_HALF
        out = self.centred(high)
        for row, p in zip(out, self.values, strict=True):
            row *= _about_zero(2**_HALF, p)
            row += low
        return self.reduce(out)

    def fraction(self, x: Floats) -> Floats:
        """x / q in [-1/2, 1/2], to the precision of floats, for each x modulo q given by its residues (P, *shape)."""
        total = np.zeros(x.shape[1:])
        for row, p in zip(x, self.values, strict=True):
            rest = row * _about_zero(pow(self.q // p, -1, p), p)
            reduce(rest, p)
            total += rest * (1.0 / p)
        total -= np.rint(total)
        return total

    def nearest(self, x: Floats, bits: int) -> Words:
        """round(2^bits x / q) modulo 2^bits, exactly, for each x modulo q given by its residues (P, *shape).

        With x_i = x (q/p_i)^-1 mod p_i, t x / q = sum t x_i / p_i modulo t = 2^bits. t = I_i p_i + f_i, so t x_i / p_i
        is the integer I_i x_i, which may wrap, and f_i x_i / p_i, whose quotient and rest floats hold. The sum of the
        rests decides the rounding; where it comes closer to a half than floats tell, integers do.
        """
        whole, parts = np.zeros(x.shape[1:], np.uint64), np.zeros(x.shape[1:])
        rests = []
        for row, p in zip(x, self.values, strict=True):
            rest = row * _about_zero(pow(self.q // p, -1, p), p)
            reduce(rest, p)
            rests.append(rest)
            left = _about_zero(2**bits, p)
            above = rest * left
            quotient = np.rint(above * (1.0 / p))
            above -= quotient * p
            parts += above * (1.0 / p)
            factor = np.uint64((2**bits - left) // p % 2**64)
            whole += rest.astype(np.int64).view(np.uint64) * factor + quotient.astype(np.int64).view(np.uint64)
        down = np.floor(parts + 0.5)
        whole += down.astype(np.int64).view(np.uint64)
        close = np.abs(parts + 0.5 - np.rint(parts + 0.5)) < 2.0**-40
        for at in zip(*np.nonzero(close), strict=True):
            exact = sum(int(rest[at]) * (self.q // p) for rest, p in zip(rests, self.values, strict=True))
            whole[at] = np.uint64((exact * 2 ** (bits + 1) + self.q) // (2 * self.q) % 2**64)
        return whole & np.uint64(2**bits - 1)


def reduce(x: Floats, p: int) -> None:
    """x (any shape, contiguous), integers up to 2^53 - 2^24, to about zero modulo p, in place."""
    assert x.flags.c_contiguous, "a view would be reduced in a copy"
    flat, inverse = x.reshape(-1), 1.0 / p
    spare = np.empty(min(_STRETCH, flat.size))
    for start in range(0, flat.size, _STRETCH):
        part = flat[start : start + _STRETCH]
        quotient = np.multiply(part, inverse, out=spare[: part.size])
        np.rint(quotient, out=quotient)
        quotient *= p
        part -= quotient


def matmul(left: Floats, right: Floats, out: Floats) -> None:
    """out (K, m, w) = left (K, m, n) times right (K, n, w), in products so small that each stays on this thread."""
    step = max(1, _ONE_THREAD // (left.shape[-2] * left.shape[-1]))
    for start in range(0, right.shape[-1], step):
        columns = slice(start, start + step)
        np.matmul(left, right[..., columns], out=out[..., columns])


def _about_zero(integer: int, p: int) -> int:
    rest = integer % p
    return rest - p if rest > p // 2 else rest


@functools.lru_cache(maxsize=16)
def _largest(bits: int, count: int) -> tuple[int, ...]:
    """List the `count` largest primes of so many bits that are 1 modulo 2 N, or all if there are fewer."""
    return tuple(itertools.islice(_descending(bits), count))


def _descending(bits: int) -> Iterator[int]:
    step = 2 * DEGREE
    for p in range((2**bits - 2) // step * step + 1, 2 ** (bits - 1), -step):
        if all(p % k for k in range(3, math.isqrt(p) + 1, 2)):
            yield p
