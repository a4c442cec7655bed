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
from typing import NamedTuple

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


_CACHED = 1 << 17  # entries of a factor that are widened at a time
_ENTRIES, _POINTS = 8, 1024  # of a product, for `_few`


Residues = NDArray[np.float32] | Floats


def multiplied(primes: Primes, left: Residues, right: Residues) -> Floats:
    """Residues (P, M, m, F) of left (P, M, m, B) times right (P, M, B, F), reduced."""
    stretches = (slice(start, start + primes.terms) for start in range(0, left.shape[-1], primes.terms))
    parts = (primes.reduce(_stretch(left[..., stretch], right[..., stretch, :])) for stretch in stretches)
    return functools.reduce(lambda total, part: primes.reduce(total + part), parts)


def summed(primes: Primes, total: Floats | None, terms: int, left: Residues, right: Residues) -> tuple[Floats, int]:
    """`total`, in which there are `terms` products, with left (P, M, m, B) times right (P, M, B, F) added; reduced only
    where the sum might not stay exact otherwise. And how many products are in it now."""
    most, count = primes.terms - 1, left.shape[-1]  # one is left for what is added before the last reduction
    if count > most:
        part, count = multiplied(primes, left, right), 1
    else:
        part = _stretch(left, right)
    if total is None:
        return part, count
    if terms + count > most:
        primes.reduce(total)
        terms = 1
        if count + 1 > most:
            primes.reduce(part)
            count = 1
    total += part
    return total, terms + count


def joined(first: Floats, second: Floats, F: int) -> Floats:
    """(P, M, m, B) of first over second, (P, M, some, B) each, in the order of memory that products with F columns
    want."""
    (P, M, above, B), m = first.shape, first.shape[2] + second.shape[2]
    out = np.empty((P, B, m, M)).transpose(0, 3, 2, 1) if _few(M, m, F) else np.empty((P, M, m, B))
    out[:, :, :above], out[:, :, above:] = first, second
    return out


def _few(M: int, m: int, F: int) -> bool:
    """Whether matrices are so small, and points so many, that calls of a BLAS cost more than what they compute."""
    return m * F <= _ENTRIES and M >= _POINTS


def _stretch(left: Residues, right: Residues) -> Floats:
    P, M, m, B = left.shape
    F = right.shape[-1]
    if _few(M, m, F):
        return _by_points(left, right)
    out = np.empty((P, M, m, F))
    step = max(1, _CACHED // (B * max(m, F)))
    for k in range(P):
        for start in range(0, M, step):
            points = slice(start, start + step)
            one, other = (side[k, points].astype(np.float64, copy=False) for side in (left, right))
            matmul(one, other, out[k, points])
    return out


def _by_points(left: Residues, right: Residues) -> Floats:
    """Compute the same where matrices are small and points many: an entry of all points at a time."""
    one = np.ascontiguousarray(left.transpose(0, 3, 2, 1), np.float64)[:, :, :, None]  # (P, B, m, 1, M)
    other = np.ascontiguousarray(right.transpose(0, 2, 3, 1), np.float64)[:, :, None]  # (P, B, 1, F, M)
    total: Floats = one[:, 0] * other[:, 0]
    spare = np.empty_like(total) if one.shape[1] > 1 else total
    for b in range(1, one.shape[1]):
        np.multiply(one[:, b], other[:, b], out=spare)
        total += spare
    return np.ascontiguousarray(total.transpose(0, 3, 1, 2))


# Whether the BLAS at hand computes as the kernel needs: every sum of products of doubles exact, every term taken.
#
# Any BLAS of IEEE doubles that adds up products, in whatever order, with or without fused multiplication, is exact on
# residues. One that emulates doubles by fewer bits is not, nor one that saves products by adding entries up first
# (Strassen). One that skips zeros is exact but takes less time for them, so that time would tell of data; it shows in
# that zero times not-a-number is left out.


OTHER = 'library = "seal", at all parties'  # what to do where this machine can't be mended

_REMEDY = "install numpy from its wheels, which bring OpenBLAS"
_MOST_TERMS = 512
_SHAPES = ((32, 16), (1, 1), (16, 48))  # rows and columns of the products tried


@functools.cache
def fault() -> str:
    """Why the kernel must not be used on this machine, and what to do; nothing if it may. Found once a process."""
    return blas_fault()


def blas_fault() -> str:
    """Test numpy's BLAS afresh and return what is wrong with it, as `fault` does from its cache; "" if nothing is."""
    for primes in (Primes(24, 3), Primes(23, 4), Primes(20, 4)):
        terms = min(primes.terms, _MOST_TERMS)
        for rows, columns in _SHAPES:
            if not all(_exact(primes, rows, terms, columns, signs) for signs in (1, 0, -1)):
                return f"the BLAS of numpy here does not add up products of integers below 2^53 exactly; {_REMEDY}"
    if not _takes_zeros():
        return f"the BLAS of numpy here leaves out products with zeros, so its times tell of data; {_REMEDY}"
    return ""


def _exact(primes: Primes, rows: int, terms: int, columns: int, signs: int) -> bool:
    """Whether a product of the largest residues, all of one sign or of mixed ones, is what integers give."""
    largest = np.array([p // 2 + 4 for p in primes.values], np.int64)[:, None, None]
    places = np.arange(terms)
    left = largest - np.outer(np.arange(rows), places) % 3
    right = largest - np.outer(places, np.arange(columns)) % 5
    if signs < 1:
        left = left * np.where(places % 2 if signs else places > -1, -1, 1)
    made = np.empty((len(primes), rows, columns))
    matmul(left.astype(np.float64), right.astype(np.float64), made)
    return bool((made.astype(np.int64) == left @ right).all())


def _takes_zeros() -> bool:
    for rows, columns in _SHAPES:
        sides: list[Floats] = [np.zeros((1, rows, 8)), np.zeros((1, 8, columns))]
        for nan in range(2):
            each = [side + (np.nan if k == nan else 0.0) for k, side in enumerate(sides)]
            made = np.zeros((1, rows, columns))
            matmul(each[0], each[1], made)
            if not np.isnan(made).all():
                return False
    return True


# The values of polynomials modulo y^M + 1 at its M roots, as products of small matrices (Cooley, Tukey 1965).
#
# With psi a root of order 2 M modulo p, X[k] = sum_n x[n] psi^(n (2k + 1)). A step takes one digit of n and gives one
# of k: let K values kappa of the digits of k so far be given, L = M / K coefficients left of each, cut as L = A L', n =
# L' a + n', k = kappa + K a' + K A k''. As psi^(2 M) = 1,
#
#     Y[kappa + K a', n'] = sum_a psi^(L' a (2 (kappa + K a') + 1)) X[kappa, a, n']
#
# is a product with one A x A matrix for each kappa, and what is left is the same problem with K A and L'. Twiddle
# factors are in the matrices, so a step is one product and one reduction. Back, each matrix has its inverse.
# Polynomials lie along the first axis and whatever there is of them behind, which is what a BLAS is quick at. Values
# are in the order that the steps leave them in, which nobody outside needs to know: products are taken value by value.
#
# Where polynomials of the whole ring are few and long (`SquareTransform`), these digits have as many matrices as
# products, which outgrow the cache, and calls, which cost more than what they compute. There M = 64 x 64, n = 64 n1 +
# n2, k = k1 + 64 k2, and all primes are taken at once:
#
#     Y[k1, n2] = sum over n1 of psi^(64 n1 (2 k1 + 1)) X[n1, n2]
#     X[k]      = sum over n2 of psi^(128 n2 k2) (psi^(n2 (2 k1 + 1)) Y[k1, n2])
#
# Either sum is a product with one matrix for all, with twiddles between. Values are in the same order, whose places
# split as k does.


FEW = 4  # polynomials, up to which this is quicker
_SIDE = 64


class SquarePlaces(NamedTuple):
    """Coefficients that are wanted: rows n1 and columns n2 with any, and where each is in what is left."""

    rows: NDArray[np.intp]
    columns: NDArray[np.intp]
    places: NDArray[np.intp]


class SquareTransform:
    """The transform of size 4096; `powers` (P, 8192): psi^k of each prime, `known` (4096,): k by the place of a
    value."""

    def __init__(self, primes: Primes, powers: Floats, known: NDArray[np.int64]) -> None:
        self._primes = primes
        places, n = known.reshape(_SIDE, _SIDE), np.arange(_SIDE)
        k1, k2 = places[:, 0] % _SIDE, places[0] // _SIDE
        assert (places == k1[:, None] + _SIDE * k2).all(), "values stand in an order that does not split"
        exponents = [np.outer(2 * k1 + 1, _SIDE * n), np.outer(2 * k1 + 1, n), np.outer(n, 2 * _SIDE * k2)]
        self._ahead, back = (
            [np.ascontiguousarray(powers[:, sign * exponent % (2 * DEGREE)]) for exponent in exponents]
            for sign in (1, -1)
        )
        for row, p in zip(back[0], primes.values, strict=True):
            row *= -((p - 1) // DEGREE)  # 1/4096 modulo p, as 4096 divides p - 1
            reduce(row, p)
        self._back = [np.ascontiguousarray(back[at].transpose(0, 2, 1)) for at in (0, 2)]
        self._untwist = back[1]

    def forward(self, x: Floats, out: Floats) -> None:
        """Values out (P, 4096, w) of polynomials x, of the same shape or (4096, w)."""
        primes, (outer, between, inner) = self._primes, self._ahead
        value = np.matmul(outer[:, None], _squares(x))
        primes.reduce(value)
        value *= between[:, None]
        primes.reduce(value)
        value = np.matmul(value, inner[:, None])
        primes.reduce(value)
        out[...] = value.reshape(*value.shape[:2], DEGREE).swapaxes(1, 2)

    def back(self, X: Floats, where: NDArray[np.intp] | None, out: Floats) -> None:
        """Coefficients out (P, count, w), those at `where` or all, behind values X (P, 4096, w)."""
        primes, (outer, inner), between = self._primes, self._back, self._untwist
        places: NDArray[np.intp] | slice = slice(None)
        if where is not None:
            rows, columns, places = _wanted(where.tobytes())
            outer, between, inner = outer[:, rows], between[..., columns], inner[..., columns]
        value = np.matmul(_squares(X), inner[:, None])
        primes.reduce(value)
        value *= between[:, None]
        primes.reduce(value)
        value = np.matmul(outer[:, None], value)
        primes.reduce(value)
        out[...] = value.reshape(*value.shape[:2], -1)[..., places].swapaxes(1, 2)


def _squares(x: Floats) -> Floats:
    """Polynomials (..., 4096, w) as (..., w, 64, 64)."""
    turned = np.ascontiguousarray(x.swapaxes(-1, -2))
    return turned.reshape(*turned.shape[:-1], _SIDE, _SIDE)


@functools.lru_cache(maxsize=64)
def _wanted(where: bytes) -> SquarePlaces:
    coefficients = np.frombuffer(where, np.intp)
    rows, row = np.unique(coefficients // _SIDE, return_inverse=True)
    columns, column = np.unique(coefficients % _SIDE, return_inverse=True)
    return SquarePlaces(rows, columns, row * len(columns) + column)


_RADIX = 4  # bits of the greatest digit


class Step(NamedTuple):
    """One digit's matrices for all primes: of K x A x A each, ahead and back."""

    digits: int  # A
    left: int  # L': coefficients below this digit
    ahead: Floats
    back: Floats


class Transform:
    """The transform of size M for all primes. ConfigError unless M is a power of two from 2 to 4096."""

    def __init__(self, primes: Primes, size: int) -> None:
        if size < 2 or size & (size - 1) or size > DEGREE:
            raise ConfigError(f"transform: a power of two from 2 to {DEGREE} was expected, {size} came")
        self.primes, self.size = primes, size
        powers = np.stack([_powers(p, 2 * size) for p in primes.values])
        known, left = np.zeros(1, np.int64), size  # kappa by its place
        self._steps = []
        for digits in _digits(size):
            left //= digits
            order = np.arange(digits)
            if size == DEGREE and left == digits:  # so that places split in two, as `SquareTransform` has them
                order = order.reshape(-1, 4).T.reshape(-1)
            known = (known[:, None] + size // (digits * left) * order).reshape(-1)
            odd = (2 * known + 1).reshape(-1, digits)
            exponents = left * odd[:, :, None] * np.arange(digits)  # (K, a', a)
            back = np.ascontiguousarray(powers[:, -exponents.transpose(0, 2, 1) % (2 * size)])
            for row, p in zip(back, primes.values, strict=True):
                row *= -((p - 1) // digits)  # 1/A modulo p, as A divides p - 1
                reduce(row, p)
            self._steps.append(Step(digits, left, powers[:, exponents % (2 * size)], back))
        self.roots: Floats = powers[:, 2 * known + 1]  # (P, M): y at each point
        self._square = SquareTransform(primes, powers, known) if size == DEGREE else None

    def forward(self, x: Floats) -> Floats:
        """Values (P, M, *batch) of polynomials x (P, M, *batch), or (M, *batch) if they are the same for all primes."""
        own = x.ndim > 1 and x.shape[:2] == (len(self.primes), self.size)
        batch = x.shape[2:] if own else x.shape[1:]
        width = math.prod(batch)
        out = np.empty((len(self.primes), self.size, width))
        if self._square and width <= FEW:
            self._square.forward(x.reshape(*x.shape[: 1 + own], width), out)
            return out.reshape(len(self.primes), self.size, *batch)
        spare = np.empty((self.size, width))
        for k, p in enumerate(self.primes.values):
            value = x[k] if own else x
            places = [out[k], spare] if len(self._steps) % 2 else [spare, out[k]]
            for at, step in enumerate(self._steps):
                shape = (-1, step.digits, step.left * width)
                into = places[at % 2]
                matmul(step.ahead[k], value.reshape(shape), into.reshape(shape))
                reduce(into, p)
                value = into
        return out.reshape(len(self.primes), self.size, *batch)

    def back(self, X: Floats, where: NDArray[np.intp] | None = None) -> Floats:
        """Return the coefficients (P, M, *batch) behind values X (P, M, *batch), or those at `where`, (P, len(where),
        *batch).

        Each step leaves out the digits that no wanted coefficient has.
        """
        batch, width = X.shape[2:], math.prod(X.shape[2:])
        out = np.empty((len(self.primes), self.size if where is None else len(where), width))
        if self._square and width <= FEW * (1 if where is None else 4):
            self._square.back(X.reshape(len(self.primes), self.size, width), where, out)
            return out.reshape(len(self.primes), -1, *batch)
        wanted = [self._wanted(step, where) for step in self._steps]
        gathered = np.zeros(1 if where is None else len(where), np.intp)
        for _, place, count in wanted:
            gathered = gathered * count + place
        for k, p in enumerate(self.primes.values):
            value, rest = X[k], width
            for step, (digits, _, count) in zip(reversed(self._steps), reversed(wanted), strict=True):
                matrices = step.back[k] if where is None else step.back[k][:, digits]
                made = np.empty((len(matrices), count, rest))
                matmul(matrices, value.reshape(-1, step.digits, rest), made)
                reduce(made, p)
                value = made
                rest *= count
            rows = value.reshape(-1, width)
            out[k] = rows if where is None else rows[gathered]
        return out.reshape(len(self.primes), -1, *batch)

    @staticmethod
    def _wanted(step: Step, where: NDArray[np.intp] | None) -> tuple[NDArray[np.intp], NDArray[np.intp], int]:
        """Find the digits that wanted coefficients have here, the place of each one's digit among them, and their
        number."""
        if where is None:
            return np.arange(step.digits), np.zeros(1, np.intp), step.digits
        digits, place = np.unique(where // step.left % step.digits, return_inverse=True)
        return digits, place, len(digits)


@functools.lru_cache(maxsize=32)
def transform(primes: Primes, size: int) -> Transform:
    """Make the transform of this size, once: it is public, and takes as long to make as some products."""
    return Transform(primes, size)


def multiplier(primes: Primes, polynomial: Floats, r: int) -> Floats:
    """(P, M, r, r): what multiplies by `polynomial` (P, N), or (N,) if the same for all primes, at each point.

    There the ring R has r elements, and the product with a polynomial g of it is an r x r matrix:

        (g h)_o = sum over i <= o of g_(o - i) h_i  +  y sum over i > o of g_(o - i + r) h_i
    """
    steps = transform(primes, DEGREE // r)
    values = steps.forward(polynomial.reshape(*polynomial.shape[:-1], DEGREE // r, r))
    turned = primes.reduce(values * steps.roots[..., None])
    below = np.arange(r)[:, None] - np.arange(r)
    return np.concatenate([values, turned], axis=-1)[..., below % r + r * (below < 0)]


def _digits(size: int) -> list[int]:
    """Powers of two, as equal as can be and 16 at most, whose product is `size`."""
    bits = size.bit_length() - 1
    steps = -(-bits // _RADIX)
    return [1 << (bits // steps + (at < bits % steps)) for at in range(steps)]


def _powers(p: int, order: int) -> Floats:
    """psi^k about zero, k < order, psi a root of exactly this order, a power of two."""
    psi = next(x for x in (pow(base, (p - 1) // order, p) for base in range(2, p)) if pow(x, order // 2, p) == p - 1)
    powers = np.ones(1, np.int64)
    while len(powers) < order:  # products of two residues of 24 bits are far below 2^63
        powers = np.concatenate([powers, powers * pow(psi, len(powers), p) % p])
    return np.where(powers > p // 2, powers - p, powers).astype(np.float64)
